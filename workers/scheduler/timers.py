"""Timers: what waits in rmq_sys_wheel_timer, by its exact millisecond, in bounded memory.

Every unit is read once: its entry goes into a bucket file, and into memory at once if its bucket
was opened already; what is due when it is read goes to memory alone, and nothing is counted before
it is put. After a start, all units that are not counted are read into buckets first: a record that
stands there twice is found out when its bucket is opened.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.kernels import timer
from gantrymq.shm.kernels.parked import DUE_MS
from gantrymq.shm.properties import TIMER_TOPIC
from gantrymq.workers.scheduler.duerows import due_rows
from gantrymq.workers.scheduler.strikes import sift
from gantrymq.workers.scheduler.timerbuckets import LEAD_MS, SECOND_MS, TimerBuckets
from gantrymq.workers.scheduler.timerfiling import TimerFiling
from gantrymq.workers.scheduler.timerholds import TimerHolds
from gantrymq.workers.scheduler.timermoved import Moved
from gantrymq.workers.scheduler.timerpool import (
    DELETE_BIT,
    ENTRY,
    KILLERS,
    NEVER,
    SIZE_MASK,
    TimerPool,
    are_among,
    is_delay,
    joined,
)
from gantrymq.workers.scheduler.timerscounted import Counted
from gantrymq.workers.scheduler.timerunits import UNITS_MAX, TimerUnits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from numpy.typing import NDArray

    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.logviews import LogViews
    from gantrymq.workers.logwindow import LogWindow
    from gantrymq.workers.scheduler.delivery import Delivery
    from gantrymq.workers.scheduler.note import Note
    from gantrymq.workers.scheduler.othersettled import OtherSettled
    from gantrymq.workers.scheduler.timeline import Timeline
    from gantrymq.workers.scheduler.timerbuckets import Looked
    from gantrymq.workers.scheduler.timerpool import Entries

#: Entries in memory at most, but for what is due within two seconds.
POOL_MAX: Final = 1_500_000
PUTS: Final = 4_096
#: Entries of a bucket that one recall looks at in one cycle, a millisecond or less.
LOOK_ENTRIES: Final = 16_384
#: Units that are filed together, and after a start: each bucket that they touch costs a write.
FILED_UNITS: Final = 2 * UNITS_MAX
CATCH_UP_UNITS: Final = 16 * UNITS_MAX


class Timers:
    """What is due by its own time, and how far it has come."""

    def __init__(
        self,
        storage: Storage,
        board: Board,
        views: LogViews,
        window: LogWindow,
        timeline: Timeline,
        precision_ms: int,
    ) -> None:
        self._board = board
        self._views = views
        self._window = window
        self._time = timeline
        self.buckets = TimerBuckets(storage)
        self._filing = TimerFiling(self.buckets)
        self._units = TimerUnits(views, window, timeline, precision_ms)
        self._loose = TimerPool()  # of no bucket: due when they were read
        self._at, self._after = TimerPool(), TimerPool()
        self.pools = (self._loose, self._at, self._after)
        self._turn = 0  # of these, that is delivered from first
        self._done: NDArray[np.int64] = np.zeros(0, np.int64)
        self._uncounted = np.zeros(0, ENTRY)  # of these, what the note does not count
        self._scanned = 0
        self._others: OtherSettled | None = None
        self.queue = -1
        self.next = 0  # queue offset of the first unit that was not read, and filed
        self._counted = Counted()
        self.last_position = -1  # of the units that were read
        self._catch_up = 0  # until this offset is read, all goes into buckets
        self.made = ""
        self._is_doubled = False  # some of what is in memory may be in buckets as well
        self._holds = TimerHolds()
        self.moved = Moved()
        self.is_moving = False  # a bucket's timers are being appended again
        self._to_move: deque[str] = deque()  # buckets that this move has not come to
        self._listed = (-1, -1)  # which move it was, and the buckets' `changes`, at that list

    def take_over(self, found: Note) -> bool:
        """Go on from a note; False if its buckets are not whole: then all units are read again."""
        if not self.buckets.begin(found.made, found.timers_position, found.buckets):
            return not found.made
        self.made, self.next = found.made, found.timers_next
        self.moved.floor = found.timers_floor
        self._counted.take_over(found)
        self.last_position = found.timers_position
        return True

    def begin(
        self, done: NDArray[np.int64], others: OtherSettled | None = None, scanned: int = 0
    ) -> None:
        """`done` are positions (sorted) that have a copy, as far as the note does not count it.

        That is from log position `scanned` on. `others` is what another broker has settled.
        """
        self._done, self._others, self._scanned = done, others, scanned
        self._uncounted = self._as_filed(self._units.among(done))

    def _as_filed(self, entries: Entries) -> Entries:
        """Delays with the times of their buckets: another boot's, or by what a life before knew.

        They count as done there once that time has come, whatever this life makes of them. What a
        file does not tell now is not counted by this life.
        """
        rows = np.flatnonzero(is_delay(entries) & (entries["position"] <= self.last_position))
        if not len(rows):
            return entries
        positions = entries["position"][rows].astype(np.int64)
        try:
            filed = self.buckets.times_of(positions)
        except OSError:
            entries["ms"][rows] = NEVER
            return entries
        known = np.array([filed.get(position, 0) for position in positions.tolist()], np.int64)
        entries["ms"][rows] = np.where(known > 0, known, entries["ms"][rows])
        return entries

    def find_queue(self) -> None:
        """Follow the board: the queue may be there by now."""
        topic = self._board.topic_named(TIMER_TOPIC)
        if topic and self.queue < 0:
            self.queue = topic.queue_base
            at = self._board.queue_at(self.queue)
            low = self._board.word(at + layout.QUEUE_MIN_OFFSET)
            # By the log: after a kill the reader may still be making the queue's end again.
            end = self._board.word(at + layout.QUEUE_NEXT_OFFSET)
            self.next = min(max(self.next, low), max(low, end))
            self._catch_up = end

    def _bounds(self) -> tuple[int, int]:
        at = self._board.queue_at(self.queue)
        low = self._board.word(at + layout.QUEUE_MIN_OFFSET)
        return low, self._board.word(at + layout.QUEUE_MAX_OFFSET)

    @property
    def _is_catching_up(self) -> bool:
        return self.next < self._catch_up

    # ------------------------------------------------------------------------------------ reading

    def has_more(self) -> bool:
        """Whether there is something to read, or a bucket to open."""
        return self.is_reading or self._can_open()

    def _can_read(self) -> bool:
        if self.queue < 0 or len(self._loose) or len(self._at) + len(self._after) > POOL_MAX:
            return False
        is_large = self._is_catching_up or self._filing.has_begun
        if self._filing.units >= (CATCH_UP_UNITS if is_large else FILED_UNITS):
            return False
        low, high = self._bounds()
        return high > max(self.next, self._filing.next, low)

    def _can_open(self) -> bool:
        return (
            not self._is_catching_up
            and not self.is_moving
            and self.buckets.opens_ms() < self._now_ms()
        )

    def _now_ms(self) -> int:
        """By the clock that is ahead: a delay's bucket is opened by the other, a little early."""
        return max(self._time.wall_ms(), self._time.filed_ms())

    def read(self) -> int:
        """Open a bucket, or read some units, or file some; how much was done. Raises OSError.

        What is being filed does not keep the next units unread: recalls wait for those.
        """
        self.buckets.follow(self._now_ms())
        if self.queue >= 0 and not self._filing:
            self.next = max(self.next, self._bounds()[0])  # what was removed is not waited for
        if not self._can_open():
            done = self._read_units() if self._can_read() else 0
            if self._filing.has_begun or (self._filing and not done):
                done += self._file_some()
            return done
        opened = self.buckets.open_next()
        if opened is not None:
            entries, span = opened
            coming = self._holds.sift(self._filing.within(span))
            self._take_in(joined(self._that_wait(entries), coming))
            self._keep_small()
        return 1

    def _that_wait(self, entries: Entries) -> Entries:
        """What of a bucket's entries is not done with, as far as it can be told of each alone."""
        entries = entries[~self.moved.among(entries)]
        entries = entries[self._counted.leaves(entries) & ~self._are_done(entries["position"])]
        return self._holds.sift(entries)

    def _read_units(self) -> int:
        low, high = self._bounds()
        appended = self._board.word(layout.BOARD_APPENDED)
        first = max(self.next, self._filing.next, low)
        entries, count, position = self._entries_from(first, min(high, first + UNITS_MAX))
        killers = entries["size"] & KILLERS != 0
        loose = self._are_due(entries) & ~killers
        if self._is_catching_up:
            loose[:] = False  # what a bucket may have already is not delivered beside it
        self._loose.add(entries[loose])
        entries = entries[~loose]
        self._filing.gather(entries, (first, first + count), position, appended)
        soon = entries[self.buckets.are_open(entries)]
        if len(soon):
            self._take_in(self._holds.sift(soon))
            self._keep_small()
        return count

    def _file_some(self) -> int:
        filed = self._filing.file_some()
        if filed is not None:
            self.next = filed[0]
            self.last_position = max(self.last_position, filed[1])
        return 1

    def _entries_from(self, first: int, end: int) -> tuple[Entries, int, int]:
        """Entries of units, as far as they are in one file, how many units, their last position."""
        units = self._views.units(TIMER_TOPIC, 0, first, end)
        positions = units["position"].astype(np.int64)
        rows = self._units.rows(positions, units["size"].astype(np.int64))
        wanted = rows[:, timer.KIND] & timer.NOTHING == 0
        wanted &= ~self._are_done(positions)
        if self._others is not None:
            wanted &= ~self._others.among(TIMER_TOPIC, 0, first, len(units))
        return self._units.entries(rows[wanted]), len(units), int(positions.max())

    def _are_done(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        return are_among(positions, self._done)

    def _are_due(self, entries: Entries) -> NDArray[np.bool_]:
        after = is_delay(entries)
        now = np.where(after, self._now_after(), self._time.wall_ms())
        return np.asarray(entries["ms"] <= now)

    def _now_after(self) -> int:
        """A delay was stored within a millisecond, and ends within one."""
        return self._time.filed_ms() - 1

    def _take_in(self, entries: Entries) -> None:
        """Into memory, but for recalls and what they name."""
        if self._is_doubled:
            held = [run["position"] for pool in (self._at, self._after) for run in pool.runs()]
            entries = entries[~np.isin(entries["position"], np.concatenate([[], *held]))]
        pools = (self._at, self._after)
        held = [run for pool in pools for run in pool.runs()]
        entries, gone = sift(entries, held, self._window)
        for pool in pools:
            pool.remove(gone)
        after = is_delay(entries)
        self._after.add(entries[after])
        self._at.add(entries[~after])

    def _keep_small(self) -> None:
        """Give back to files of seconds what is not due soon, when it becomes too much."""
        if len(self._at) + len(self._after) <= POOL_MAX:
            return
        border = -(-(self._now_ms() + LEAD_MS) // SECOND_MS) * SECOND_MS
        at, after = self._at.cut(border + 1), self._after.cut(border + 1)
        late = joined(at, after)
        if not len(late):
            return
        try:
            self.buckets.put_back(late)
        except OSError:  # no room: they stay, and some may be in files as well
            self._at.add(at)
            self._after.add(after)
            self._is_doubled = True
            raise

    @property
    def waiting(self) -> int:
        """How many were not handed in, but for what only an opened bucket shows to be gone."""
        pools = len(self._loose) + len(self._at) + len(self._after)
        unread = max(0, self.written() - max(self.next, self._filing.next))
        coming = [run[~self.buckets.are_open(run)] for run in self._filing.runs()]
        unread += sum(map(len, coming))
        # Recalls that an adopted store has without their timers count as less than nothing.
        return max(0, unread + self.buckets.waiting + pools + len(self._holds))

    # ----------------------------------------------------------------------------------- delivery

    def deliver(self, delivery: Delivery) -> tuple[int, bool]:
        """Hand in what is due; how many, and whether there was room for all that was tried.

        Pools have their turn one after the other: where room ends, the next call begins behind.
        """
        if self._is_catching_up:
            return 0, True
        done, count = 0, len(self.pools)
        times = (NEVER, self._time.wall_ms(), self._now_after())
        for number in range(self._turn, self._turn + count):
            pool, now_ms = self.pools[number % count], times[number % count]
            if pool.next_ms() > now_ms:
                continue
            rows = pool.take(now_ms, PUTS)
            sizes = (rows["size"] & SIZE_MASK).astype(np.int64)
            due = due_rows(rows["position"].astype(np.int64), sizes)
            if pool is not self._loose:  # their time had passed when they came
                due[:, DUE_MS] = self._time.since_boot(rows["ms"].astype(np.int64), now_ms)
            taken = delivery.put(due)
            pool.drop(rows[:taken])
            done += taken
            if taken < len(rows):
                self._turn = (number + (taken > 0)) % count  # without any room it was no turn
                return done, False
        return done, True

    def sleep_ns(self) -> int:
        """How long nothing of it is due, or can be delivered; what it waits for then rings."""
        if self._is_catching_up:
            return NEVER  # the reader has yet to show the queue as far as it goes
        ms = 1_000_000
        opens_ms = self.buckets.opens_ms() + 1
        by_filing = opens_ms * ms - self._time.filed_ns()
        horizon = min(self._time.until_wall_ns(opens_ms), by_filing)
        if self.is_moving:
            horizon = NEVER  # none is opened before the writer has answered
        at = self._time.until_wall_ns(self._at.next_ms())
        after = (self._after.next_ms() + 1) * ms - self._time.filed_ns()
        loose = NEVER if not len(self._loose) else 0
        return max(0, min(horizon, at, after, loose))

    # ------------------------------------------------------------------------------------- recalls

    def written(self) -> int:
        """Queue offset behind the last record that is in the log by now."""
        if self.queue < 0:
            return 0
        return self._board.word(self._board.queue_at(self.queue) + layout.QUEUE_NEXT_OFFSET)

    @property
    def is_reading(self) -> bool:
        """Whether there are units that can be read or filed now, but for room on the disk."""
        return bool(self._filing) or self._can_read()

    def has_read(self, offset: int) -> bool:
        """Whether all units below an offset were read, and filed."""
        return self.next >= offset

    def knows(self, offset: int) -> bool:
        """Whether all units below an offset are in memory at least."""
        return max(self.next, self._filing.next) >= offset

    def look_on(
        self, due_ms: int, key_hash: int, places: dict[str, Looked], *, back: bool
    ) -> tuple[Entries, bool]:
        """Entries of a slot by their key's hash, some at a time; whether that was all there is.

        `places` is what whoever asks has looked at, empty at first: nothing is read twice. `back`
        as TimerBuckets has it.
        """
        filed, is_all = self.buckets.look_on(due_ms, places, LOOK_ENTRIES, back=back)
        return filed[filed["hash"] == key_hash], is_all

    def in_memory(self, key_hash: int) -> Entries:
        """The same of what is in memory, whenever it is due, also on its way to a bucket."""
        return self._in_memory("hash", key_hash)

    def places_of(self, found: Entries) -> list[tuple[int, bool]]:
        """Position of each, and whether it is a recall."""
        deletes = found["size"] & DELETE_BIT != 0
        return list(zip(found["position"].tolist(), deletes.tolist(), strict=True))

    def that_wait(
        self, filed: Entries, remembered: Entries, due_ms: int
    ) -> list[tuple[int, int, bool]]:
        """Which of these still wait, or take one out, these first: position, ms, is it a recall.

        `filed` were found in the bucket of `due_ms`, `remembered` in memory: what has left that
        waits no more, whatever is filed under its time.
        """
        found = joined(filed, remembered)
        if not len(found):
            return []
        deletes = found["size"] & DELETE_BIT != 0
        there = (~self.moved.among(found) | deletes) & self._counted.leaves(found)
        # What was opened waits in memory, or does not wait any more.
        in_file = there & (deletes | (not self.buckets.is_open(due_ms)))
        in_file[len(filed) :] = False
        places = found[["position", "ms"]].tolist()
        rows = zip(places, deletes.tolist(), in_file.tolist(), strict=True)
        waiting = [
            (position, ms, is_recall)
            for (position, ms), is_recall, is_filed in rows
            if (is_filed or self._is_in_memory(position)) and self._may_wait(position)
        ]
        return sorted(set(waiting), key=lambda item: not item[2])

    def _is_in_memory(self, position: int) -> bool:
        return len(self._in_memory("position", position)) > 0

    def _in_memory(self, name: str, value: int) -> Entries:
        unfiled = _rows(self._filing.runs(), name, value)
        pooled = _rows(self._pooled(), name, value)
        return joined(pooled, unfiled[~self.buckets.are_open(unfiled)])

    def _pooled(self) -> Iterator[Entries]:
        """What waits in memory, with all of open buckets, filed or not."""
        for pool in self.pools:
            yield from pool.runs()

    def seek(self, position: int) -> Generator[None, None, int | None]:
        """When a timer is due that waits in another bucket, since the wall was set; or None.

        Each step looks at LOOK_ENTRIES or so. What is opened meanwhile, or was since whoever asks
        has looked into memory, is there.
        """
        while True:
            shifts = self.buckets.shifts
            entries = yield from self.buckets.seek(position, LOOK_ENTRIES)
            if not len(entries):
                entries = _rows(self._pooled(), "position", position)
            if not len(entries) and shifts != self.buckets.shifts:
                yield
                continue  # neither here nor there: it was on its way
            wanted = entries[self._counted.leaves(entries) & ~self.moved.among(entries)]
            return int(wanted["ms"][0]) if len(wanted) and self._may_wait(position) else None

    def _may_wait(self, position: int) -> bool:
        """Whether a timer was neither recalled nor has a copy."""
        return position not in self._holds and not self._are_done(np.array([position]))[0]

    @property
    def is_recalling(self) -> bool:
        """Whether a recall is on its way."""
        return bool(self._holds)

    def hold(self, position: int) -> None:
        """Do not deliver a timer until it is known whether its recall is in the log."""
        loose, at, after = (p.pick(position) for p in (self._loose, self._at, self._after))
        self._holds.hold(position, joined(loose, at), after)

    def let_go(self, position: int) -> None:
        """It was not recalled."""
        at, after = self._holds.let_go(position)
        self._at.add(at)
        self._after.add(after)

    def give_up(self, position: int) -> None:
        """It was recalled: it is never delivered."""
        self._holds.give_up(position)

    def bucket_to_move(self) -> tuple[str, Entries] | None:
        """The next bucket whose timers are to be appended again, what waits there. Raises OSError.

        Its name is empty while it is being split. None: there are no more.
        """
        name = self._next_to_move()
        if name is None:
            return None
        self.buckets.follow(self._now_ms())
        entries = self.buckets.look_into(name)
        if entries is None:
            return "", np.zeros(0, ENTRY)
        return name, sift(self._that_wait(entries), (), self._window)[0]

    def _next_to_move(self) -> str | None:
        """Each bucket until it is moved, then those that came meanwhile; None: no more."""
        while True:
            while self._to_move:
                name = self._to_move[0]
                if self.buckets.is_unopened(name) and not self.moved.has(name):
                    return name
                self._to_move.popleft()
            listed = self.moved.below, self.buckets.changes
            if self._listed == listed:
                return None
            self._listed = listed
            self._to_move = deque(self.buckets.unopened())

    def holds_below(self, position: int) -> bool:
        """Whether a timer in memory lies below a log position."""
        return any((run["position"] < position).any() for run in self._pooled())

    # ----------------------------------------------------------------------------------- progress

    @property
    def can_be_counted(self) -> bool:
        """Whether all units below `next` are in a bucket or were put."""
        return not len(self._loose) and not self._is_catching_up and not self.moved.below

    def counted_from(self) -> int:
        """Log position below which no copy is of units from `next` on, or later than `done_ms`.

        A life before may have seen a later time, if the wall clock was set back or the power went.
        """
        at, after = self.done_ms()
        rows = self._uncounted
        until = np.where(is_delay(rows), after, at)
        if ((rows["ms"] > until) & (rows["position"] >= self.moved.floor)).any():
            return self._scanned
        appended = self._board.word(layout.BOARD_APPENDED)
        return self._filing.since if self._filing else appended

    def done_ms(self) -> tuple[int, int]:
        """Points in time, and delays, up to which all is put, of units below `next`."""
        unopened = self.buckets.next_ms()
        held = [part["ms"].tolist() for part in self._holds.parts()]
        at = min([self._at.next_ms(), *held[0]]) - 1
        after = min([self._after.next_ms(), *held[1]]) - 1
        now_ms, now_after = self._time.wall_ms(), self._now_after()
        return min(at, unopened, now_ms), min(after, unopened, now_after)

    def counted(self, made: str, done_ms: int) -> None:
        """A note that says so is durable."""
        self.made = made
        # What is filed later is not to be in a bucket that looks new, nor delivered if recalled.
        done_ms = min(done_ms, self._filing.next_ms() - 1)
        self.buckets.forget_passed(done_ms)
        self._holds.forget(done_ms, self.moved.floor)

    def belong_to(self, made: str) -> None:
        """The next note will name the buckets so."""
        if made != self.made:
            self.buckets.belong_to(made)

    def take_damage(self) -> list[str]:
        """Bucket files that are damaged or missing, each once: the next start reads the log again.

        Raises OSError.
        """
        if self.made and self.buckets.is_damaged_anew:
            self.buckets.disown(self.made)
        return self.buckets.take_damage()

    def close(self) -> None:
        """Give files back."""
        self.buckets.close()


def _rows(runs: Iterable[Entries], name: str, value: int) -> Entries:
    """Rows of which a field has a value."""
    return joined(*(run[run[name] == value] for run in runs))
