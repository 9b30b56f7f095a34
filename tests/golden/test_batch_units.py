"""Queues of a topic of type BatchCQ, made again from a real RocketMQ's log (SF-75, SF-77, SF-89).

RocketMQ's own units are completed byte for byte; ours have a unit for each message of its batches.
"""

from __future__ import annotations

import errno
import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from gantrymq.brokerd import config, epoch
from gantrymq.brokerd.batchunits import FILE_BYTES
from gantrymq.brokerd.metadata import Metadata, _queues_by_topic
from gantrymq.brokerd.rebuild import bring_up_to_date, rebuild
from gantrymq.brokerd.recovered import Recovered
from gantrymq.brokerd.recovery import recover
from gantrymq.brokerd.salvage import salvage
from gantrymq.brokerd.verify import verify
from gantrymq.shm import layout
from gantrymq.shm.configfile import parse_config
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.queuenames import MEMBERS
from gantrymq.shm.storage import PosixStorage, Storage, read_file
from tests.support.batchqueues import SETS, TOPIC, Place, messages_of, place_of, unit_files
from tests.support.faults import Fault, FaultPlan, KilledError, kill_at
from tests.support.golden import GoldenStore, dump_lines
from tests.support.simclock import SimClock
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

Golden = Callable[[str], GoldenStore]
UNIT = layout.BATCH_CQ_UNIT.size


def come(golden: GoldenStore, storage: Storage | None = None) -> Recovered:
    """What a start makes of the store before any agent runs."""
    given = {
        "mapped_file_size_commit_log": golden.segment_bytes,
        "mapped_file_size_consume_queue": int(golden.settings["mappedFileSizeConsumeQueue"]),
    }
    settings = config.load(given=given, environment={}).settings
    return recover(storage or PosixStorage(str(golden.store)), settings, None)


def files_of(golden: GoldenStore, queue: int = 0) -> list[Path]:
    return sorted((golden.store / "batchconsumequeue" / TOPIC / str(queue)).iterdir())


def lose_all(golden: GoldenStore) -> None:
    for path in files_of(golden):
        path.unlink()


def lose_a_file(golden: GoldenStore) -> None:
    """What a kill leaves that comes before the file is there."""
    files_of(golden)[-1].unlink()


def cut_a_file(golden: GoldenStore) -> None:
    """Half copied, or cut by another file system: no setting gives such a length."""
    with files_of(golden)[-1].open("r+b") as file:
        file.truncate(30)


def cut_the_first(golden: GoldenStore) -> None:
    """Its length tells nothing of the others'."""
    with files_of(golden)[0].open("r+b") as file:
        file.truncate(2 * UNIT)


def lag(golden: GoldenStore) -> None:
    """RocketMQ dispatches behind its log: two units of each queue lack."""
    for queue in (0, 1):
        path = [path for path in files_of(golden, queue) if any(path.read_bytes())][-1]
        data = bytearray(path.read_bytes())
        end = len(data.rstrip(b"\0")) + UNIT - 1
        end -= end % UNIT
        start = max(0, end - 2 * UNIT)
        data[start:end] = bytes(end - start)
        path.write_bytes(data)


def run_ahead(golden: GoldenStore) -> None:
    """A power cut has taken records whose units were on the disk."""
    lag(golden)
    end = max(line["physicalOffset"] + line["size"] for line in dump_lines(golden.name, "record"))
    unit = layout.BATCH_CQ_UNIT.pack(
        physical_offset=end, size=300, tags_code=1, store_timestamp=2, base_offset=999,
        batch_size=7, compacted_offset=-1, reserved=0,
    )  # fmt: skip
    for queue in (0, 1):
        path = files_of(golden, queue)[-1]
        data = path.read_bytes()
        used = -(-len(data.rstrip(b"\0")) // UNIT) * UNIT
        path.write_bytes((data[:used] + unit).ljust(len(data), b"\0")[: len(data)])


@mends("S289")
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("damage", [lag, lose_a_file, run_ahead, cut_a_file, cut_the_first])
def test_a_rocketmq_s_own_units_are_completed_as_it_writes_them(
    own_copy: Golden, name: str, damage: Callable[[GoldenStore], None]
) -> None:
    golden = own_copy(name)
    before = unit_files(golden)
    damage(golden)
    assert unit_files(golden) != before
    come(golden)
    assert unit_files(golden) == before


@pytest.mark.parametrize("name", SETS)
def test_units_of_a_topic_without_any_are_made_of_the_log(own_copy: Golden, name: str) -> None:
    """In files of RocketMQ's default length, for no file tells another one."""
    golden = own_copy(name)
    before = b"".join(path.read_bytes() for path in files_of(golden))
    shutil.rmtree(golden.store / "batchconsumequeue")
    come(golden)
    (path,) = files_of(golden)
    data = path.read_bytes()
    assert len(data) == FILE_BYTES
    assert data.rstrip(b"\0") == before.rstrip(b"\0")


def placed(name: str) -> dict[Place, tuple[int, int]]:
    """Log position and size of the record of each message."""
    sizes = {line["physicalOffset"]: line["size"] for line in dump_lines(name, "record")}
    return {
        place_of(row): (row["physical_offset"], sizes[row["physical_offset"]])
        for row in messages_of(name)
    }


def member_units(storage: Storage) -> dict[Place, tuple[int, int]]:
    """What the member queues say of that."""
    found: dict[Place, tuple[int, int]] = {}
    for queue in storage.list(f"{MEMBERS}/{TOPIC}"):
        folder = f"{MEMBERS}/{TOPIC}/{queue}"
        for file in storage.list(folder):
            data = read_file(storage, f"{folder}/{file}")
            for at in range(0, len(data), layout.CQ_UNIT_BYTES):
                unit = layout.CQ_UNIT.unpack(data, at)
                if unit["size"]:
                    offset = (int(file) + at) // layout.CQ_UNIT_BYTES
                    found[int(queue), offset] = (unit["physical_offset"], unit["size"])
    return found


@mends("S289")
def test_files_behind_one_that_is_missing_or_cut_are_made_again(own_copy: Golden) -> None:
    """Of two units each; no RocketMQ starts with what is behind a gap."""
    golden = own_copy(SETS[0])
    for queue in (0, 1):
        (path,) = files_of(golden, queue)
        units = path.read_bytes().rstrip(b"\0")
        for at in range(0, len(units), 2 * UNIT):
            part = units[at : at + 2 * UNIT].ljust(2 * UNIT, b"\0")
            (path.parent / f"{at:020d}").write_bytes(part)
    come(golden)
    whole = unit_files(golden)
    files = files_of(golden)
    assert len(files) > 3
    for damaged in (files[1], files[2], files[-1]):
        damaged.unlink()
        come(golden)
        assert unit_files(golden) == whole
        damaged.write_bytes(damaged.read_bytes()[:77])
        come(golden)
        assert unit_files(golden) == whole


def disk_of(golden: GoldenStore) -> Disk:
    """A simulated disk with the store's truth, and RocketMQ's own units."""
    disk = Disk(file_bytes_max=golden.segment_bytes)
    written = SimStorage(disk)
    for path in sorted(golden.store.rglob("*")):
        inside = str(path.relative_to(golden.store))
        if path.is_file() and inside.startswith(("commitlog", "config", "batchconsumequeue")):
            file = written.create(inside)
            file.write_at(path.read_bytes(), 0)
    return disk


@mends("S288")
@pytest.mark.usefixtures("nothing_reaches_the_disk")
def test_units_that_a_failed_sync_has_dropped_are_written_again(own_copy: Golden) -> None:
    """P3: a start whose sync fails; the next one finds its units, and makes them durable."""
    golden = own_copy(SETS[0])
    theirs = unit_files(golden)
    lag(golden)
    disk = disk_of(golden)
    for inode in filter(None, disk.names.entries.values()):
        inode.sync()
    for at in count(1):
        faults = FaultPlan([Fault(at, error=errno.EIO, kinds=("sync",), under="batchconsumequeue")])
        tried = SimStorage(disk.clone(), "supervisor", faults)
        with suppress(OSError):
            come(golden, tried)
        if not faults.met:
            break
        come(golden, SimStorage(tried.disk))
        tried.disk.power_cut(random.Random(at))
        left = SimStorage(tried.disk)
        assert {path: read_file(left, f"batchconsumequeue/{path}") for path in theirs} == theirs
    assert at > 2


@mends("S300")
@pytest.mark.usefixtures("nothing_reaches_the_disk")
def test_units_that_a_failed_sync_has_left_behind_the_end_go_with_the_next_start(
    own_copy: Golden,
) -> None:
    """P3: the page cache has zeroes there, and the disk has units."""
    golden = own_copy(SETS[0])
    for queue in (0, 1):
        for path in files_of(golden, queue):
            data = path.read_bytes().rstrip(b"\0")
            end = -(-len(data) // UNIT) * UNIT
            stale = data[end - UNIT : end] * 30  # in other sectors, too
            path.write_bytes((data[:end] + stale).ljust(50 * UNIT, b"\0"))
    disk = disk_of(golden)
    for each in filter(None, disk.names.entries.values()):
        each.sync()
    name = f"batchconsumequeue/{TOPIC}/0/{0:020d}"
    fails = Fault(1, error=errno.EIO, kinds=("sync",), under=name)
    with suppress(OSError):
        come(golden, SimStorage(disk, "supervisor", FaultPlan([fails])))
    inode = disk.names.entries[name]
    assert inode is not None
    assert (inode.memory[: inode.length] != inode.durable[: inode.length]).any()
    come(golden, SimStorage(disk))
    assert (inode.memory[: inode.length] == inode.durable[: inode.length]).all()


@pytest.mark.parametrize("name", SETS)
def test_a_start_can_be_killed_at_every_storage_call(own_copy: Golden, name: str) -> None:
    """P11: the next one comes to the same queues, RocketMQ's and ours."""
    golden = own_copy(name)
    theirs = unit_files(golden)
    lag(golden)
    disk = disk_of(golden)
    calls = 0
    for at in count(1):
        tried = SimStorage(disk.clone(), "supervisor", FaultPlan([kill_at(at)]))
        with suppress(KilledError):
            come(golden, tried)
        again = SimStorage(tried.disk)
        found = come(golden, again)
        assert member_units(again) == placed(name)
        ends = {q: 1 + max(at for queue, at in placed(name) if queue == q) for q in (0, 1)}
        assert {q: found.queues[TOPIC, q] for q in ends} == {q: (n, n, 0) for q, n in ends.items()}
        assert {
            path: read_file(again, f"batchconsumequeue/{path}") for path in theirs
        } == theirs
        assert TOPIC not in again.list("consumequeue")
        calls = at
        if not tried.faults.met:
            break
    assert calls > 20


def test_a_topic_that_topics_json_has_lost_is_of_that_type_again(own_copy: Golden) -> None:
    """HO-64: its inner batches say so; else the reader would stop at the first of them."""
    golden = own_copy("batch")
    path = golden.store / "config" / "topics.json"
    content = parse_config(path.read_text())
    del content["topicConfigTable"][TOPIC]
    path.write_text(json.dumps(content))
    storage = PosixStorage(str(golden.store))
    before = unit_files(golden)
    found = come(golden)
    assert member_units(storage) == placed("batch")
    settings = config.load(given={"board_queues_max": 8192}, environment={}).settings
    metadata = Metadata(storage, settings, SimClock(0))
    metadata.load()
    metadata._adopt(found, _queues_by_topic(found))
    kept = parse_config(path.read_text())["topicConfigTable"][TOPIC]
    assert kept["attributes"] == {"queue.type": "BatchCQ"}
    assert unit_files(golden) == before


def test_a_topic_of_the_wrong_type_is_refused_by_name(own_copy: Golden) -> None:
    golden = own_copy("batch")
    path = golden.store / "config" / "topics.json"
    path.write_text(path.read_text().replace("BatchCQ", "SimpleCQ"))
    with pytest.raises(Incompatible, match="topic BcqT has, or had, inner batches"):
        come(golden)


@pytest.mark.parametrize("first", [1, 2])
def test_queues_of_a_log_without_its_first_segments_begin_where_it_does(
    own_copy: Golden, first: int
) -> None:
    """SF-65, SF-70: amid a batch's messages nobody begins; files of removed records go."""
    golden = own_copy("batch-533")
    segments = sorted((golden.store / "commitlog").iterdir())
    for path in segments[:first]:
        path.unlink()
    low = int(segments[first].name)
    kept = {place: at for place, at in placed("batch-533").items() if at[0] >= low}
    assert kept
    assert len(kept) < len(placed("batch-533"))
    shutil.rmtree(golden.store / "batchconsumequeue")
    found = come(golden)
    filler = (0, layout.CQ_FILLER_SIZE)
    units = member_units(PosixStorage(str(golden.store)))
    assert {place: at for place, at in units.items() if at != filler} == kept
    for queue in {queue for queue, _offset in kept}:
        assert found.queues[TOPIC, queue][2] == min(at for q, at in kept if q == queue)
        data = files_of(golden, queue)[0].read_bytes()
        assert layout.BATCH_CQ_UNIT.unpack(data)["physical_offset"] >= low


def taken_over(golden: GoldenStore) -> GoldenStore:
    """As a broker of ours leaves it that was started and stopped."""
    given = {**golden.sizes, "board_queues_max": 8192}
    configuration = config.load(given=given, environment={})
    storage = PosixStorage(str(golden.store))
    _life, configuration = epoch.begin(storage, configuration)
    bring_up_to_date(storage, configuration.settings, None)
    lines = "".join(f"{name} = {value}\n" for name, value in given.items())
    (golden.directory / "gantrymq.toml").write_text(lines)
    return golden


@pytest.mark.parametrize("name", SETS)
def test_a_rocketmq_may_go_on_with_batches(own_copy: Golden, name: str) -> None:
    """Behind what we knew of the log lies more of it, with inner batches."""
    golden = own_copy(name)
    theirs = unit_files(golden)
    aside = golden.directory / "aside"
    aside.mkdir()
    later = sorted((golden.store / "commitlog").iterdir())[2:]
    for path in later:
        path.rename(aside / path.name)
    taken_over(golden)
    storage = PosixStorage(str(golden.store))
    end = int(later[0].name)
    known = {place: at for place, at in placed(name).items() if at[0] < end}
    assert 0 < len(known) < len(placed(name))
    assert member_units(storage) == known
    for path in later:
        (aside / path.name).rename(path)
    come(golden)
    assert member_units(storage) == placed(name)
    assert unit_files(golden) == theirs


def test_everything_derived_of_such_a_topic_is_made_again(own_copy: Golden) -> None:
    """P14."""
    golden = taken_over(own_copy("batch"))
    before = member_units(PosixStorage(str(golden.store)))
    done = rebuild(golden.store)
    assert any(name.startswith(f"{MEMBERS}/{TOPIC}/") for name in done.deleted)
    assert member_units(PosixStorage(str(golden.store))) == before == placed("batch")
    assert verify(golden.store).ok


def test_what_is_sound_of_such_a_topic_is_salvaged(own_copy: Golden, tmp_path: Path) -> None:
    """ADR 0014: an inner batch that is damaged leaves a gap; all others keep their offsets."""
    golden = taken_over(own_copy("batch"))
    batch = [row for row in messages_of("batch") if place_of(row) == (0, 12)][0]
    position = batch["physical_offset"]
    base = position // golden.segment_bytes * golden.segment_bytes
    path = golden.store / "commitlog" / f"{base:020d}"
    data = bytearray(path.read_bytes())
    data[position - base + 200] ^= 1
    path.write_bytes(data)
    target = tmp_path / "salvaged" / "store"
    target.parent.mkdir()
    salvage(golden.store, target)
    kept = {place: at for place, at in placed("batch").items() if at[0] != position}
    filler = (0, layout.CQ_FILLER_SIZE)
    units = member_units(PosixStorage(str(target)))
    assert {place: at for place, at in units.items() if at != filler} == kept
    assert len(units) - len(kept) == len(placed("batch")) - len(kept) > 1
    report = verify(target)
    assert report.ok, report.findings


def test_verify_names_what_is_wrong_in_either_kind_of_queue(own_copy: Golden) -> None:
    golden = taken_over(own_copy("batch"))
    assert verify(golden.store, golden.settings_file).ok
    for path, at in ((files_of(golden)[0], UNIT + 30), (member_file(golden), 20 + 11)):
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
    (golden.store / "consumequeue" / TOPIC).mkdir()
    told = {(f.path.partition(f"/{TOPIC}")[0], f.what) for f in verify(golden.store).findings}
    assert told == {
        ("batchconsumequeue", "wrong unit 1"),
        (MEMBERS, "wrong unit"),
        ("consumequeue", "queue of a kind that is not its topic's"),
    }


def member_file(golden: GoldenStore) -> Path:
    return sorted((golden.store / MEMBERS / TOPIC / "0").iterdir())[0]
