"""Crash states of a real run: `python -m tests.powercut --states 1000 --seed 7`.

Records the system calls of a broker at work, makes states that a power cut could have left at some
moment, starts a broker on each, and holds what applications had been told against what there is.
Ends with 1 if a state breaks a promise, and says how to make just that one again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.powercut.runs import PROFILES, recorded, try_states
from tests.support import leaks


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", choices=PROFILES, help="one of them; both if not given")
    parser.add_argument("--seconds", type=float, default=4.0, help="of work, before strace's toll")
    wanted = parser.parse_args()
    leaks.mark_this_run()
    began, failed = time.monotonic(), 0

    def tell(seed: int, broken: str) -> None:
        if broken:
            print(f"state {seed} of {run.profile}: {broken}", flush=True)

    for profile in [wanted.profile] if wanted.profile else PROFILES:
        with tempfile.TemporaryDirectory(prefix="gantrymq-") as name:
            folder = Path(name)
            run = recorded(profile, wanted.seed, wanted.seconds, folder)
            effects, told = len(run.recording.effects), len(run.recording.told)
            print(f"{profile}: {effects} changes of files, {told} events", flush=True)
            seeds = range(wanted.seed, wanted.seed + wanted.states)
            failed += len(try_states(run, seeds, folder, tell))
    print(f"{failed} states break a promise; {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
