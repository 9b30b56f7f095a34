"""`gantrymq store rebuild`: makes what is derived again."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from gantrymq.cli.options import print_json


def rebuild(directory: Path, *, dry_run: bool, as_json: bool) -> None:
    """Rebuild the store root `directory`, and print what was done."""
    from gantrymq.brokerd.rebuild import rebuild as run

    done = run(directory, dry_run=dry_run)
    if as_json:
        print_json(asdict(done))
    else:
        sys.stdout.write(f"{done}\n")
