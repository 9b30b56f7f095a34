"""A scheduler that starts on a full disk: what it takes over is whole, or is taken over again."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq.shm.codes import Role
from gantrymq.shm.storage import PosixFile, PosixStorage, mark_failed_change
from gantrymq.workers.scheduler.timerbuckets import DIRECTORY, bucket_names
from tests.support.parking import Life, at_message, level_message, origins
from tests.support.simclock import SimClock
from tests.support.trials import mends

if TYPE_CHECKING:
    from collections.abc import Callable

FAR_MS = 250_000
#: Files of the scheduler alone.
ITS_OWN = ("gantry/timers", "gantry/schedule.json", "config/delayOffset.json")


class Room:
    """Which of the scheduler's changes of the disk find no room: those numbers, from 1 on."""

    def __init__(self, full: range) -> None:
        self.full = full
        self.calls = 0

    def ask(self, name: str) -> None:
        """Fail where there is no room."""
        if not name.startswith(ITS_OWN):
            return
        self.calls += 1
        if self.calls in self.full:
            error = OSError(errno.ENOSPC, "no room", name)
            mark_failed_change(error)
            raise error

    def bound(self, true: Callable[..., object]) -> Callable[..., object]:
        """A call of a storage, or of a file of it, that asks for room first."""

        def asking(of: PosixFile | PosixStorage, *given: object) -> object:
            self.ask(of.name if isinstance(of, PosixFile) else str(given[-1]))
            return true(of, *given)

        return asking


def park_and_stop(directory: Path, clock: SimClock) -> list[int]:
    """What waits, and what is delivered; the split of a far minute was cut short by a kill."""
    life = Life(directory, clock)
    now_ms = clock.wall_ms()
    timers = [at_message(now_ms + ms) for ms in (500, 100_000, FAR_MS, FAR_MS + 1)]
    parked = life.park(*(level_message(1) for _ in range(20)), *timers)
    life.run_for(3_000)
    assert len(life.delivered()) == 21
    life.stop()
    far = f"{(now_ms + FAR_MS - 1) // 60_000}"
    assert far in bucket_names(life.storage.list(DIRECTORY))
    life.storage.create(f"{DIRECTORY}/{far}.00").close()
    return parked


def live_on(directory: Path, clock: SimClock, parked: list[int], room: Room) -> None:
    """Another life, in which all comes once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PosixFile, "write_at", room.bound(PosixFile.write_at))
        for name in ("create", "rename", "unlink"):
            patch.setattr(PosixStorage, name, room.bound(getattr(PosixStorage, name)))
        life = Life(directory, clock)
        life.run_for(20_000)
        assert len(life.delivered()) == 21
        life.run_for(FAR_MS)
        assert sorted(origins(life.delivered())) == sorted(parked)
        life.stop()


@mends("S26")
@pytest.mark.parametrize("most", [1, 8], ids=["once", "for-some-seconds"])
def test_a_start_without_room_delivers_nothing_again(tmp_path: Path, most: int) -> None:
    """P8, P10: whichever change of the disk finds no room, each message comes once."""
    room, at = Room(range(0)), 1
    while room.calls >= at - 1:
        room = Room(range(at, at + most))
        clock, directory = SimClock(), tmp_path / str(at)
        parked = park_and_stop(directory, clock)
        try:
            live_on(directory, clock, parked, room)
        except BaseException as error:
            raise AssertionError(f"change {at}: {error}") from error
        at += 1 + most // 4
    assert at > 10, "there are more changes than that"


@mends("S55")
@pytest.mark.parametrize("step_ms", [35_000, -35_000])
def test_the_first_scheduler_of_a_boot_knows_how_the_clocks_were_when_the_broker_started(
    tmp_path: Path, step_ms: int
) -> None:
    """P8: it comes late, and the wall clock was set meanwhile: that is no time that has passed."""
    life = Life(tmp_path, SimClock())
    life.agents.pop(Role.SCHEDULER)
    (position,) = life.park(level_message(1))
    life.clock.step_wall(step_ms)
    life.start(Role.SCHEDULER)
    life.run_for(900)
    assert not life.delivered()
    life.run_for(1200)
    assert origins(life.delivered()) == [position]
    life.stop()
