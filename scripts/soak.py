"""Run the tests of crashes and schedules round after round, each with a fresh seed.

`make soak ROUNDS=100` ends at the first failing round and prints the command that repeats it.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = [
    f"tests/{kind}" for kind in ("sim", "property", "crash") if (ROOT / "tests" / kind).is_dir()
]


def round_of(seed: int) -> list[str]:
    """Return the command of one round; models and simulations both start from `seed`."""
    return [sys.executable, "-m", "pytest", "-q", "-x", f"--hypothesis-seed={seed}", *KINDS]


def main() -> None:
    """Run ROUNDS rounds (default 10)."""
    rounds = int(os.environ.get("ROUNDS", "10"))
    for number in range(1, rounds + 1):
        seed = secrets.randbelow(1 << 31)
        started = time.monotonic()
        print(f"soak: round {number} of {rounds}, seed {seed}", file=sys.stderr, flush=True)
        environment = os.environ | {"GANTRYMQ_TEST_SEED": str(seed)}
        done = subprocess.run(round_of(seed), cwd=ROOT, env=environment, check=False)
        print(f"soak: took {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        if done.returncode:
            sys.exit(f"soak: repeat it: GANTRYMQ_TEST_SEED={seed} {' '.join(round_of(seed))}")


if __name__ == "__main__":
    main()
