"""`python -m tests.sim`: tests.sim.seeds in a process with fixed hashes and untouched memory."""

from __future__ import annotations

import os
import sys

#: Sets are walked in the order of hashes. Large arrays of fresh agents come from the kernel, which
#: has zeroed them; glibc would do it again for those of agents that have ended.
SETTINGS = {"PYTHONHASHSEED": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}


def main() -> None:
    """Start anew with the right settings, then run."""
    if not SETTINGS.items() <= os.environ.items():
        command = [sys.executable, "-m", "tests.sim", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | SETTINGS)
    from tests.sim import seeds  # not before: it loads all of the broker

    seeds.main()


if __name__ == "__main__":
    main()
