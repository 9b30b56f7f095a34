"""`gantrymq store verify`: runs the check and prints its report.

Of a check of a few hundred megabytes the parser of options would take a third of the time: a call
that has a directory and at most `--json` does without.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gantrymq.cli.leave import complain
from gantrymq.shm.codes import ExitCode


def plain(arguments: Sequence[str]) -> Callable[[], int] | None:
    """What a call with these arguments does; None if the parser of options has to look."""
    places = [item for item in arguments if item != "--json"]
    if len(places) != 1 or places[0][:1] in ("", "-") or len(arguments) > len(places) + 1:
        return None
    directory = Path(places[0])
    if not directory.exists():
        return None
    return partial(verify, directory, None, as_json=len(arguments) > 1)


def verify(directory: Path, settings: Path | None, *, as_json: bool) -> int:
    """Check a store, print the report; returns the exit code."""
    from dataclasses import asdict

    from gantrymq.brokerd.verify import verify as run

    report = run(directory, settings, show_progress if sys.stderr.isatty() else None)
    _print({"ok": report.ok, **asdict(report)} if as_json else str(report))
    return _judged("the store", report.ok)


def salvage(directory: Path, target: Path, settings: Path | None, *, as_json: bool) -> int:
    """Make a new store of what is sound, print what was lost, verify it; returns the exit code."""
    from dataclasses import asdict

    from gantrymq.brokerd.salvage import salvage as run
    from gantrymq.brokerd.verify import verify as check

    done = run(directory, target, settings, show_progress if sys.stderr.isatty() else None)
    report = check(target, settings)
    content = {"ok": report.ok, **asdict(done), "findings": list(map(str, report.findings))}
    _print(content if as_json else f"{done}\n{report}")
    return _judged("the new store", report.ok)


def _print(said: dict[str, Any] | str) -> None:
    """JSON, or text as it is."""
    text = said if isinstance(said, str) else json.dumps(said, default=str, ensure_ascii=False)
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _judged(what: str, ok: bool) -> int:
    """The exit code; what is not ok is complained of."""
    if ok:
        return ExitCode.OK
    complain(f"{what} does not hold what it should; see above")
    return ExitCode.DOES_NOT_HOLD


def show_progress(done: int, total: int, what: str) -> None:
    """How far it has got, in one line of a terminal."""
    sys.stderr.write(f"\r{what}: {100 * done // max(total, 1)} %\x1b[K")
    if done >= total:
        sys.stderr.write("\n")
    sys.stderr.flush()
