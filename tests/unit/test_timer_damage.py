"""Files of timers that rot, are cut or go: each message comes once all the same, and none early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.brokerd.verify import verify
from gantrymq.shm.codes import Role
from gantrymq.workers.scheduler.timerbuckets import DIRECTORY, bucket_names
from gantrymq.workers.scheduler.timerpool import ENTRY
from tests.support.parking import Life, at_message, origins
from tests.support.simclock import SimClock
from tests.support.trials import mends

SOON_MS, LATE_MS = 70_000, 200_000


def buckets_of(life: Life) -> list[Path]:
    """Files of timers, the first one first."""
    root = Path(life.storage.root)
    return [root / DIRECTORY / name for name in sorted(bucket_names(life.storage.list(DIRECTORY)))]


def park(directory: Path, clock: SimClock) -> tuple[Life, list[int]]:
    """Timers in two minutes, filed and noted."""
    life = Life(directory, clock)
    now_ms = clock.wall_ms()
    parked = life.park(
        *(at_message(now_ms + SOON_MS + n) for n in range(4)),
        *(at_message(now_ms + LATE_MS + n) for n in range(4)),
    )
    life.run_for(15_000)
    assert len(buckets_of(life)) >= 2
    return life, parked


def found_damaged(directory: Path) -> list[str]:
    """Files of timers that `store verify` names."""
    return [one.path for one in verify(directory).findings if one.path.startswith(DIRECTORY)]


def flip_time(path: Path) -> None:
    """The second timer would come ten minutes or more early."""
    data = bytearray(path.read_bytes())
    data[ENTRY.itemsize + 2] ^= 0xFF
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Half of them are gone."""
    path.write_bytes(path.read_bytes()[: 2 * ENTRY.itemsize])


def empty(path: Path) -> None:
    """All are."""
    path.write_bytes(b"")


@mends("S137")
@pytest.mark.parametrize("damage", [flip_time, cut, empty, Path.unlink])
def test_damage_is_named_and_the_log_read_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """At a start; `store verify` names it before."""
    clock, directory = SimClock(), tmp_path / "store"
    life, parked = park(directory, clock)
    life.stop()
    assert found_damaged(directory) == []
    damage(buckets_of(life)[0])
    (path,) = found_damaged(directory)
    life = Life(directory, clock)
    life.run_for(20_000)
    assert life.delivered() == [], "none is early"
    told = [(event, fields) for _level, event, fields in life.tables[Role.SCHEDULER].notes]
    assert told == [("timers_damaged", {"path": path})]
    life.run_for(LATE_MS)
    assert origins(life.delivered()) == parked
    life.stop()
    assert found_damaged(directory) == []


@mends("S137")
def test_what_rots_while_the_scheduler_works_comes_after_the_next_start(tmp_path: Path) -> None:
    clock, directory = SimClock(), tmp_path / "store"
    life, parked = park(directory, clock)
    flip_time(buckets_of(life)[0])
    life.run_for(LATE_MS)
    assert origins(life.delivered()) == [parked[0], *parked[2:]]
    life.stop()
    life = Life(directory, clock)
    life.run_for(5_000)
    assert sorted(origins(life.delivered())) == parked
    life.stop()
