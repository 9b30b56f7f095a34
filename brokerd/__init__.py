"""The broker's own processes: supervisor, writer, flusher, and what they need on disk.

It may use `workers`, `clients` and `shm`. It holds no jitted code; applications never import it.
"""
