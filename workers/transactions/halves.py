"""What the txn-checker knows of half messages: open ones, decided ones, those given up.

All of it is derived from half queue, op queue and log. Rows of the table come from the half queue
now and then, not for each half: most are decided by then and never become rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout
from gantrymq.shm.kernels import ends as kernels
from gantrymq.shm.kernels import halfform, halfrows, stretch
from gantrymq.shm.kernels.halfrows import read_halves, read_ops
from gantrymq.shm.properties import HALF_TOPIC, OP_TOPIC
from gantrymq.shm.transactionwire import COMMITTED, ROLLED_BACK
from gantrymq.workers.transactions.decision import MOVED
from gantrymq.workers.transactions.firstplace import first_place
from gantrymq.workers.transactions.latest import Latest
from gantrymq.workers.transactions.table import ROW, OpenHalves

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.workers.logviews import LogViews
    from gantrymq.workers.logwindow import LogWindow
    from gantrymq.workers.scheduler.othersettled import OtherSettled
    from gantrymq.workers.transactions.decision import Decision
    from gantrymq.workers.transactions.ends import Ends

MS: Final = 1_000_000
#: By what a row of an END says.
OUTCOMES: Final = (ROLLED_BACK, COMMITTED)
#: Units that are read at one time.
UNITS_MAX: Final = 16_384
#: Bytes of records that are verified at one time, if these are of more than one unit.
READ_BYTES: Final = 4 << 20
#: Names of op records that are read at a time.
OP_ROWS: Final = 65_536
#: Outcomes that are remembered: the latest so many.
REMEMBERED: Final = 65_536
#: Places of records that were appended again which are kept at least, decided or not.
ALIASES_MIN: Final = 65_536
#: Units of the half queue that are expected between two looks at it; a power of two.
TAKEN_ROOM: Final = 65_536
#: Op records by which RocketMQ's progress is told; beyond it they are merged by pairs.
OP_MARKS_MAX: Final = 4_096

Words = NDArray[np.int64]


class Halves:
    """See the module."""

    def __init__(self, board: Board, views: LogViews, window: LogWindow, timeout_s: int) -> None:
        self.table = OpenHalves()
        self.next = 0  # first unit of the half queue that was not read
        self.done: set[int] = set()  # queue offsets from there on that are decided
        #: By the low bits of a queue offset from `next` on, below `taken_end`: 1 once it is decided
        #: or about to be.
        self.taken = np.zeros(TAKEN_ROOM, np.uint8)
        self._far = -1  # highest one that `taken` has no room for
        self.ops_next = 0  # first unit of the op queue that is not known
        self.others: OtherSettled | None = None  # what another broker has decided or put back
        #: Position of a record -> position and queue offset of the one that stands for it.
        self.aliases: dict[int, tuple[int, int]] = {}
        self._aliases_max = ALIASES_MIN
        #: Queue offset of such a one that is not read yet -> checks, and when the next one is.
        self._carried: dict[int, tuple[int, int]] = {}
        self.unread: dict[int, int] = {}  # and its position
        self.damaged = 0  # units that were read, and have a damaged record
        self._board = board
        self._views = views
        self._window = window
        self._timeout_ms = 1000 * timeout_s
        self._recent: Latest[int, str] = Latest(REMEMBERED)  # outcomes, by position
        self._marks: deque[tuple[int, int]] = deque()
        self._form = np.zeros(halfform.FORM_WORDS, np.int64)
        self._queues: dict[str, int] = {}

    # --------------------------------------------------------------------------------- decisions

    def outcome_at(self, position: int) -> str | None:
        """How the half at a position was decided, as far as that is remembered."""
        return self._recent.get(position)

    def is_open(self, offset: int) -> bool:
        """Whether a half queue offset is undecided, or not read yet."""
        if offset >= self.next:
            return offset not in self.done
        return self.table.find(offset) >= 0

    def decided(self, decision: Decision) -> None:
        """A decision is in the log."""
        for position, offset in decision.halves:
            self.decide(position, offset, decision.outcome)

    def decide(self, position: int, offset: int, outcome: str) -> None:
        """A half's decision is in the log."""
        if outcome != MOVED:
            self._recent.note(position, outcome)
        if offset >= self.next:
            self.done.add(offset)
            self.take(offset)
        elif (index := self.table.find(offset)) >= 0:
            self.table.remove(index)

    def decide_ends(self, ends: Ends) -> None:
        """The decisions of ENDs that kernels have taken, and marked in `taken`, are in the log."""
        commits, offsets = ends.column(kernels.IS_COMMIT), ends.column(halfform.OFFSET)
        if min(offsets) < self.next:
            for half, is_commit in zip(ends.halves, commits, strict=True):
                self.decide(*half, OUTCOMES[is_commit])
            return
        positions = ends.column(halfform.POSITION)
        self._recent.note_all(zip(positions, map(OUTCOMES.__getitem__, commits), strict=True))
        self.done.update(offsets)

    @property
    def taken_end(self) -> int:
        """Below this queue offset `taken` tells all."""
        return self.next + TAKEN_ROOM if self._far < self.next else self.next

    def take(self, offset: int) -> None:
        """A half is about to be decided."""
        if offset >= self.next + TAKEN_ROOM:
            if offset < self.written() + TAKEN_ROOM:  # nobody has judged it: it may be no half
                self._far = max(self._far, offset)
        elif offset >= self.next:
            self.taken[offset & (TAKEN_ROOM - 1)] = 1

    def _forget_taken(self, first: int) -> None:
        """`next` went on from `first`."""
        if self.next - first >= TAKEN_ROOM:
            self.taken[:] = 0
            return
        start, end = first & (TAKEN_ROOM - 1), self.next & (TAKEN_ROOM - 1)
        if start <= end:
            self.taken[start:end] = 0
        else:
            self.taken[start:] = 0
            self.taken[:end] = 0

    def forget_below(self, low: int) -> int:
        """Halves that retention has taken off a full disk are no longer known; how many."""
        rows = self.table.rows
        gone = np.flatnonzero(rows["live"][: int(np.searchsorted(rows["position"], low))])
        for index in gone[::-1].tolist():
            self.table.remove(index)
        return len(gone)

    def forget_damaged(self, half: tuple[int, int]) -> bool:
        """Whether a half's record is damaged, which is named: it is not known any more.

        As after a start. Nobody can decide it, and it must not hold retention up for ever.
        """
        if self._window.record(half[0]) is not None:
            return False
        if (index := self.table.find(half[1])) >= 0:
            self.table.remove(index)
        return True

    def forget_aliases(self, given_up: Container[int]) -> None:
        """Once there are many, drop those of halves that are decided and not remembered.

        The log tells of these, as after a start. `given_up`: positions of halves to be settled.
        """
        if len(self.aliases) <= self._aliases_max:
            return
        newest = {position: self.newest_half((position, 0)) for position in self.aliases}
        self.aliases = {
            position: self.aliases[position]
            for position, (place, offset) in newest.items()
            if self.is_open(offset) or self.outcome_at(place) is not None or place in given_up
        }
        self._aliases_max = max(ALIASES_MIN, 2 * len(self.aliases))

    def remember(self, position: int, outcome: str) -> None:
        """What the log said of an old half."""
        self._recent.note(position, outcome)

    def note_ops(self, ops: list[tuple[int, int, int]]) -> None:
        """Op records that are in the log (`Decisions.ops`)."""
        marks = self._marks
        if not ops:
            return
        marks.extend((first, highest) for first, _count, highest in ops)
        self.ops_next = max(self.ops_next, ops[-1][0] + ops[-1][1])
        ops.clear()
        if len(marks) > OP_MARKS_MAX:
            pairs = zip_longest(*[iter(marks)] * 2)  # no index: amid a deque it costs its length
            self._marks = deque((one[0], max(one[1], two[1])) if two else one for one, two in pairs)

    def expect_ops(self, first: int, highest: int) -> None:
        """Op records from one on may name halves up to a queue offset: those of a life before."""
        self._marks.append((first, highest))

    def first_open(self) -> int:
        """Every half below this queue offset is decided."""
        at = self.table.first()
        return int(self.table.rows["offset"][at]) if at >= 0 else self.next

    def first_op(self, offset: int) -> int:
        """No op record below this one names a half at or behind `offset`; drops what is done."""
        marks = self._marks
        lowest = self.first_open()
        while len(marks) > 1 and marks[0][1] < lowest:
            marks.popleft()
        for op, highest in marks:
            if highest >= offset:
                return op
        return self.ops_next

    # -------------------------------------------------------------------------------- half queue

    def queue(self, topic: str) -> int:
        """Where the slot of a system topic's queue is on the board; -1: there is none."""
        at = self._queues.get(topic, -1)
        if at < 0:
            for slot in self._board.topics():
                if slot.name == topic:
                    at = self._queues[topic] = self._board.queue_at(slot.queue_base)
        return at

    def written(self, topic: str = HALF_TOPIC) -> int:
        """Units of a queue."""
        at = self.queue(topic)
        return self._board.word(at + layout.QUEUE_WRITTEN) if at >= 0 else 0

    def lowest(self, topic: str = HALF_TOPIC) -> int:
        """First unit of a queue whose record is there."""
        at = self.queue(topic)
        return self._board.word(at + layout.QUEUE_MIN_OFFSET) if at >= 0 else 0

    def read(self, now_ns: int, now_ms: int, most: int = UNITS_MAX) -> int:
        """Take in units of the half queue; how many. Raises Corrupt, OSError."""
        before = self.next
        self.next = max(self.next, self.lowest())
        self._forget_taken(before)
        end = min(self.written(), self.next + most)
        if self.next >= end:
            return 0
        first, units = self.units(HALF_TOPIC, self.next, end)
        offsets = np.arange(first, first + len(units) // 2)
        wanted = np.ones(len(offsets), np.bool_)
        if self.done:
            done = np.fromiter(self.done, np.int64, len(self.done))
            wanted = ~np.isin(offsets, done)
        if self.others is not None:
            wanted &= ~self.others.among(HALF_TOPIC, 0, first, len(offsets))
        count = _as_many_as_fit(units[1::2], wanted)
        units, offsets, wanted = units[: 2 * count], offsets[:count], wanted[:count]
        if wanted.any():
            chosen = units.reshape(-1, 2)[wanted]
            rows = self.rows_of(chosen, now_ns, now_ms)
            self.table.add(rows)
        self.next = first + len(offsets)
        self.unread = {at: place for at, place in self.unread.items() if at >= self.next}
        self._forget_taken(first)
        self.done = {offset for offset in self.done if offset >= self.next}
        return len(offsets)

    def units(self, topic: str, first: int, end: int) -> tuple[int, Words]:
        """Positions and sizes of some units from `first` on, one file's at most."""
        found = self._views.units(topic, 0, first, end)
        units = np.empty(2 * len(found), np.int64)
        units[0::2], units[1::2] = found["position"], found["size"]
        return first, units

    def rows_of(self, units: Words, now_ns: int, now_ms: int) -> NDArray[np.void]:
        """Table rows of halves' units (position and size each); of damaged ones there are none."""
        count = len(units)
        found = np.zeros((count, halfrows.READ_WORDS), np.int64)
        numbers = np.zeros(count, np.int32)
        flat, form = np.ascontiguousarray(units).reshape(-1), self._form
        form[stretch.NEXT], form[stretch.COUNT] = 0, count
        while (at := int(form[stretch.NEXT])) < count:
            if not self._window.enter(int(units[at, 0])):
                gone = units[at, 0] >= 0
                found[at, halfrows.READ_STATE] = halfform.NO_HALF if gone else halfform.DAMAGED
                form[stretch.NEXT] = at + 1
                continue
            self._window.show_in(form)
            read_halves(self._window.view, form, flat, found.reshape(-1))
            end = int(form[stretch.NEXT])
            self._number_groups(found[at:end], numbers[at:end])
        self.damaged += int(np.count_nonzero(found[:, halfrows.READ_STATE] == halfform.DAMAGED))
        self._window.name_damaged(units[found[:, halfrows.READ_STATE] == halfform.DAMAGED, 0])
        good = found[:, halfrows.READ_STATE] == halfform.GOOD
        found = found[good]
        rows = np.zeros(len(found), ROW)
        rows["position"], rows["size"] = units[good, 0], units[good, 1]
        rows["group"] = numbers[good]
        for name, column in (
            ("offset", halfrows.READ_OFFSET), ("stored_ms", halfrows.STORE_MS),
            ("tx", halfrows.TX_HASH), ("key", halfrows.KEY_HASH),
        ):  # fmt: skip
            rows[name] = found[:, column]
        rows["live"], rows["kin"] = 1, found[:, halfrows.IS_LATER]
        immune_ms = np.maximum(1000 * found[:, halfrows.IMMUNE_S], self._timeout_ms)
        wait_ms = np.clip(rows["stored_ms"] + immune_ms - now_ms, 0, immune_ms)
        rows["next_ns"] = now_ns + wait_ms * MS
        self._find_aliases(found, rows)
        return rows

    def _number_groups(self, found: Words, numbers: NDArray[np.int32]) -> None:
        """Producer groups as numbers; a name is read once for all rows that have it."""
        hashes, firsts, inverse = np.unique(
            found[:, halfrows.GROUP_HASH], return_index=True, return_inverse=True
        )
        known = np.zeros(len(hashes), np.int32)
        for number, first in enumerate(firsts.tolist()):
            at, size = found[first, [halfrows.GROUP_AT, halfrows.GROUP_SIZE]].tolist()
            name = self._window.view[at : at + size].tobytes().decode(errors="replace")
            known[number] = self.table.group_number(name)
        numbers[:] = known[inverse]

    def _find_aliases(self, found: Words, rows: NDArray[np.void]) -> None:
        """Records that were appended again know where they come from (HO-41)."""
        origins = -1 - found[:, halfrows.PREPARED]
        again = np.flatnonzero((origins >= 0) & (origins < rows["position"]))  # else forged
        for number in again.tolist():
            origin, row = int(origins[number]), rows[number]
            self.aliases[origin] = place = (int(row["position"]), int(row["offset"]))
            first = self._first_place(place[0])
            if first is not None:
                row["stored_ms"] = first[1]
                if first[0] != origin:
                    self.aliases[first[0]] = place
            row["checks"], row["next_ns"] = self._carried.pop(
                int(row["offset"]), (int(row["checks"]), int(row["next_ns"]))
            )

    def _first_place(self, position: int) -> tuple[int, int] | None:
        record = self._window.record(position)
        return None if record is None else first_place(record.property_map())

    def newest(self, position: int) -> int:
        """Where the half that was at a position is now: it may have been appended again."""
        while position in self.aliases:
            position = self.aliases[position][0]
        return position

    def newest_half(self, half: tuple[int, int]) -> tuple[int, int]:
        """Position and queue offset of the record that stands for a half now."""
        while half[0] in self.aliases:
            half = self.aliases[half[0]]
        return half

    def moved(self, half: tuple[int, int], place: tuple[int, int]) -> int:
        """A half was appended again; its checks so far."""
        self.aliases[half[0]] = place
        index = self.table.find(half[1])
        if index < 0:
            return 0
        rows = self.table.rows
        checks, next_ns = int(rows["checks"][index]), int(rows["next_ns"][index])
        newer = self.table.find(place[1])
        if newer >= 0:
            rows["checks"][newer], rows["next_ns"][newer] = checks, next_ns
        else:
            self._carried[place[1]] = checks, next_ns
            self.unread[place[1]] = place[0]
        return checks

    # ---------------------------------------------------------------------------------- op queue

    def read_ops(self, first: int, end: int) -> tuple[int, Words]:
        """What op records of units [first, end) name: half offset, op offset, committed or not.

        Returns where to go on, and rows of three (`halfrows.read_ops`).
        """
        first = max(first, self.lowest(OP_TOPIC))
        if first >= end:
            return first, np.zeros((0, 3), np.int64)
        first, units = self.units(OP_TOPIC, first, end)
        room = OP_ROWS
        while not (found := self._read_ops(units, room))[0]:  # one record names more than that
            room *= 2
        done, rows = found
        rows[:, 1] += first
        return first + done, rows

    def _read_ops(self, units: Words, room: int) -> tuple[int, Words]:
        """How many op records were read, and their rows; as far as these have room."""
        count = len(units) // 2
        form = self._form
        form[stretch.NEXT], form[stretch.COUNT], form[halfform.COMMIT] = 0, count, 0
        out = np.zeros(3 * room, np.int64)
        while (at := int(form[stretch.NEXT])) < count:
            if not self._window.enter(position := int(units[2 * at])):
                if position < 0:
                    self._window.record(position)  # which names it
                form[stretch.NEXT] = at + 1
                continue
            self._window.show_in(form)
            if read_ops(self._window.view, form, units, out) == halfrows.LIMIT:
                break
        rows = out[: 3 * int(form[halfform.COMMIT])].reshape(-1, 3)
        damaged = rows[:, 0] < 0
        self._window.name_damaged(units[2 * rows[damaged, 1]])
        return int(form[stretch.NEXT]), rows[~damaged]


def _as_many_as_fit(sizes: Words, wanted: NDArray[np.bool_]) -> int:
    """How many units have READ_BYTES of records that are wanted, and one at least."""
    ends = np.cumsum(np.where(wanted & (sizes != layout.CQ_FILLER_SIZE), sizes, 0))
    return max(1, int(np.searchsorted(ends, READ_BYTES, side="right")))
