"""Known bugs of the scheduler that can be put into a run, as those of tests.sim.plants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gantrymq.brokerd import parkedholder
from gantrymq.shm import layout
from gantrymq.shm.schedulerwire import CANCELLED
from gantrymq.workers.origins import OriginScan
from gantrymq.workers.scheduler import strikes
from gantrymq.workers.scheduler.note import read_note
from gantrymq.workers.scheduler.progress import ProgressNote
from gantrymq.workers.scheduler.recalls import RecallDesk
from gantrymq.workers.scheduler.timeline import NS, Timeline
from gantrymq.workers.scheduler.timerbuckets import MINUTE_MS, TimerBuckets
from gantrymq.workers.scheduler.timermoved import Moved
from gantrymq.workers.scheduler.timers import Timers
from tests.sim.plants import put_over


def counted_before_durable() -> None:
    """The note counts copies that a power cut may take."""
    write = ProgressNote._write_if_sure

    def hasty(note: ProgressNote) -> bool:
        note._delivery.end = 0
        if note._picture is not None:
            note._picture = note._picture._replace(appended=0)
        return write(note)

    put_over(ProgressNote, "_write_if_sure", hasty)


def counted_before_answered() -> None:
    """The note counts copies that the writer may never take."""
    write = ProgressNote._write_if_sure

    def hasty(note: ProgressNote) -> bool:
        if note._picture is not None:
            note._picture = note._picture._replace(seq=-1)
        return write(note)

    put_over(ProgressNote, "_write_if_sure", hasty)


def counted_before_filed() -> None:
    """The note counts copies of timers that a start reads again."""

    def hasty(timers: Timers) -> int:
        return timers._board.word(layout.BOARD_APPENDED)

    put_over(Timers, "counted_from", hasty)


def origins_not_looked_for() -> None:
    """A start does not look which copies the log has."""

    def blind(scan: OriginScan) -> Any:  # noqa: ANN401
        del scan
        return np.zeros(0, np.int64)

    put_over(OriginScan, "origins", blind)


def a_millisecond_early() -> None:
    """Delays and points in time come a little too soon."""
    put_over(Timeline, "delay_ns", lambda time: time._clock.monotonic_ns() + time.base_ns + 2 * NS)
    put_over(Timeline, "wall_ms", lambda time: time._seen_ms + 1)
    until = Timeline.until_wall_ns
    put_over(Timeline, "until_wall_ns", lambda time, due_ms: until(time, due_ms - 1))


def by_the_wall_clock() -> None:
    """Delays pass by the wall clock, whatever it was set to."""
    put_over(Timeline, "delay_ns", lambda time: time._clock.wall_ms() * NS)


def cancelled_before_stored() -> None:
    """Who recalls is answered before the log has it."""
    recall = RecallDesk._recall

    def hasty(desk: RecallDesk, asked: Any, position: int, ms: int) -> int:  # noqa: ANN401
        done = recall(desk, asked, position, ms)
        if done:
            desk._close(asked, CANCELLED)
            desk._peers[asked.session].asked.append(asked)
        return done

    put_over(RecallDesk, "_recall", hasty)


def recalls_forgotten() -> None:
    """A recall in a bucket does not take out what it names."""
    put_over(strikes, "struck", lambda *_: np.zeros(0, np.int64))


def lost_at_the_minute() -> None:
    """What is due when a minute is full falls between two buckets."""
    read = TimerBuckets._read

    def short(buckets: TimerBuckets, name: str, at: int, end: int) -> Any:  # noqa: ANN401
        entries = read(buckets, name, at, end)
        return entries[entries["ms"] % MINUTE_MS != 0]

    put_over(TimerBuckets, "_read", short)


def freed_when_asked() -> None:
    """Retention takes what it has asked to be moved for moved."""

    def hasty(storage: Any) -> Any:  # noqa: ANN401
        note = read_note(storage)
        return note and replace(note, timers_floor=1 << 62)

    put_over(parkedholder, "read_note", hasty)


def moved_twice() -> None:
    """That a bucket's timers were appended again is forgotten once."""
    add = Moved.add

    def forgetful(moved: Moved, name: str) -> None:
        known = vars(moved).setdefault("_known", set())
        if name in known:
            add(moved, name)
        known.add(name)

    put_over(Moved, "add", forgetful)


def awake_while_catching_up() -> None:
    """What is due keeps the scheduler awake before it can be delivered."""
    sleep_ns = Timers.sleep_ns

    def restless(timers: Timers) -> int:
        next_offset, timers.next = timers.next, max(timers.next, timers._catch_up)
        try:
            return sleep_ns(timers)
        finally:
            timers.next = next_offset

    put_over(Timers, "sleep_ns", restless)


PLANTS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        counted_before_durable,
        counted_before_answered,
        counted_before_filed,
        origins_not_looked_for,
        a_millisecond_early,
        by_the_wall_clock,
        cancelled_before_stored,
        recalls_forgotten,
        lost_at_the_minute,
        freed_when_asked,
        moved_twice,
        awake_while_catching_up,
    )
}
