"""`store verify --salvage`: all that is whole comes over, the rest is named (ADR 0014)."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.brokerd.lock import acquire
from gantrymq.brokerd.salvage import Salvaged, salvage
from gantrymq.brokerd.salvage.plan import TAG
from gantrymq.brokerd.verify import verify
from gantrymq.shm.errors import StoreBusy
from gantrymq.shm.record import Record
from gantrymq.shm.segment import open_log
from gantrymq.shm.storage import PosixStorage
from tests.support.planting import Planter
from tests.support.small_stores import SEGMENT_BYTES, write_settings

Key = tuple[str, int, int]
Damage = Callable[[Planter], None]


@pytest.fixture
def store(varied_store: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    (tmp_path / "home").mkdir()
    write_settings(tmp_path / "home")
    return Path(shutil.copytree(varied_store, tmp_path / "home" / "store"))


def records(root: Path) -> dict[int, Record]:
    """Every record of a sound log, by its position."""
    log = open_log(PosixStorage(str(root)), segment_bytes=SEGMENT_BYTES)
    start = log.segments[0].base
    return {at: item for at, item in log.scan(start) if isinstance(item, Record)}


def key_of(record: Record) -> Key:
    return record.topic, record.queue_id, record.queue_offset


def hit(damaged: Path, sound: dict[int, Record]) -> set[int]:
    """Positions of the records whose bytes are not what they were, by comparison alone."""
    found = set()
    for position, record in sound.items():
        base = position // SEGMENT_BYTES * SEGMENT_BYTES
        path = damaged / f"commitlog/{base:020d}"
        data = path.read_bytes() if path.exists() else b""
        whole = data[position - base : position - base + record.total_size]
        if whole != ORIGINAL[base][position - base : position - base + record.total_size]:
            found.add(position)
    return found


ORIGINAL: dict[int, bytes] = {}


def one_bit(planter: Planter) -> None:
    """A record amid a segment."""
    name = planter.segments[1]
    planter.flip(name, planter.records[name][7][0] + 60)


def many_bits(planter: Planter) -> None:
    """Fifty places all over the log, heads and lengths too."""
    for _ in range(50):
        name = planter.random.choice(planter.segments)
        place, size = planter.random.choice(planter.records[name][:-1])
        planter.flip(name, place + planter.random.randrange(size))


def first_record(planter: Planter) -> None:
    planter.flip(planter.segments[0], 0)


def last_records(planter: Planter) -> None:
    """The log's end, where no sound record follows."""
    name = planter.segments[-1]
    for place, _size in planter.records[name][-4:-1]:
        planter.flip(name, place + 50)


def zeroed_run(planter: Planter) -> None:
    name = planter.segments[2]
    start, end = planter.records[name][3][0], planter.records[name][40][0]
    planter.patch(name, start, bytes(end - start))


def a_filler(planter: Planter) -> None:
    name = planter.segments[1]
    planter.flip(name, planter.records[name][-1][0] + 5)


def missing_segment(planter: Planter) -> None:
    planter.remove(planter.segments[2])


def missing_last_segment(planter: Planter) -> None:
    planter.remove(planter.segments[-1])


def cut_segment(planter: Planter) -> None:
    planter.write(planter.segments[3], planter.kept[planter.segments[3]][:20_000])


def swapped_segments(planter: Planter) -> None:
    """Everything in them is at a wrong place: lost."""
    first, second = planter.segments[1:3]
    planter.write(first, planter.kept[second])
    planter.write(second, planter.kept[first])


def no_queues(planter: Planter) -> None:
    """Damage, and no ConsumeQueue to tell what was there."""
    many_bits(planter)
    zeroed_run(planter)
    for name in planter.below("consumequeue/"):
        planter.remove(name)


def everything_at_once(planter: Planter) -> None:
    no_queues(planter)
    missing_segment(planter)
    for name in planter.below("config/") + planter.below("gantry/"):
        data = planter.kept[name]
        if data:
            planter.write(name, data[: len(data) // 2])


DAMAGES: list[Damage] = [
    one_bit, many_bits, first_record, last_records, zeroed_run, a_filler, missing_segment,
    missing_last_segment, cut_segment, swapped_segments, no_queues, everything_at_once,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_is_whole_comes_over(store: Path, tmp_path: Path, seed: int, damage: Damage) -> None:
    """Same bytes at the same place; the rest is markers; the new store verifies."""
    sound = records(store)
    planter = Planter(store, seed)
    ORIGINAL.clear()
    ORIGINAL.update({int(n.rpartition("/")[2]): planter.kept[n] for n in planter.segments})
    damage(planter)
    gone = hit(store, sound)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}

    done = salvage(store, tmp_path / "new")

    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    report = verify(tmp_path / "new")
    assert report.ok, f"{report}\n{done}"
    found = records(tmp_path / "new")
    kept = {at: record for at, record in sound.items() if at not in gone}
    assert {at: found[at] for at in kept} == kept
    assert done.records == len(kept)
    others = [record for at, record in found.items() if at not in kept]
    assert all(
        not any(r.body) and (r.transaction or r.property_map()["TAGS"] == TAG) for r in others
    )
    require_told(done, {key_of(sound[at]) for at in gone}, others)


def require_told(done: Salvaged, lost: set[Key], markers: list[Record]) -> None:
    """Each marker is told as a loss, and is one."""
    told = {
        (name.rpartition("@")[0], int(name.rpartition("@")[2]), offset)
        for item in done.lost
        for name, ranges in item.queues.items()
        for first, last in ranges
        for offset in range(first, last + 1)
    }
    assert told == {key_of(marker) for marker in markers if not marker.transaction}
    assert told <= lost
    assert sum(item.records for item in done.lost) == len(told)
    assert bool(done.lost) == bool(markers) or not lost or not told


def test_with_queues_each_lost_record_is_known(store: Path, tmp_path: Path, seed: int) -> None:
    """Units tell where each was: its marker has the same place and size."""
    sound = records(store)
    planter = Planter(store, seed)
    ORIGINAL.update({int(n.rpartition("/")[2]): planter.kept[n] for n in planter.segments})
    for damage in (many_bits, missing_segment, last_records):
        damage(planter)
    gone = hit(store, sound)
    done = salvage(store, tmp_path / "new")
    found = records(tmp_path / "new")
    assert found.keys() == sound.keys()
    assert [(key_of(found[at]), found[at].total_size) for at in sorted(gone)] == [
        (key_of(sound[at]), sound[at].total_size) for at in sorted(gone)
    ]
    assert sum(item.records for item in done.lost) == len(gone)
    assert done.unplaced == 0
    assert f"{len(gone)} known to be lost" in str(done)


def test_a_sound_store_comes_over_whole(varied_store: Path, tmp_path: Path) -> None:
    done = salvage(varied_store, tmp_path / "new")
    assert (done.lost, done.files, done.unplaced) == ([], {}, 0)
    for name in sorted(p.name for p in (varied_store / "commitlog").iterdir()):
        new = (tmp_path / "new" / "commitlog" / name).read_bytes()
        assert new == (varied_store / "commitlog" / name).read_bytes()
    offsets = json.loads((tmp_path / "new/config/topics.json").read_text())
    assert offsets == json.loads((varied_store / "config/topics.json").read_text())


def test_a_place_that_is_taken_is_refused(varied_store: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with pytest.raises(FileExistsError, match="is there already"):
        salvage(varied_store, tmp_path / "new")


def test_a_held_store_is_refused(store: Path, tmp_path: Path) -> None:
    held = acquire(store, 0.0)
    try:
        with pytest.raises(StoreBusy):
            salvage(store, tmp_path / "new")
    finally:
        held.close()
    assert not (tmp_path / "new").exists()


def test_seeds_of_bits(store: Path, tmp_path: Path, seed: int) -> None:
    """Three other draws of fifty bits."""
    sound = records(store)
    for number in range(3):
        planter = Planter(store, random.Random(seed + number).randrange(1 << 30))
        many_bits(planter)
        done = salvage(store, tmp_path / str(number))
        assert verify(tmp_path / str(number)).ok
        assert records(tmp_path / str(number)).keys() == sound.keys()
        assert sum(item.records for item in done.lost) + done.records == len(sound)
        planter.take_back()


def test_all_is_on_the_disk_before_it_has_its_name(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut leaves the whole new store, or none; the name itself is synced too."""
    done: list[str] = []

    def fsync(descriptor: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real_fsync(descriptor)

    def rename(old: Path, new: Path) -> Path:
        if str(old).endswith(".partial"):
            held = {str(path) for path in old.rglob("*")} | {str(old)}
            assert sorted(held.difference(done)) == []
            done.append("renamed")
        return real_rename(old, new)

    real_fsync, real_rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    target = store.parent / "saved"
    salvage(store, target)
    assert target.is_dir()
    assert done[done.index("renamed") + 1 :] == [str(target.parent)]
