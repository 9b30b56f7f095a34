"""Files of timers that rot, are cut or go: each message comes once all the same, and none early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.brokerd.parkedholder import ParkedHolder
from gantrymq.brokerd.verify import verify
from gantrymq.shm.codes import Role
from gantrymq.shm.record import Record
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


def told_by(life: Life) -> list[tuple[str, dict[str, object]]]:
    """Events of the scheduler."""
    return [(event, fields) for _level, event, fields in life.tables[Role.SCHEDULER].notes]


@mends("S147")
@pytest.mark.parametrize("damage", [cut, empty])
def test_what_is_cut_while_the_scheduler_works_comes_after_the_next_start(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """The note passes its minute, and the file goes: it is told before, and the log read again."""
    clock, directory = SimClock(), tmp_path / "store"
    life, parked = park(directory, clock)
    (path, *_others) = buckets_of(life)
    kept = 2 if damage is cut else 0
    damage(path)
    life.run_for(LATE_MS)
    assert origins(life.delivered()) == [*parked[:kept], *parked[4:]]
    assert told_by(life) == [("timers_damaged", {"path": f"{DIRECTORY}/{path.name}"})]
    held = ParkedHolder(life.storage, life.board).lowest_position(0)
    assert held is not None, "retention leaves what the next start is to read"
    assert held.position <= parked[kept]
    life.stop()
    life = Life(directory, clock)
    life.run_for(5_000)
    assert sorted(origins(life.delivered())) == parked
    life.run_for(15_000)
    assert ParkedHolder(life.storage, life.board).lowest_position(0) is None
    life.stop()


def copy_over(first: Path, second: Path) -> None:
    """The later one's are gone, the earlier one's are there twice."""
    second.write_bytes(first.read_bytes())


def swap(first: Path, second: Path) -> None:
    """All are there, each in the other's file."""
    earlier, later = first.read_bytes(), second.read_bytes()
    first.write_bytes(later)
    second.write_bytes(earlier)


@mends("S148")
@pytest.mark.parametrize("damage", [copy_over, swap])
@pytest.mark.parametrize("at_work", [False, True])
def test_files_that_have_anothers_entries_are_damaged(
    tmp_path: Path, damage: Callable[[Path, Path], None], at_work: bool
) -> None:
    """Each message comes once and in its time all the same; at work, behind the next start."""
    clock, directory = SimClock(), tmp_path / "store"
    life, parked = park(directory, clock)
    first, second, *_others = buckets_of(life)
    assert first.stat().st_size == second.stat().st_size, "one could be the other by its length"
    wrong = {f"{DIRECTORY}/{path.name}" for path in ((first, second)[damage is copy_over :])}
    if at_work:
        damage(first, second)
        life.run_for(LATE_MS)
        assert {fields["path"] for _event, fields in told_by(life)} == wrong
        assert origins(life.delivered()) == (parked[:4] if damage is copy_over else [])
    life.stop()
    if not at_work:
        damage(first, second)
        assert set(found_damaged(directory)) == wrong
    life = Life(directory, clock)
    life.run_for(5_000 if at_work else LATE_MS)
    if not at_work:
        assert {fields["path"] for _event, fields in told_by(life)} == wrong
    assert sorted(origins(life.delivered())) == parked
    assert min(copy.store_timestamp - due_of(copy) for copy in life.delivered()) >= 0
    life.stop()
    assert found_damaged(directory) == []


def due_of(copy: Record) -> int:
    """When a message was to come."""
    return int(copy.property_map()["due"])


@mends("S149")
def test_what_is_nobodys_ends_no_scheduler(tmp_path: Path) -> None:
    """Nor retention; `store verify` names it."""
    clock, directory = SimClock(), tmp_path / "store"
    life, parked = park(directory, clock)
    (path, *_others) = buckets_of(life)
    life.stop()
    names = ["12x", f"{path.name}.bak", f"{path.name}~"]
    for name in names:
        path.with_name(name).write_bytes(path.read_bytes())
    assert found_damaged(directory) == sorted(f"{DIRECTORY}/{name}" for name in names)
    life = Life(directory, clock)
    life.run_for(5_000)
    held = ParkedHolder(life.storage, life.board).lowest_position(0)
    assert held is not None
    assert held.position == parked[0]
    life.run_for(LATE_MS)
    assert origins(life.delivered()) == parked
    assert told_by(life) == []
    life.stop()
    assert all(path.with_name(name).exists() for name in names)


@mends("S149")
def test_a_directory_in_a_files_place_is_named_and_moved_aside(tmp_path: Path) -> None:
    clock, directory = SimClock(), tmp_path / "store"
    life, parked = park(directory, clock)
    (path, *_others) = buckets_of(life)
    life.stop()
    path.unlink()
    path.mkdir()
    (path / "mine").write_bytes(b"1")
    assert found_damaged(directory) == [f"{DIRECTORY}/{path.name}"]
    life = Life(directory, clock)
    life.run_for(20_000)
    assert told_by(life) == [("timers_damaged", {"path": f"{DIRECTORY}/{path.name}"})]
    life.run_for(LATE_MS)
    assert origins(life.delivered()) == parked
    life.stop()
    aside = path.with_name(f"aside-{path.name}")
    assert (aside / "mine").read_bytes() == b"1"
    assert found_damaged(directory) == [f"{DIRECTORY}/{aside.name}"]
