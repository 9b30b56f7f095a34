"""When the scheduler's progress is written down, and what of it may be.

A picture is taken of how far units were read and copies put. It becomes the note when all copies
are answered, and all of the log up to then is durable: then nothing that it counts can be missing
in the log, whatever happens.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gantrymq.shm import layout
from gantrymq.shm.marks import mark
from gantrymq.shm.properties import SCHEDULE_TOPIC
from gantrymq.workers.scheduler.note import Note, read_note, write_note
from gantrymq.workers.scheduler.offsetsforothers import OffsetsForOthers
from gantrymq.workers.scheduler.othersettled import OtherSettled
from gantrymq.workers.scheduler.timeline import STEP_MS, Steps, Timeline, shift_after_boot

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.shm.board import Board
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.imported import Imported
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.scheduler.delaylevels import DelayLevels
    from gantrymq.workers.scheduler.delivery import Delivery
    from gantrymq.workers.scheduler.timers import Timers

#: How often, from one second after the start on (DT-17); simulated machines do it more often.
interval_ns = 10_000_000_000
FIRST_NS: Final = 1_000_000_000
#: While nothing may be counted.
AGAIN_NS: Final = 100_000_000
#: Buckets that one step makes durable.
BUCKETS_AT_ONCE: Final = 4


def _after_another_broker(note: Note, imported: Imported) -> Note:
    """Where to go on: the clock of the note, what waits by what that broker has settled.

    Its buckets hold what the other has delivered: they are made anew.
    """
    levels = {
        queue_id + 1: imported.first(topic, queue_id)
        for topic, queue_id in imported.queues
        if topic == SCHEDULE_TOPIC
    }
    return Note(
        scanned=imported.end,
        levels=levels,
        boot_id=note.boot_id,
        base_ns=note.base_ns,
        wall_ms=note.wall_ms,
        clock_boot_id=note.clock_boot_id,
        frozen=note.frozen,
        paces=note.paces,
        unsure=note.unsure,
        stamped_ms=note.stamped_ms,
        shift_ms=note.shift_ms,
        filed_ms=note.filed_ms,
        ahead_ms=note.ahead_ms,
    )


def scheduler_note(storage: Storage, others: OtherSettled, low: int) -> Note:
    """What is counted as done, by the note or by what another broker has settled since.

    `low`: where the log begins. No `config/delayOffset.json` is believed, ours or another broker's:
    without a note the log tells which of all parked records wait.
    """
    note = read_note(storage) or Note(scanned=low)
    if others.imported.end > note.scanned:
        return _after_another_broker(note, others.imported)
    return note


def timeline_of(note: Note, board: Board, clock: Clock, stamp: Callable[[], int] = int) -> Timeline:
    """The scheduler's clocks by what was noted of them, in this boot of the machine or before."""
    if note.clock_boot_id == board.boot_id.hex():
        steps = Steps(note.frozen, note.paces, note.unsure, note.stamped_ms)
        return Timeline(clock, note.base_ns, note.wall_ms, stamp, steps, note.shift_ms)
    base_ns = board.wall_ahead_ns  # the wall clock may have been set since the start
    even_ms = (clock.monotonic_ns() + base_ns) // 1_000_000
    filed_ms = max(note.filed_ms, note.delays_ms + 1)
    shift_ms = shift_after_boot(even_ms, filed_ms, note.ahead_ms)
    # Of steps it tells nothing: another boot's even wall was another.
    return Timeline(clock, base_ns, note.wall_ms, stamp, Steps(note.frozen), shift_ms)


class _Picture(NamedTuple):
    """A note that does not hold yet."""

    note: Note
    for_others: dict[int, int]
    appended: int  # where the log ended then
    seq: int  # that must be answered
    repeats: int  # how often copies were put again


class ProgressNote:
    """Writes `gantry/schedule.json` and `config/delayOffset.json`."""

    def __init__(self, storage: Storage, clock: Clock, board: Board, delivery: Delivery) -> None:
        self._storage = storage
        self._clock = clock
        self._board = board
        self._delivery = delivery
        self._boot_id = board.boot_id.hex()
        low = board.word(layout.BOARD_LOW)
        self.others = OtherSettled(storage)
        #: What the agent before has left.
        self.found = scheduler_note(storage, self.others, low)
        self._written = self.found
        self._for_others = OffsetsForOthers(storage, delivery)
        self._picture: _Picture | None = None
        self._next_ns = 0

    def follow(self, levels: DelayLevels, timers: Timers, time: Timeline) -> None:
        """Of these it takes its pictures."""
        self._levels = levels
        self._timers = timers
        self._time = time
        self._begun_ms = (time.wall_ms(), time.filed_ms() - 1)

    def keep_clock(self) -> None:
        """Before anything is delivered in a boot of the machine: what its even wall is.

        And at once, which storeTimestamps stand still, and steps of the wall clock. Otherwise who
        comes next takes a step for time that has passed, or the time of one pace for another's.
        Raises OSError.
        """
        known, steps = self._written, self._time.steps()
        stepped = abs(self._time.ahead_ms() - known.ahead_ms) > STEP_MS
        same_boot = known.clock_boot_id == self._boot_id
        told = known.frozen == steps.frozen and known.unsure == steps.unsure
        if same_boot and told and not stepped:
            return
        note = replace(known, **self._clock_now())  # what it counts stays, and of which boot
        write_note(self._storage, note)
        self._written = note

    def _clock_now(self) -> dict[str, Any]:
        """What a note says of clocks."""
        time = self._time
        steps = asdict(time.steps())
        return steps | {
            "clock_boot_id": self._boot_id,
            "base_ns": time.base_ns,
            "wall_ms": time.wall_ms(),
            "shift_ms": time.shift_ms,
            "filed_ms": time.filed_ms(),
            "ahead_ms": time.ahead_ms(),
        }

    # ------------------------------------------------------------------------------------ writing

    def keep(self, now_ns: int) -> int:
        """Take a picture when it is time, write it down when it holds; whether something was."""
        if not self._next_ns:
            self._next_ns = now_ns + min(FIRST_NS, interval_ns)
        if self._picture is None and now_ns >= self._next_ns:
            if self._timers.can_be_counted:
                self._next_ns = now_ns + interval_ns
                self._take_picture()
            else:
                self._next_ns = now_ns + min(AGAIN_NS, interval_ns)
        return int(self._write_if_sure())

    def write_last(self) -> bool:
        """At a clean stop; False as long as the disk has not all that is counted."""
        if self._picture is None and self._timers.can_be_counted:
            self._take_picture()
        self._write_if_sure()
        return self._picture is None

    def _take_picture(self) -> None:
        board, delivery = self._board, self._delivery
        if delivery.waits_again:
            return
        # Before anything that is not counted is put: its copy is behind this.
        scanned = self._timers.counted_from()
        done_ms = self._timers.done_ms()
        if any(done < put for done, put in zip(done_ms, self._put_ms(), strict=True)):
            return  # what came late, or was held, is put first: to count less would repeat others
        note = Note(
            scanned=scanned,
            levels=self._levels.offsets,
            absent=delivery.absent[:, :2].tolist(),
            boot_id=self._boot_id,
            made=(self._timers.made or f"{board.epoch:x}") if self._timers.next else "",
            timers_ms=done_ms[0],
            delays_ms=done_ms[1],
            timers_next=self._timers.next,
            timers_position=self._timers.last_position,
            timers_floor=self._timers.moved.floor,
            **self._clock_now(),
        )
        # All that is counted as read is before this: once the disk has it, no power cut puts other
        # records in its place.
        appended = board.word(layout.BOARD_APPENDED)
        for_others = self._for_others.now(note.levels)
        self._picture = _Picture(note, for_others, appended, delivery.put_seq, delivery.repeats)

    def _put_ms(self) -> tuple[int, int]:
        """The largest times of what was put by this agent, and perhaps by those before."""
        written = (self._written.timers_ms, self._written.delays_ms)
        put = [written, self._begun_ms, *(pool.put_ms for pool in self._timers.pools)]
        return max(at for at, _after in put), max(after for _at, after in put)

    def _write_if_sure(self) -> bool:
        if self._picture is None:
            return False
        note, for_others, appended, seq, repeats = self._picture
        delivery = self._delivery
        if delivery.repeats != repeats:  # what it counts goes up under other numbers
            self._picture = None
            self._next_ns = 0
            return False
        durable = self._board.word(layout.BOARD_DURABLE)
        if delivery.answered_seq < seq or durable < max(delivery.end, appended):
            return False
        if not self._timers.buckets.sync_some(BUCKETS_AT_ONCE):
            return True
        self._picture = None
        self._for_others.write(for_others, self._clock.wall_ms())
        if not (
            note.says_more_than(self._written) or self._timers.buckets.has_passed(note.counted_ms)
        ):
            return False
        mark("scheduler.before_note")
        if note.made:
            self._timers.belong_to(note.made)
            note = replace(note, buckets=self._timers.buckets.sizes(note.counted_ms))
        write_note(self._storage, note)
        self._written = note
        self._timers.counted(note.made, note.counted_ms)
        mark("scheduler.after_note")
        return True

    def wait_ns(self, now_ns: int) -> int:
        """How long nothing is to be written."""
        if self._picture is not None:
            return 10_000_000
        return max(1, self._next_ns - now_ns)
