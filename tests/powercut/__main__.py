"""Crash states of a real run: `python -m tests.powercut --states 1000 --seed 7`.

Records the system calls of a broker at work, makes states that a power cut could have left at some
moment, starts a broker on each, and holds what applications had been told against what there is.
Ends with 1 if a state breaks a promise, and says how to make just that one again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.powercut.runs import PROFILES, read_again, recorded, try_states
from tests.support import leaks


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", choices=PROFILES, help="one of them; both if not given")
    parser.add_argument("--seconds", type=float, default=4.0, help="of work, before strace's toll")
    parser.add_argument("--recorded", type=Path, help="a folder that a failed run has left")
    wanted = parser.parse_args()
    leaks.mark_this_run()
    began, failed = time.monotonic(), 0

    def tell(seed: int, broken: str) -> None:
        if broken:
            print(f"state {seed} of {run.profile}: {broken}", flush=True)

    for profile in [wanted.profile] if wanted.profile else PROFILES:
        folder = Path(tempfile.mkdtemp(prefix="gantrymq-powercut-"))
        again = wanted.recorded
        run = (
            read_again(profile, again)
            if again
            else recorded(profile, wanted.seed, wanted.seconds, folder)
        )
        effects, told = len(run.recording.effects), len(run.recording.told)
        print(f"{profile}: {effects} changes of files, {told} events", flush=True)
        seeds = range(wanted.seed, wanted.seed + wanted.states)
        found = try_states(run, seeds, folder, tell)
        failed += len(found)
        if found and not again:
            print(
                f"repeat one: python -m tests.powercut --recorded {folder} --profile {profile}"
                f" --states 1 --seed {found[0][0]}"
            )
        else:
            shutil.rmtree(folder)
    print(f"{failed} states break a promise; {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
