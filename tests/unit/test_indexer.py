"""The indexer over logs of this test: any keys, kills, other sizes, retention, bounded steps."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gantrymq.brokerd.config import Settings, load
from gantrymq.shm import layout, limits
from gantrymq.shm.indexnote import NOTE_FILE, Note, Shape, read_note, safe_time
from gantrymq.shm.indexreader import IndexReader
from gantrymq.shm.jsonsum import without_sum
from gantrymq.shm.notefile import write_content
from gantrymq.shm.record import Record
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.housekeeper import indexer
from gantrymq.workers.housekeeper.indexfiles import WRITE_BYTES, choose, next_name
from tests.support import cq_oracle, index_oracle
from tests.support.checkindex import check_index, check_kept_index
from tests.support.faults import FaultPlan, KilledError, Moment, kill_at
from tests.support.indexing import Indexing, index_bytes
from tests.support.keyed import SEGMENT_BYTES, write_keyed_log
from tests.support.sealed import segment_of, write_segment
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

SLOTS, ENTRIES = 64, 150


def settings(**more: object) -> Settings:
    sizes = {
        "mapped_file_size_commit_log": SEGMENT_BYTES,
        "max_message_size": 2048,
        "max_hash_slot_num": SLOTS,
        "max_index_num": ENTRIES,
    }
    return load(given={**sizes, **more}, environment={}).settings


def expected(store: Path, end: int, *, tags: bool = True) -> list[bytes]:
    records = cq_oracle.records(store / "commitlog", end)
    files = index_oracle.index_files(records, SLOTS, ENTRIES, tags=tags)
    return [file.encode() for file in files]


def indexed(store: Path, end: int, **more: object) -> Indexing:
    """A life that ends by a clean stop."""
    indexing = Indexing(PosixStorage(str(store)), settings(**more), end)
    indexing.stop()
    assert not indexing.table.failures
    return indexing


def starts_of(store: Path, end: int) -> list[int]:
    return [record.position for record in cq_oracle.records(store / "commitlog", end)]


@pytest.mark.parametrize("version", ["5.4.0", "5.3.3"])
def test_any_keys_have_their_entries(tmp_path: Path, seed: int, version: str) -> None:
    """SF-28, SF-61, SF-78 to SF-80, SF-118, SF-122: byte for byte what the rules alone say."""
    end = write_keyed_log(tmp_path, random.Random(seed), 4)
    indexed(tmp_path, end, target_version=version)
    wanted = expected(tmp_path, end, tags=version == "5.4.0")
    assert len(wanted) > 2
    assert index_bytes(tmp_path) == wanted


@pytest.fixture(params=["all at once", "a few at a time"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are written when they are all there, or long before their slots."""
    if request.param != "all at once":
        monkeypatch.setattr(indexer, "pending_max", 5)
        monkeypatch.setattr(indexer, "slots_after", 11)


@pytest.mark.usefixtures("pieces")
def test_the_log_may_grow_piece_by_piece(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    end = write_keyed_log(tmp_path, dice, 3)
    indexing = Indexing(PosixStorage(str(tmp_path)), settings(), 0)
    for position in sorted(dice.sample(starts_of(tmp_path, end), 40)):
        indexing.follow(position)
        indexing.run()
        assert index_bytes(tmp_path) == expected(tmp_path, position)
        assert indexing.board.word(layout.BOARD_INDEXED) == position
    indexing.follow(end)
    indexing.stop()
    assert index_bytes(tmp_path) == expected(tmp_path, end)


@pytest.mark.usefixtures("pieces")
def test_a_life_cut_at_any_step_is_gone_on_with(tmp_path: Path, seed: int) -> None:
    """LW-7: nothing is lost or doubled, and what was sure is not made again."""
    dice = random.Random(seed)
    end = write_keyed_log(tmp_path, dice, 4)
    ends = [*starts_of(tmp_path, end), end]
    at = 0
    for _ in range(12):
        at = dice.randrange(at, len(ends))
        indexing = Indexing(PosixStorage(str(tmp_path)), settings(), ends[at])
        for _ in range(dice.randrange(40)):
            indexing.indexer.do_work(indexing.clock.monotonic_ns())
            indexing.clock.advance(limits.INDEX_INTERVAL_NS)
        indexing.indexer.close()  # no stop: the files stay as they are
    before = read_note(PosixStorage(str(tmp_path)))
    indexed(tmp_path, end)
    assert index_bytes(tmp_path) == expected(tmp_path, end)
    kept = [path.name for path in sorted((tmp_path / "index").iterdir())]
    if before is not None:
        assert [name for name, _ in before[1].files] == kept[: len(before[1].files)]


def single_keys(counts: tuple[int, ...]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Sealed segments of so many records with one key each: their positions, their bytes."""
    number = 0
    for segment, count in enumerate(counts):
        parts = [f"UNIQ_KEY\x01{number + at:032X}\x02".encode() for at in range(count)]
        records = [Record(topic="orders", body=b"", properties=part) for part in parts]
        base = segment * SEGMENT_BYTES
        yield base, segment_of(records, SEGMENT_BYTES, base, sealed=True)[0]
        number += count


def write_log_of_single_keys(store: Path, counts: tuple[int, ...]) -> int:
    """Write such segments; returns the log's end."""
    for base, view in single_keys(counts):
        write_segment(store, base, view)
    return len(counts) * SEGMENT_BYTES


def test_keys_are_found_amid_a_flood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots are written now and then though more entries follow, and `indexed` says no more."""
    monkeypatch.setattr(indexer, "pending_max", 5)
    monkeypatch.setattr(indexer, "slots_after", 11)
    end = write_log_of_single_keys(tmp_path, (40, 40))
    storage, positions = PosixStorage(str(tmp_path)), starts_of(tmp_path, end)
    indexing = Indexing(storage, settings(max_index_num=10_000), end)
    reader = IndexReader(storage, Shape(SLOTS, 10_000))
    seen: list[int] = []
    while indexing.indexer.do_work(indexing.clock.monotonic_ns()):
        indexing.clock.advance(limits.INDEX_INTERVAL_NS // 8)
        indexed = indexing.board.word(layout.BOARD_INDEXED)
        if indexed in seen:
            continue
        seen.append(indexed)
        for number, position in enumerate(positions):
            if position < indexed:
                assert position in reader.positions("orders", f"{number:032X}")
    assert len(seen) > 4
    indexing.stop()


def test_a_note_may_end_where_a_file_has_been_begun(tmp_path: Path) -> None:
    """P14: a file without an entry is sure, for it was made for the record behind the note."""
    end = write_log_of_single_keys(tmp_path, (40, 40, 5))
    storage = PosixStorage(str(tmp_path))
    indexing = Indexing(storage, settings(max_index_num=61), SEGMENT_BYTES)
    agent, clock = indexing.indexer, indexing.clock
    while agent.do_work(clock.monotonic_ns()):
        pass  # a note of the first segment waits for the disk
    indexing.follow(end)
    clock.advance(indexer.interval_ns)
    while len(storage.list("index")) < 2:
        agent.do_work(clock.monotonic_ns())
    noted: list[Note] = []
    while agent.position < end or len(noted) < 2:
        clock.advance(indexer.interval_ns)
        agent.do_work(clock.monotonic_ns())
        known = read_note(storage)
        if known is not None and known[1] not in noted:
            noted.append(known[1])
            check_index(storage, end, -1, Counter())
    agent.close()
    assert [header.count for _name, header in noted[1].files] == [61, 1]
    indexed(tmp_path, end, max_index_num=61)


@pytest.mark.parametrize(
    "damage", ["note gone", "note cut", "other sizes", "entry", "header", "gone"]
)
def test_what_does_not_hold_is_made_again(tmp_path: Path, seed: int, damage: str) -> None:
    """P14."""
    end = write_keyed_log(tmp_path, random.Random(seed), 4)
    indexed(tmp_path, end, **({"max_hash_slot_num": 9} if damage == "other sizes" else {}))
    note = tmp_path / NOTE_FILE
    files = sorted((tmp_path / "index").iterdir())
    data = bytearray(files[-1].read_bytes())
    if damage == "note gone":
        note.unlink()
    elif damage == "note cut":
        note.write_bytes(note.read_bytes()[:-9])
    elif damage == "entry":
        data[40 + 4 * SLOTS + 20 + 19] ^= 1  # its predecessor
        files[-1].write_bytes(data)
    elif damage == "header":
        first = bytearray(files[0].read_bytes())
        first[9] ^= 1
        files[0].write_bytes(first)
    elif damage == "gone":
        files[1].unlink()
    indexed(tmp_path, end)
    assert index_bytes(tmp_path) == expected(tmp_path, end)


def half_noted_disk() -> Disk:
    """Two segments, and an index file that has entries of both and is noted for the first."""
    disk = Disk(file_bytes_max=SEGMENT_BYTES)
    storage = SimStorage(disk, "indexer")
    for base, view in single_keys((40, 15)):
        file = storage.create(f"commitlog/{base:020d}")
        file.write_at(view.data, 0)
        file.sync()
    storage.make_directory("gantry")
    for folder in ("commitlog", ""):
        storage.sync_directory(folder)
    Indexing(storage, settings(max_index_num=61), SEGMENT_BYTES).stop()
    life = Indexing(storage, settings(max_index_num=61), 2 * SEGMENT_BYTES)
    life.board.set_word(layout.BOARD_DURABLE, 0)  # nothing more becomes sure
    life.run()
    life.indexer.close()
    return disk


def test_a_power_cut_amid_a_start_takes_nothing_that_was_sure(seed: int) -> None:
    """P14, LW-7: a file that is gone on with is never shorter than its note says."""
    disk, dice = half_noted_disk(), random.Random(seed)
    known = read_note(SimStorage(disk, "oracle"))
    assert known is not None
    shape, note = known
    assert [header.count for _name, header in note.files] == [41]
    tried = 0
    while True:
        tried += 1
        cut = disk.clone()
        plan = FaultPlan((kill_at(tried, Moment.AFTER),))
        life = Indexing(SimStorage(cut, "indexer", plan), settings(max_index_num=61), 0)
        life.follow(2 * SEGMENT_BYTES)
        try:
            while life.indexer.do_work(life.clock.monotonic_ns()):
                pass
            break
        except KilledError:
            pass
        for _ in range(4):
            left = cut.clone()
            left.power_cut(dice)
            storage = SimStorage(left, "oracle")
            assert choose(storage, shape, 0, 2 * SEGMENT_BYTES) == note, f"behind change {tried}"
            check_index(storage, 2 * SEGMENT_BYTES, -1, Counter())
    assert tried > 3


def test_files_of_expired_records_go(tmp_path: Path, seed: int) -> None:
    """SF-83: all but the newest may; those that are left stay as they are, a start later too."""
    end = write_keyed_log(tmp_path, random.Random(seed), 5)
    indexing = Indexing(PosixStorage(str(tmp_path)), settings(), end)
    indexing.run()
    before = index_bytes(tmp_path)
    low = 2 * SEGMENT_BYTES
    gone = sum(int.from_bytes(data[24:32], "big") < low for data in before[:-1])
    assert 0 < gone < len(before)
    indexing.board.set_word(layout.BOARD_LOW, low)
    for base in range(0, low, SEGMENT_BYTES):
        (tmp_path / "commitlog" / f"{base:020d}").unlink()
    indexing.stop()
    assert index_bytes(tmp_path) == before[gone:]
    again = Indexing(PosixStorage(str(tmp_path)), settings(), end, low=low)
    again.stop()
    assert index_bytes(tmp_path) == before[gone:]
    again.board.set_word(layout.BOARD_LOW, end)
    assert again.indexer.drop_below(end) == len(before) - gone - 1
    assert index_bytes(tmp_path) == before[-1:]


@mends("S126")
@pytest.mark.parametrize("behind", [False, True], ids=["indexed", "not indexed yet"])
def test_keys_are_there_as_long_as_their_segments(tmp_path: Path, seed: int, behind: bool) -> None:
    """A stop amid retention's grace leaves segments below `low`; the next life begins with them."""
    end = write_keyed_log(tmp_path, random.Random(seed), 5)
    begun = SEGMENT_BYTES if behind else end
    indexing = Indexing(PosixStorage(str(tmp_path)), settings(), begun)
    indexing.run()
    indexing.board.set_word(layout.BOARD_LOW, 3 * SEGMENT_BYTES)
    indexing.follow(end)
    indexing.stop()
    assert index_bytes(tmp_path) == expected(tmp_path, end)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()  # it goes on; the indexer is replaced amid it
    again = Indexing(PosixStorage(str(tmp_path)), settings(), end, low=3 * SEGMENT_BYTES)
    again.stop()
    check_kept_index(again.storage, end, end, Counter())


@mends("S126")
@pytest.mark.parametrize("version", ["ours", "before"])
def test_segments_that_are_back_are_indexed_again(tmp_path: Path, seed: int, version: str) -> None:
    """By a power cut, or a stop amid the grace of a version that dropped keys first."""
    end = write_keyed_log(tmp_path, random.Random(seed), 5)
    indexing = Indexing(PosixStorage(str(tmp_path)), settings(), end)
    indexing.run()
    names = [f"{base:020d}" for base in range(0, 2 * SEGMENT_BYTES, SEGMENT_BYTES)]
    for name in names:
        (tmp_path / "commitlog" / name).rename(tmp_path / name)
    indexing.board.set_word(layout.BOARD_LOW, 2 * SEGMENT_BYTES)
    indexing.stop()
    for name in names:
        (tmp_path / name).rename(tmp_path / "commitlog" / name)
    if version == "before":
        note = without_sum(json.loads((tmp_path / NOTE_FILE).read_text()))
        del note["low"]
        write_content(indexing.storage, NOTE_FILE, note.pop("version"), note)
    assert index_bytes(tmp_path) != expected(tmp_path, end)
    indexed(tmp_path, end)
    assert index_bytes(tmp_path) == expected(tmp_path, end)


def test_records_that_expire_before_they_are_indexed(tmp_path: Path, seed: int) -> None:
    """It goes on with the log's first record."""
    end = write_keyed_log(tmp_path, random.Random(seed), 5)
    indexing = Indexing(PosixStorage(str(tmp_path)), settings(), SEGMENT_BYTES)
    indexing.run()
    for base in range(0, 3 * SEGMENT_BYTES, SEGMENT_BYTES):
        (tmp_path / "commitlog" / f"{base:020d}").unlink()
    indexing.board.set_word(layout.BOARD_LOW, 3 * SEGMENT_BYTES)
    indexing.follow(end)
    indexing.stop()
    assert not indexing.table.failures
    known = read_note(indexing.storage)
    assert known is not None
    assert known[1].position == end
    first = min(starts_of(tmp_path, end))
    assert first == 3 * SEGMENT_BYTES
    newest = index_bytes(tmp_path)[-1]
    assert int.from_bytes(newest[24:32], "big") > first


def test_a_stop_does_not_wait_for_ever(tmp_path: Path, seed: int) -> None:
    """What is left of a long log is for the next life."""
    end = write_keyed_log(tmp_path, random.Random(seed), 12)
    indexing = Indexing(PosixStorage(str(tmp_path)), settings(stop_timeout=1), end)
    indexing.table.stop = True
    while indexing.indexer.do_work(indexing.clock.monotonic_ns()):
        indexing.clock.advance(20_000_000)
    indexing.indexer.close()
    known = read_note(indexing.storage)
    assert known is not None
    assert 0 < known[1].position < end
    indexed(tmp_path, end)
    assert index_bytes(tmp_path) == expected(tmp_path, end)


def test_a_step_is_short(tmp_path: Path, seed: int) -> None:
    """The reader waits for one step at most: so many records, so many bytes."""
    end = write_keyed_log(tmp_path, random.Random(seed), 4)
    indexing = Indexing(PosixStorage(str(tmp_path)), settings(), end)
    positions = starts_of(tmp_path, end)
    steps, last = 0, 0
    while indexing.indexer.do_work(indexing.clock.monotonic_ns()):
        now = int(np.searchsorted(positions, indexing.indexer.position))
        assert now - last <= limits.INDEX_RECORDS
        steps, last = steps + 1, now
    assert steps > 10
    assert WRITE_BYTES <= 1 << 17


def test_nothing_is_called_sure_that_is_not_durable(tmp_path: Path, seed: int) -> None:
    end = write_keyed_log(tmp_path, random.Random(seed), 4)
    indexing = Indexing(PosixStorage(str(tmp_path)), settings(), end)
    indexing.board.set_word(layout.BOARD_DURABLE, 0)
    indexing.run()
    assert index_bytes(tmp_path) == expected(tmp_path, end)
    assert read_note(indexing.storage) is None
    indexing.board.set_word(layout.BOARD_DURABLE, end)
    indexing.stop()
    known = read_note(indexing.storage)
    assert known is not None
    assert known[1].position == end


def test_rocketmq_is_told_of_full_files(tmp_path: Path, seed: int) -> None:
    """SF-84, SF-96: what it keeps after a crash is full and synced."""
    end = write_keyed_log(tmp_path, random.Random(seed), 4)
    (tmp_path / "checkpoint").write_bytes(bytes(range(64)).ljust(4096, b"\0"))
    indexed(tmp_path, end)
    full = expected(tmp_path, end)[-2]
    data = (tmp_path / "checkpoint").read_bytes()
    assert data[16:24] == full[8:16]
    assert data[:16] + data[24:64] == bytes(range(16)) + bytes(range(24, 64))
    assert safe_time(PosixStorage(str(tmp_path))) == int.from_bytes(full[8:16], "big")


def test_names_are_times_and_rise() -> None:
    """A clock that goes back does not bring files into another order."""
    first = next_name("", 1_700_000_000_123)
    assert len(first) == 17
    assert first.endswith("123")
    assert next_name(first, 1_700_000_000_124) == first[:-3] + "124"
    assert next_name(first, 1_600_000_000_000) == first[:-3] + "124"
    assert next_name("20231231235959999", 0) == "20240101000000000"
    assert next_name("99999999999999998", 0) == "99999999999999999"
