"""Half messages in doubt, for those who only look: a running broker's, or a stopped store's.

The txn-checker's truth without its table: what one that started now would find. Its note says what
was open and how far that goes; op records, commit copies and what it has noted since say the rest.
Nothing is changed, no agent is asked.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.codes import Stop
from gantrymq.shm.errors import Rejected
from gantrymq.shm.lognames import bases_of, positions_in, segment_name
from gantrymq.shm.properties import GANTRY_TX, GIVEN_UP_TOPIC, HALF_TOPIC, NOTES_TOPIC, OP_TOPIC
from gantrymq.shm.queuenames import queue_directory
from gantrymq.shm.storage import map_file, map_still
from gantrymq.shm.transactionwire import ROLLBACK
from gantrymq.workers.logviews import UNIT, LogRecords
from gantrymq.workers.scheduler.othersettled import OtherSettled
from gantrymq.workers.transactions.note import BEFORE_NOTE, Note, read_note
from gantrymq.workers.transactions.records import CHECKED, read_record, settlement_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from gantrymq.shm.board import Board
    from gantrymq.shm.record import Record
    from gantrymq.shm.storage import Storage

OPEN: Final = "open"
GIVEN_UP: Final = "given_up"
#: A unit of a queue with its offset.
PLACE: Final = np.dtype([("offset", "<i8"), ("position", "<i8"), ("size", "<i4")])
_READER_NS: Final = 1_000_000_000
_LOOK_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class Doubt:
    """A half message that nobody has decided; `record` is its newest, or the one given up.

    `position` names it, as an operator's decision does. `checks`: how often it was asked for.
    """

    state: str
    position: int
    half_offset: int
    checks: int
    stored_ms: int  # the half, Unix ms
    record: Record
    properties: dict[str, str]

    @property
    def topic(self) -> str:
        """Where it goes to if it is committed."""
        return self.properties.get("REAL_TOPIC", "?")

    @property
    def group(self) -> str:
        """Its producer group."""
        return self.properties.get("PGROUP", "?")

    @property
    def message_id(self) -> str:
        """UNIQ_KEY, or the record's place."""
        return self.properties.get("UNIQ_KEY") or self.record.offset_message_id

    @property
    def transaction_id(self) -> str | None:
        """What the halves of one transaction have in common; None in a RocketMQ's."""
        return self.properties.get(GANTRY_TX, "").partition(",")[0] or None


@dataclass(frozen=True, slots=True)
class Entry:
    """What was noted of a half: a pass of checks (`checks` so far), or an operator's hand."""

    when_ms: int
    what: str  # "checked", "given_up", or a settlement's action
    checks: int | None = None
    who: str | None = None

    def told(self) -> dict[str, str | int]:
        """For programs, without what it does not have."""
        fields: dict[str, str | int] = {"at_ms": self.when_ms, "what": self.what}
        if self.checks is not None:
            fields["checks"] = self.checks
        return fields if self.who is None else fields | {"by": self.who}


class _Files(LogRecords):
    """Queues and segments by their names alone: a stopped store has no board."""

    def __init__(self, storage: Storage, board: Board | None) -> None:
        self._storage, self._board = storage, board
        self._bases = bases_of(storage)
        self._views: dict[int, NDArray[np.uint8]] = {}
        self._show = map_still if board is None else map_file  # a broker writes on

    @property
    def low(self) -> int:
        """The first log position that there is."""
        return self._bases[0] if self._bases else 0

    def segment(self, position: int) -> tuple[int, NDArray[np.uint8]]:
        """By the names that were there, or are by now. Raises FileNotFoundError."""
        found = self._listed(position)
        if found is None:  # a broker has gone on with the log
            self._bases = bases_of(self._storage)
            found = self._listed(position)
        if found is None:
            raise FileNotFoundError(position)
        return found

    def _listed(self, position: int) -> tuple[int, NDArray[np.uint8]] | None:
        """The segment, among those listed last, that has a position."""
        at = bisect_right(self._bases, position) - 1
        if at < 0:
            return None
        base = self._bases[at]
        if base not in self._views:
            self._views[base] = self._show(self._storage, segment_name(base))
        view = self._views[base]
        return (base, view) if position < base + len(view) else None

    def places(self, topic: str, start: int) -> NDArray[np.void]:
        """Units of queue 0 of a topic from a queue offset on."""
        folder = queue_directory(self._storage, topic, 0)
        found = [np.zeros(0, PLACE)]
        for name in positions_in(self._storage, folder):
            first = int(name) // UNIT.itemsize
            units = map_still(self._storage, f"{folder}/{name}").view(UNIT)
            units = units[max(0, start - first) :]
            rows = np.zeros(len(units), PLACE)
            rows["offset"] = np.arange(len(units)) + max(start, first)
            rows["position"], rows["size"] = units["position"], units["size"]
            good = (units["size"] > 0) & (units["size"] != layout.CQ_FILLER_SIZE)
            found.append(rows[good & (rows["position"] >= self.low)])
        return np.concatenate(found)

    def commits(self, start: int) -> NDArray[np.int64]:
        """Positions of halves of which commit copies lie behind a log position."""
        from gantrymq.shm import jit

        jit.warm()
        from gantrymq.shm.kernels.origins import COMMITS
        from gantrymq.workers.origins import Finder

        at, end = max(start, self.low), self._end()
        finder = Finder(COMMITS)
        while at < end:
            try:
                segment = self.segment(at)
            except FileNotFoundError:
                later = [base for base in bases_of(self._storage) if base > at]
                if not later:
                    break
                at = later[0]  # retention was quicker
                continue
            at, stop = finder.read(segment, at, end)
            if stop not in (Stop.DONE, Stop.LIMIT):
                break  # the end of a log that nobody has recovered
        return finder.origins()

    def _end(self) -> int:
        if self._board is not None:
            return self._board.word(layout.BOARD_APPENDED)
        if not self._bases:
            return 0
        last = self._bases[-1]
        return last + self._storage.size_of(segment_name(last))


def named(doubts: Iterable[Doubt], text: str) -> list[Doubt]:
    """Those with a message id, transaction id or log position. Raises Rejected if none has."""
    wanted = text.upper()
    found = [
        doubt
        for doubt in doubts
        if wanted in (doubt.message_id.upper(), (doubt.transaction_id or "").upper())
        or wanted in (str(doubt.position), doubt.record.offset_message_id)
    ]
    if not found:
        raise Rejected(
            f"no half message in doubt has the id {text}: it may have been decided"
            " (`gantrymq get` finds a committed message), or never stored"
        )
    return found


class InDoubt:
    """A look at a store. Raises Corrupt, OSError."""

    def __init__(self, storage: Storage, board: Board | None) -> None:
        self._storage, self._board = storage, board
        self.files = _Files(storage, board)
        self._note = read_note(storage) or Note()
        self._counts: dict[int, int] | None = None
        if board is not None:
            _wait_for_reader(board)

    def read(self) -> list[Doubt]:
        """All of them, the oldest first."""
        # What is decided meanwhile has its op record in the part that is read last.
        found = list(self._given_up())
        parked = {doubt.position for doubt in found}  # perhaps before the op record
        found += [doubt for doubt in self._open() if doubt.position not in parked]
        return sorted(found, key=lambda doubt: doubt.stored_ms)

    def find(self, text: str) -> list[Doubt]:
        """As `named`, of all."""
        return named(self.read(), text)

    def _open(self) -> Iterator[Doubt]:
        note = self._note
        rows = np.array([row[:3] for row in note.open], np.int64).reshape(-1, 3)
        known = np.zeros(len(rows), PLACE)
        known["offset"], known["position"], known["size"] = rows.T
        places = np.concatenate([known, self.files.places(HALF_TOPIC, note.halves_next)])
        checks = self._checks()
        places = places[~self._is_settled(places)]
        named = self._named(note.ops_next)
        places = places[~np.isin(places["offset"], named)]
        commits = self._commits
        done = np.isin(places["position"], commits)
        begun = places["position"][done].tolist()  # op records name all that is over
        finished = {self._transaction(position) for position in begun} - {None}
        newest: dict[str, Doubt] = {}
        for offset, position, _size in places[~done].tolist():
            record = self.files.record(position)
            if record is None or record.topic != HALF_TOPIC:
                continue
            count = checks.get(offset, 0)
            properties, stored_ms = record.property_map(), record.store_timestamp
            doubt = Doubt(OPEN, position, offset, count, stored_ms, record, properties)
            if doubt.transaction_id not in finished:
                newest[doubt.message_id] = doubt  # what was put back is replaced
        yield from newest.values()

    @cached_property
    def _commits(self) -> NDArray[np.int64]:
        """Halves of which commit copies lie behind what the note counts."""
        return self.files.commits(self._note.scanned)

    def history(self, doubt: Doubt) -> list[Entry]:
        """What was noted of a half, as it came; checks as far as the log is kept."""
        found = []
        for record in self.records(NOTES_TOPIC, 0):
            checks, settled = read_record(record.body)
            if doubt.half_offset in checks:
                entry = Entry(record.store_timestamp, CHECKED, checks[doubt.half_offset])
                found.append(entry)
            elif settled and settled[0] == doubt.position:
                found += _settlement(record.body)
        if doubt.state == GIVEN_UP:
            found.append(Entry(doubt.record.store_timestamp, GIVEN_UP))
        return found

    def _unsettled(self) -> dict[int, int]:
        """Position of the newest copy by that of the half, where no settlement is in the log."""
        note = self._note
        listed = {row[3]: row[1] for row in note.given_up}
        for record in self.records(GIVEN_UP_TOPIC, note.given_next):
            origin, position = record.origin, record.physical_offset
            listed[origin if origin >= 0 else position] = position
        for record in self.records(NOTES_TOPIC, note.notes_next):
            settled = read_record(record.body)[1]
            # A half that was open then may have been checked anew, and given up behind it.
            behind = record.physical_offset
            if not settled or listed.get(settled[0], behind) >= behind:
                continue
            if settled[1] == ROLLBACK or behind < note.scanned:  # all of it is in the log
                del listed[settled[0]]
        if listed:  # what was committed, or checked anew, since the note
            first = max(note.halves_next - BEFORE_NOTE, 0)
            done = {half.origin for half in self.records(HALF_TOPIC, first)}
            done.update(self._commits.tolist())
            listed = {half: place for half, place in listed.items() if half not in done}
        return listed

    def _given_up(self) -> Iterator[Doubt]:
        """Copies in their topic of which no settlement is noted."""
        checks = self._checks()
        for position, place in self._unsettled().items():
            parked, half = self.files.record(place), self.files.record(position)
            if parked is None:
                continue
            offset, stored_ms = -1, parked.store_timestamp  # a RocketMQ's copy names no half
            if half is not None and half.topic == HALF_TOPIC:
                offset, stored_ms = half.queue_offset, half.store_timestamp
            count, properties = checks.get(offset, 0), parked.property_map()
            yield Doubt(GIVEN_UP, position, offset, count, stored_ms, parked, properties)

    def _checks(self) -> dict[int, int]:
        """By half queue offset."""
        if self._counts is None:
            self._counts = {row[0]: row[3] for row in self._note.open}
            for record in self.records(NOTES_TOPIC, 0):
                self._counts.update(read_record(record.body)[0])
        return self._counts

    def records(self, topic: str, start: int) -> Iterator[Record]:
        """Of a system topic, from a queue offset on."""
        for position in self.files.places(topic, start)["position"].tolist():
            record = self.files.record(position)
            if record is not None:
                yield record

    def _is_settled(self, places: NDArray[np.void]) -> NDArray[np.bool_]:
        """What another broker has decided or replaced."""
        others = OtherSettled(self._storage)
        settled = np.zeros(len(places), np.bool_)
        if len(places):
            first, last = int(places["offset"].min()), int(places["offset"].max())
            bits = others.among(HALF_TOPIC, 0, first, last - first + 1)
            settled = bits[places["offset"] - first]
        return settled

    def _named(self, start: int) -> NDArray[np.int64]:
        """Half offsets that op records from a queue offset on name (TX-21, TX-22)."""
        found: list[int] = []
        for record in self.records(OP_TOPIC, start):
            text = record.body.decode("ascii", "replace")
            found += [int(word) for word in text.split(",") if word.isdecimal()]
        return np.array(found, np.int64)

    def _transaction(self, position: int) -> str | None:
        record = self.files.record(position)
        name = record.property_map().get(GANTRY_TX, "") if record else ""
        return name.partition(",")[0] or None


def _wait_for_reader(board: Board) -> None:
    """What was answered before is to be seen: its units come a moment later."""
    appended, until_ns = board.word(layout.BOARD_APPENDED), time.monotonic_ns() + _READER_NS
    while board.word(layout.BOARD_DISPATCHED) < appended and time.monotonic_ns() < until_ns:
        time.sleep(_LOOK_S)


def _settlement(body: bytes) -> list[Entry]:
    told = settlement_of(body)
    return [Entry(told[2], told[0], who=told[1])] if told else []
