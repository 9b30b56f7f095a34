"""Stores of ours, opened by a real RocketMQ of two versions: accepted, consumed, extended.

`make interop` makes each store with brokers of ours and hands it to the checker that the
environment variable GANTRYMQ_ROCKETMQ names: a directory with a `run.sh` that starts the classes of
the RocketMQ that ROCKETMQ_VERSION names on a copy (`check`: load, recover, compare every record and
queue; `serve`: name server, broker, consumers and sends; `dump`). Exit 0: all accepted; 1:
something was refused; 77: no checker.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from gantrymq import GantryError
from scripts import (
    interop_batches,
    interop_filters,
    interop_goes_on,
    interop_handover,
    interop_retries,
    interop_stores,
    interop_table,
    interop_transactions,
)
from scripts.interop_checker import Checker, Refused
from scripts.interop_stores import Trial
from scripts.interop_table import VERSIONS, Outcome, Row

VARIABLE: Final = "GANTRYMQ_ROCKETMQ"
SKIPPED: Final = 77
README: Final = Path(__file__).resolve().parent.parent / "README.md"
_CLEAR_LINE: Final = "\r\x1b[K"
TRIALS: Final = (*interop_stores.TRIALS, interop_retries.PARKED)
#: What says that a store is refused, by RocketMQ or by us.
_REFUSALS: Final = (Refused, GantryError, OSError, subprocess.SubprocessError)


#: Runs a leg to its end; what was there then. Raises Refused, GantryError.
Run = Callable[[Checker, Path], str]


def _legs() -> list[tuple[Row, Run]]:
    """What has a store of its own each, in the order of the table."""
    return [
        *((leg.row, partial(interop_goes_on.run, leg)) for leg in interop_goes_on.LEGS),
        *((leg.row, partial(interop_handover.run, leg)) for leg in interop_handover.LEGS),
        *((leg.row, partial(interop_retries.run, leg)) for leg in interop_retries.LEGS),
        *((leg.row, partial(interop_filters.run, leg)) for leg in interop_filters.LEGS),
        *((leg.row, partial(interop_transactions.run, leg)) for leg in interop_transactions.LEGS),
        *((leg.row, partial(interop_batches.run, leg)) for leg in interop_batches.LEGS),
    ]


def all_rows() -> list[Row]:
    """Rows of the table, in order."""
    return [*(row for trial in TRIALS for row in trial.rows), *(row for row, _run in _legs())]


def _names(name: str, row: Row) -> bool:
    """Whether a word of the command line chooses a row: the store's name, or a part of some."""
    exact = any(name == other.store for other in all_rows())
    return name == row.store if exact else name in row.store


@dataclass
class Interop:
    """One run: what was chosen, what came of it, and of runs before it."""

    runner: Path
    names: list[str]
    versions: list[str]
    folder: Path
    outcomes: list[Outcome] = field(default_factory=list)
    keep: Path | None = None
    done: int = 0

    def run(self) -> int:
        """Run what is chosen and not accepted yet; how many were refused."""
        before = len(self.todo())
        refused = 0
        for version in self.versions:
            checker = Checker(self.runner, version, self.folder / version)
            checker.folder.mkdir()
            for trial in TRIALS:
                refused += self._run_trial(trial, checker, before)
            for row, run in _legs():
                refused += self._run_leg(row, run, checker, before)
        return refused

    def todo(self) -> list[tuple[Row, str]]:
        """Rows that are chosen and not accepted yet, each with its version."""
        accepted = {(o.row, o.version) for o in self.outcomes if o.accepted}
        return [
            (row, version)
            for version in self.versions
            for row in all_rows()
            if not self.names or any(_names(name, row) for name in self.names)
            if (row, version) not in accepted
        ]

    def _run_leg(self, row: Row, run: Run, checker: Checker, count: int) -> int:
        if (row, checker.version) not in self.todo():
            return 0
        with self._told(row, checker.version, count) as told:
            told.said = run(checker, self._log(checker))
        return not told.accepted

    def _run_trial(self, trial: Trial, checker: Checker, count: int) -> int:
        todo = self.todo()
        steps = [
            (step, row)
            for step, row in zip(trial.steps, trial.rows, strict=True)
            if (row, checker.version) in todo
        ]
        if not steps:
            return 0
        refused = 0
        try:
            with trial.made(checker) as store:
                for step, row in steps:
                    with self._told(row, checker.version, count) as told:
                        told.said = step.run(checker, store, self._log(checker))
                    refused += not told.accepted
        except _REFUSALS as error:  # the store could not be made
            _, row = steps[0]
            with self._told(row, checker.version, count):
                raise Refused(str(error)) from error
            refused += 1
        return refused

    def _log(self, checker: Checker) -> Path:
        return checker.folder / f"{self.done:02d}.log"

    @contextmanager
    def _told(self, row: Row, version: str, count: int) -> Iterator[_Told]:
        told = _Told()
        started = time.monotonic()
        with ticking(f"interop: {self.done + 1}/{count} {version} {row.store}: {row.did}"):
            try:
                yield told
            except _REFUSALS as error:
                told.accepted, told.said = False, f"{error}"
        seconds = round(time.monotonic() - started, 1)
        outcome = Outcome(row.store, row.did, version, told.accepted, seconds, told.said)
        same = (row, version)
        self.outcomes = [o for o in self.outcomes if (o.row, o.version) != same] + [outcome]
        self.done += 1
        if self.keep:
            interop_table.save(self.keep, self.outcomes)
        verdict = "accepted" if told.accepted else "REFUSED"
        print(f"{version} {row.store}: {row.did}: {verdict} after {seconds} s: {told.said}",
              file=sys.stderr, flush=True)  # fmt: skip


@dataclass
class _Told:
    """What came of a step."""

    accepted: bool = True
    said: str = ""


@contextmanager
def ticking(text: str) -> Iterator[None]:
    """Show on a terminal what is being done, and for how long."""
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    started = time.monotonic()

    def tick() -> None:
        while not over.wait(0.5):
            print(f"{_CLEAR_LINE}{text} ({time.monotonic() - started:.0f} s)",
                  end="", file=sys.stderr, flush=True)  # fmt: skip

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)


def find_runner() -> Path | None:
    """The checker's `run.sh`, or None after telling what is missing."""
    place = os.environ.get(VARIABLE)
    if not place:
        problem = f"set {VARIABLE} to the directory of the RocketMQ checker (it holds run.sh)"
    elif not (Path(place) / "run.sh").is_file():
        problem = f"{VARIABLE}={place} has no run.sh"
    else:
        return Path(place) / "run.sh"
    print(f"interop: skipped: {problem}", file=sys.stderr)
    return None


def write_readme(outcomes: list[Outcome]) -> None:
    """Put the table of all rows into README.md. Raises ValueError without its markers."""
    text = README.read_text(encoding="utf-8")
    table = interop_table.table(all_rows(), outcomes, every=True)
    README.write_text(interop_table.put_between_markers(text, table), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "names", nargs="*", help="only stores of these names, or whose names contain them"
    )
    parser.add_argument(
        "--version", action="append", choices=VERSIONS, dest="versions",
        help="only this RocketMQ; may be repeated (default: all)",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the rows and run nothing")
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help="write outcomes there; rows that it holds as accepted are not run again",
    )  # fmt: skip
    parser.add_argument(
        "--write-readme", action="store_true", help="put the table of all rows into README.md"
    )
    return parser.parse_args()


def main() -> None:
    """Run what is chosen and print the table."""
    arguments = _arguments()
    if arguments.list:
        print("\n".join(f"{row.store}: {row.did}" for row in all_rows()))
        return
    runner = find_runner()
    if runner is None:
        sys.exit(SKIPPED)
    folder = Path(tempfile.mkdtemp(prefix="gantrymq-interop-"))
    known = interop_table.load(arguments.json) if arguments.json else []
    run = Interop(
        runner, arguments.names, arguments.versions or list(VERSIONS), folder, known, arguments.json
    )
    refused = run.run()
    print(interop_table.table(all_rows(), run.outcomes))
    if arguments.write_readme:
        write_readme(run.outcomes)
    print(f"interop: {refused} refused{f', logs in {folder}' if refused else ''}")
    if not refused:
        shutil.rmtree(folder)
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
