"""The oracle of recalls: what clients were told of cancelled messages, and what the log says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gantrymq.shm.properties import TIMER_TOPIC
from gantrymq.shm.schedulerwire import ALREADY_DELIVERED, CANCELLED, UNKNOWN_HANDLE
from tests.support.storedlog import Stored, broken, require

#: A message: its producer, and its number there.
Name = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Recallable:
    """A message with a recall handle."""

    name: Name
    topic: str
    handle: str
    position: int


def is_recall(record: Stored) -> bool:
    """Whether a record takes a parked one out."""
    return record.strikes and record.origin >= 0


def is_again(record: Stored, source: Stored) -> bool:
    """Whether a record is a timer that was appended again, before its segment goes."""
    return record.topic == source.topic == TIMER_TOPIC and not record.strikes


def first_of(record: Stored, parked: dict[int, Stored]) -> Stored:
    """The timer that a sender has parked, for one that was appended again."""
    while record.origin in parked and is_again(record, parked[record.origin]):
        record = parked[record.origin]
    return record


class Recalls:
    """What was asked and answered (P8: cancelling wins or loses, and says which)."""

    def __init__(self, tally: Counter[str]) -> None:
        self.known: list[Recallable] = []
        self.told: dict[Name, str] = {}
        self._tally = tally

    def answered(self, message: Recallable | None, outcome: str, *, gone: bool) -> None:
        """A client was told; None: by a handle that nobody was ever given.

        `gone`: a power cut, retention or a full disk may have taken what is asked for, or what
        tells of it.
        """
        self._tally[outcome if message else "unknown to all"] += 1
        if message is None:
            may = outcome == UNKNOWN_HANDLE or (gone and outcome != CANCELLED)
            require(may, "P6", f"a handle of nothing is {outcome}")
            return
        if outcome == UNKNOWN_HANDLE:
            require(gone, "P8", f"{message} is unknown")
            return
        if gone and outcome == ALREADY_DELIVERED:
            return  # a full disk may have taken it while it waited: nothing tells of that
        before = self.told.setdefault(message.name, outcome)
        require(before == outcome or gone, "P8", f"{message} was {before}, and now is {outcome}")

    def power_cut(self, safe_topics: frozenset[str]) -> None:
        """What was written only may be gone, and go another way."""
        topics = {message.name: message.topic for message in self.known}
        for name in [name for name in self.told if topics[name] not in safe_topics]:
            del self.told[name]

    def check(self, log: list[Stored]) -> None:
        """Who was told that it is cancelled has a recall in the log, who was not has a copy."""
        parked = {record.position: record for record in log if record.destination}
        recalled: set[Name] = set()
        delivered: set[Name] = set()
        for record in log:
            if record.origin < 0 or record.origin not in parked:
                continue
            source = parked[record.origin]
            name = (source.producer, source.seq)
            if is_recall(record):
                require(name not in recalled, "P8", f"{source} is recalled again by {record}")
                if (record.producer, record.seq) != name:
                    broken("P8", f"{record} is not the recall of {source}")
                recalled.add(name)
            elif not is_again(record, source) and first_of(source, parked).origin < 0:
                delivered.add(name)
        both = recalled & delivered
        require(not both, "P8", f"recalled and delivered: {both}")
        for name, outcome in self.told.items():
            there = name in (recalled if outcome == CANCELLED else delivered)
            require(there, "P8", f"{name} was told to be {outcome}")
        self._tally["recalls in the log"] += len(recalled)
