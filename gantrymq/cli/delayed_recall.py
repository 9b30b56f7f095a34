"""`gantrymq delayed recall`: cancelling messages by their handles, or saying what it would do."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gantrymq.cli.board import running_board
from gantrymq.cli.delayed_chosen import that_wait
from gantrymq.cli.delayed_show import look_at_store
from gantrymq.cli.leave import complain
from gantrymq.cli.output import home_of, print_json
from gantrymq.clients.recalls import require_handle
from gantrymq.shm import schedulerwire
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import BrokerGone, GantryError, MessageIllegal, Rejected

if TYPE_CHECKING:
    from pathlib import Path

_CANCELLED: Final = schedulerwire.CANCELLED
_NO_HANDLE: Final = "no_handle"
#: The scheduler does not carry it out.
_REFUSED: Final = "refused"
#: Of a dry run: delivered, cancelled before, or never parked, which only the scheduler can tell.
_NOT_WAITING: Final = "not_waiting"


@dataclass(slots=True)
class _Recalls:
    """What became of handles, or would."""

    topic: str
    dry_run: bool
    as_json: bool
    #: By outcome; `no_handle` is what was no handle of the topic.
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, handle: str, outcome: str) -> None:
        """One handle's outcome."""
        self.counts[outcome] += 1
        if self.as_json:
            told = {"topic": self.topic, "recall_handle": handle, "outcome": outcome}
            print_json(told | ({"dry_run": True} if self.dry_run else {}))

    def tell(self, *, is_list: bool) -> None:
        """Print what people are told in the end."""
        if self.as_json:
            return
        if not is_list:
            (outcome,) = self.counts
            sys.stdout.write(_would(outcome, dry_run=self.dry_run) + "\n")
            return
        done, total = self.counts[_CANCELLED], self.counts.total()
        rest = [
            f"{count} {_would(name, dry_run=self.dry_run)}"
            for name, count in sorted(self.counts.items())
            if name != _CANCELLED
        ]
        what = _would(_CANCELLED, dry_run=self.dry_run)
        sys.stdout.write(f"{done} of {total} {what}" + "".join(f", {item}" for item in rest))
        sys.stdout.write("; nothing was changed\n" if self.dry_run else "\n")

    @property
    def code(self) -> int:
        """The exit code."""
        if self.counts[_NO_HANDLE]:
            return ExitCode.USAGE
        missed = self.counts.total() - self.counts[_CANCELLED]
        return ExitCode.DOES_NOT_HOLD if missed else ExitCode.OK


def _would(outcome: str, *, dry_run: bool) -> str:
    if dry_run and outcome == _CANCELLED:
        return "would be cancelled"
    return outcome.replace("_", " ")


def recall_all(home: Path | None, topic: str, handle: str, *, dry_run: bool, as_json: bool) -> int:
    """Cancel the message of a handle, of all on standard input for `-`; the exit code."""
    where = home_of(home)
    if not dry_run:
        _require_running(where)
    is_list = handle == "-"
    given = [line.strip() for line in sys.stdin if line.strip()] if is_list else [handle]
    told = _Recalls(topic, dry_run, as_json)
    sound = []
    for item in given:
        try:
            require_handle(topic, item)
        except MessageIllegal as error:
            if not is_list:
                raise
            complain(str(error))
            told.note(item, _NO_HANDLE)
        else:
            sound.append(item)
    if dry_run:
        _look_for(where, sound, told)
    else:
        _cancel(where, sound, told)
    told.tell(is_list=is_list)
    return told.code


def _cancel(home: Path, handles: list[str], told: _Recalls) -> None:
    from gantrymq.clients.producer import Producer

    with Producer(home=home) as producer:
        for item in handles:
            try:
                outcome = str(producer.recall_message(told.topic, item))
            except Rejected as error:
                complain(f"{item}: {error}")
                outcome = _REFUSED
            except GantryError:
                complain(f"{item}: not cancelled, or not known to be; nor those behind it")
                raise
            told.note(item, outcome)


def _look_for(home: Path, handles: list[str], told: _Recalls) -> None:
    """What would be cancelled, by what waits now."""
    look, _broker = look_at_store(home)
    parts = [schedulerwire.parse_handle(item) for item in handles]
    waiting = that_wait(look, {(part.topic, part.unique) for part in parts})
    for item, part in zip(handles, parts, strict=True):
        told.note(item, _CANCELLED if (part.topic, part.unique) in waiting else _NOT_WAITING)


def _require_running(home: Path) -> None:
    """A recall is a record of the log, and only a broker writes there. Raises BrokerGone."""
    try:
        running_board(home)
    except BrokerGone as error:
        raise BrokerGone(
            f"{error}. Only a running broker can cancel: recall again once it runs; what is due by"
            " then is delivered first",
            home=str(home),
        ) from error
