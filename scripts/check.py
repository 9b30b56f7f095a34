"""Run every static check and report all that fail, not only the first.

ruff (lint and format), mypy --strict and the import contracts; settings are in pyproject.toml.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("lint-imports", "--no-logo"),
    ("mypy", "--strict"),
)


def holds(check: tuple[str, ...]) -> bool:
    """Run one check with its output shown; True if it found nothing."""
    started = time.monotonic()
    returncode = subprocess.run([BIN / check[0], *check[1:]], cwd=ROOT, check=False).returncode
    outcome = "ok" if returncode == 0 else "FAILED"
    seconds = time.monotonic() - started
    print(f"check: {' '.join(check)}: {outcome} ({seconds:.1f} s)", file=sys.stderr, flush=True)
    return returncode == 0


def main() -> None:
    """Exit with 1 if any check found something."""
    failed = [check[0] for check in CHECKS if not holds(check)]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
