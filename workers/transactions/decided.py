"""What became of half messages that are decided, as far as the log still tells: for `tx show`.

An op record of ours says which of the halves that it names were committed; of one that a RocketMQ
wrote, the commit copies tell. Who an operator was stands in the notes; whether a producer ended it
by itself, or was asked, nobody writes down.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gantrymq.shm.properties import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from gantrymq.shm.transactionwire import COMMIT, COMMITTED, OUTCOMES, ROLLBACK, ROLLED_BACK
from gantrymq.workers.transactions.indoubt import Doubt, Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantrymq.shm.record import Record
    from gantrymq.workers.transactions.indoubt import InDoubt

#: Actions of settlements that decide, as history has them.
_SETTLED: Final = {action: OUTCOMES[action] for action in (COMMIT, ROLLBACK)}
#: A longer number is an id.
POSITION_DIGITS: Final = 20
PRODUCER: Final = "producer"
ASKED: Final = "producer, perhaps when it was asked"


class Decided:
    """A look at what `InDoubt` leaves out. Raises Corrupt, OSError."""

    def __init__(self, doubts: InDoubt) -> None:
        self._doubts = doubts
        self._files = doubts.files

    def find(self, text: str) -> list[Doubt]:
        """Decided halves with a message id, transaction id or log position, the oldest first.

        Reads the half queue: a million of them take some seconds.
        """
        names = {text.upper(), text.lower()}
        if text.isdecimal() and len(text) < POSITION_DIGITS:
            record = self._files.record(int(text))
            if record is None or record.topic != HALF_TOPIC:
                return []
            names = {record.property_map().get("UNIQ_KEY", "")} - {""}
        newest: dict[str, Doubt] = {}  # what was appended again is replaced
        for doubt in self._with(names):
            newest[doubt.message_id] = doubt
        return [found for doubt in newest.values() if (found := self._judged(doubt)) is not None]

    def history(self, doubt: Doubt) -> list[Entry]:
        """What was noted of a half that `find` gave, and its decision."""
        noted = self._doubts.history(doubt)
        told = self._op(doubt.half_offset)
        hands = [entry for entry in noted if entry.what in _SETTLED]
        when_ms = told[1] if told else hands[-1].when_ms if hands else doubt.stored_ms
        if hands:
            return [*noted, Entry(max(when_ms, hands[-1].when_ms), doubt.state, who=hands[-1].who)]
        by = ASKED if any(entry.checks for entry in noted) else PRODUCER
        return [*noted, Entry(when_ms, doubt.state, who=by)]

    def _with(self, names: set[str]) -> Iterator[Doubt]:
        """Halves that have one of the names."""
        needles = [name.encode() for name in names]
        for offset, position, size in self._files.places(HALF_TOPIC, 0).tolist():
            base, view = self._files.segment(position)
            data = view[position - base : position - base + size].tobytes()
            if not any(needle in data for needle in needles):
                continue
            record = self._files.record(position)
            if record is None or record.topic != HALF_TOPIC:
                continue
            properties, stored_ms = record.property_map(), record.store_timestamp
            doubt = Doubt("", position, offset, 0, stored_ms, record, properties)
            if names & {doubt.message_id, doubt.transaction_id}:
                yield doubt

    def _judged(self, doubt: Doubt) -> Doubt | None:
        """With its outcome as state and its checks; None if it is in doubt."""
        outcome = self._outcome(doubt)
        if outcome is None:
            return None
        counts = [entry.checks for entry in self._doubts.history(doubt) if entry.checks]
        return replace(doubt, state=outcome, checks=max(counts, default=0))

    def _outcome(self, doubt: Doubt) -> str | None:
        told = self._op(doubt.half_offset)
        if told is not None and told[0]:
            return told[0]
        noted = self._doubts.history(doubt)
        hands = [_SETTLED[entry.what] for entry in noted if entry.what in _SETTLED]
        if hands:
            return hands[-1]
        if doubt.position in self._files.commits(doubt.position).tolist():
            return COMMITTED
        if told is None or self._is_given_up(doubt):
            return None
        return ROLLED_BACK

    def _is_given_up(self, doubt: Doubt) -> bool:
        return any(
            record.origin == doubt.position
            or record.property_map().get("UNIQ_KEY") == doubt.message_id
            for record in self._doubts.records(GIVEN_UP_TOPIC, 0)
        )

    def _op(self, offset: int) -> tuple[str, int] | None:
        """Outcome and time (Unix ms) by the op record that names a half; "": another tells."""
        word = str(offset)
        for record in self._doubts.records(OP_TOPIC, 0):
            words = record.body.decode("ascii", "replace").split(",")
            if word in words:
                return _said(record, words.index(word)), record.store_timestamp
        return None


def _said(op: Record, index: int) -> str:
    """What an op record says of the half that it names at an index (ADR 0019)."""
    if not op.flag:
        return ""
    return COMMITTED if index < op.flag - 1 else ROLLED_BACK
