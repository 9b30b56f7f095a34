"""Figures of the README: ours, its peers and the machine's floors, measured in the same rounds."""
