"""Extensions and filters of a real RocketMQ's store, made again by our reader from its log."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd.config import Settings, load
from gantrymq.brokerd.metadata import Metadata
from gantrymq.brokerd.recovered import Recovered
from gantrymq.brokerd.removal import Removal
from gantrymq.shm import layout, limits
from gantrymq.shm.bitmapnote import read_covered
from gantrymq.shm.bloom import BloomForm
from gantrymq.shm.board import Board, format_board
from gantrymq.shm.configfile import parse_config
from gantrymq.shm.errors import FilterSyntaxError
from gantrymq.shm.filter import parse_sql
from gantrymq.shm.kernels import extend
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.storage import PosixStorage
from tests.support.golden import DATA, GoldenStore, dump_lines
from tests.support.memory_sessions import MemorySessions
from tests.support.simbell import SimBell
from tests.support.simclock import SimClock
from tests.support.trials import mends
from gantrymq.workers.agent import Bells
from gantrymq.workers.filterfile import FILE, FilterEntry, bloom_form, read_filters, write_filters
from gantrymq.workers.housekeeper.queuesync import QueueSync
from gantrymq.workers.inhand import DEATHS_MAX
from gantrymq.workers.reader import catchup, extensions, filters
from gantrymq.workers.reader.agent import Reader
from gantrymq.workers.reader.catchup import TURN_NS

Golden = Callable[[str], GoldenStore]
SIZES = {
    "mapped_file_size_commit_log": "mappedFileSizeCommitLog",
    "mapped_file_size_consume_queue": "mappedFileSizeConsumeQueue",
    "mapped_file_size_consume_queue_ext": "mappedFileSizeConsumeQueueExt",
}


#: Work that is enough for some records at one time, and more than that of any one.
LITTLE_WORK = 4000


class PlantedError(Exception):
    """A defect of the reader, that filters meet."""


class Rig:
    """Our reader over a copy of a golden log, without queues; how far it may read is given."""

    def __init__(self, golden: GoldenStore, directory: Path) -> None:
        given: dict[str, object] = {name: golden.settings[key] for name, key in SIZES.items()}
        bitmaps = golden.settings.get("enableCalcFilterBitMap", "false")
        more = {"enable_consume_queue_ext": "true", "enable_calc_filter_bit_map": bitmaps}
        self.settings: Settings = load(given={**given, **more}, environment={}).settings
        shutil.copytree(golden.store / "commitlog", directory / "commitlog")
        (directory / "config").mkdir()
        shutil.copy(golden.store / "config" / "topics.json", directory / "config")
        self.storage = PosixStorage(str(directory))
        self.directory = directory
        self.board = self._board()
        metadata = Metadata(self.storage, self.settings, SimClock(0))
        metadata.load()
        metadata.publish(self.board, Recovered())
        for name in {record["topic"] for record in dump_lines(golden.name, "record")}:
            metadata.open(name, create=True, of_member=True)
        (summary,) = dump_lines(golden.name, "summary")
        self.end = summary["maxPhyOffset"]

    def _board(self) -> Board:
        memory = memoryview(bytearray(layout.board_bytes(64, 2048)))
        format_board(
            memory, epoch=1, boot_id=bytes(16), topics_max=64, queues_max=2048,
            segment_bytes=self.settings.mapped_file_size_commit_log,
            cq_bytes=self.settings.mapped_file_size_consume_queue, started_ms=0, wall_ahead_ns=0,
        )  # fmt: skip
        return Board(memory)

    def reader(self) -> Reader:
        bells = Bells.each(SimBell)
        self.table = MemorySessions()
        return Reader(self.storage, SimClock(0), self.board, self.table, bells, self.settings)

    def register(self, entries: list[FilterEntry]) -> None:
        """As `groups` does."""
        write_filters(self.storage, entries, bloom_form(self.settings))
        at = layout.BOARD_FILTER_CHANGES
        self.board.set_half(at, self.board.half(at) + 1)

    def read_to(self, reader: Reader, end: int) -> None:
        self.board.set_word(layout.BOARD_APPENDED, end)
        while reader.do_work(0):
            pass
        assert self.board.word(layout.BOARD_DISPATCHED) == end

    def extensions(self) -> dict[str, bytes]:
        return extension_files(self.directory)


def extension_files(root: Path) -> dict[str, bytes]:
    paths = [path for path in (root / "consumequeue_ext").rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def filters_of(golden: GoldenStore) -> list[FilterEntry]:
    return read_filters(PosixStorage(str(golden.store)), BloomForm.of(20, 32))


@pytest.mark.parametrize("work", [limits.EXTEND_WORK, LITTLE_WORK])
def test_the_reader_writes_rocketmqs_bitmaps(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: int
) -> None:
    """SF-71, SF-72, SF-74, FL-60 to FL-62, FL-64: all bytes, with a group that came late.

    Also where filters may do little work at one time.
    """
    monkeypatch.setattr(extensions, "work_max", work)
    store = golden("filter")
    rig = Rig(store, tmp_path)
    late = max(filters_of(store), key=lambda entry: entry.born_ms)
    rig.register([entry for entry in filters_of(store) if entry != late])
    reader = rig.reader()
    reader.catch_up = None  # RocketMQ has none
    records = dump_lines("filter", "record")
    seen = next(r for r in records if r["storeTimestamp"] > late.born_ms)
    rig.read_to(reader, seen["physicalOffset"])
    rig.register(filters_of(store))
    rig.read_to(reader, rig.end)
    reader.close()
    assert rig.extensions() == extension_files(store.store)
    assert {item.group: item.start for item in read_covered(rig.storage)} == {
        entry.group: seen["physicalOffset"] if entry == late else 0 for entry in filters_of(store)
    }


@pytest.mark.parametrize(("work", "steps"), [(limits.CATCH_UP_WORK, 1), (800, 20)])
def test_a_late_group_gets_its_bits_in_older_bitmaps(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: int, steps: int
) -> None:
    """Bits of the others stay; where the filter is TRUE, and only there, all of its own are set.

    In steps of bounded work.
    """
    monkeypatch.setattr(catchup, "work_max", work)
    store = golden("filter")
    rig = Rig(store, tmp_path)
    late = max(filters_of(store), key=lambda entry: entry.born_ms)
    reader = rig.reader()
    rig.read_to(reader, rig.end)  # nobody has a filter: bits of nobody
    assert not any(any(unit["bitMap"]) for unit in bitmaps_of(rig))
    rig.register([late])
    works = []
    while reader.do_work(0):
        assert reader.catch_up is not None
        works.append(int(reader.catch_up._form[extend.SPENT]))
    reader.close()
    assert len(works) >= steps
    assert 0 < max(works) < 2 * work
    (covered,) = read_covered(rig.storage)
    assert covered.start == 0
    wanted = parse_sql(late.expression, Dialect.ROCKETMQ)
    records = {r["physicalOffset"]: r for r in dump_lines("filter", "record")}
    own = bitmap_of(covered.positions, covered.bits)
    passing = 0
    for unit in bitmaps_of(rig):
        true = wanted.matches(records[unit["physicalOffset"]]["properties"]) is True
        assert unit["bitMap"] == (own if true else bytes(len(own)))
        passing += true
    assert passing


@mends("S210")
def test_a_stray_file_beside_those_of_a_queue_is_passed_over(
    golden: Golden, tmp_path: Path
) -> None:
    """By a new life's reader, which looks for ends, by who syncs extensions, and by retention."""
    without = outlived(Rig(golden("filter"), tmp_path / "without"), ())
    strays = ("x", ".nfs1", "\u00b2")
    assert outlived(Rig(golden("filter"), tmp_path / "among"), strays) == without


def outlived(rig: Rig, strays: Sequence[str]) -> list[list[str]]:
    """Two lives, then retention, with strays: what is synced of a queue, and what is left."""
    folder = "consumequeue_ext/FilterT/0"
    records = dump_lines("filter", "record")
    sync, found = QueueSync(rig.storage, rig.board), []
    for end in (records[len(records) // 2]["physicalOffset"], rig.end):
        reader = rig.reader()
        rig.read_to(reader, end)
        reader.close()
        found.append(list(sync._changed_files(("FilterT", 0), 0, 1)))
        for stray in strays:
            for path in (folder, "consumequeue/FilterT/0"):
                (rig.directory / path / stray).touch()
    assert found[0] != found[1], "another file is synced"
    topic = rig.board.topic_named("FilterT")
    assert topic is not None
    removal = Removal(rig.storage, rig.board, MemorySessions(), 0)
    assert not any(removal._remove_extensions({topic.queue_base: 100}))
    left = rig.storage.list(folder)
    assert set(strays) <= set(left)
    assert f"{0:020d}" not in left, "retention has removed the first one"
    return [*found, sorted(set(left) - set(strays))]


def test_filters_that_are_caught_up_are_told_of_together(golden: Golden, tmp_path: Path) -> None:
    """A thousand cost no thousand syncs, nor as many looks of each consumer at the note."""
    rig = Rig(golden("filter"), tmp_path)
    reader = rig.reader()
    rig.read_to(reader, rig.end)
    rig.register(filters_of(golden("filter")))
    before = rig.board.half(layout.BOARD_BITMAP_CHANGES)
    while reader.do_work(0):
        pass
    reader.close()
    covered = read_covered(rig.storage)
    assert [item.start for item in covered] == [0] * len(filters_of(golden("filter")))
    told = rig.board.half(layout.BOARD_BITMAP_CHANGES) - before
    assert told == 2, "that they are known, and that they are done"


def test_filters_that_take_long_are_asked_in_portions(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of the reader does a bounded part, most get somewhere, and a note says so once."""
    monkeypatch.setattr(extensions, "work_max", LITTLE_WORK)
    rig = Rig(golden("filter"), tmp_path)
    rig.register(filters_of(golden("filter")))
    reader = rig.reader()
    reader.catch_up = None
    rig.board.set_word(layout.BOARD_APPENDED, rig.end)
    assert reader._extensions is not None
    works, places = [], [0]
    while reader.do_work(0):
        works.append(int(reader._extensions._form[extend.SPENT]))
        places.append(rig.board.word(layout.BOARD_DISPATCHED))
    reader.close()
    assert places[-1] == rig.end
    assert max(works) < 2 * LITTLE_WORK
    assert 10 < len(set(places)) <= len(places) <= 2 * len(set(places))
    assert [event for _, event, _ in rig.table.notes] == ["filters_take_long"]


def test_filters_that_take_too_long_for_one_record_deny_none(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No false negatives: who was not asked may be TRUE."""
    monkeypatch.setattr(extensions, "work_max", 1)
    rig = Rig(golden("filter"), tmp_path)
    rig.register(filters_of(golden("filter")))
    reader = rig.reader()
    reader.catch_up = None
    rig.read_to(reader, rig.end)
    reader.close()
    topics = {entry.topic for entry in filters_of(golden("filter"))}
    wanted: dict[str, int] = {}
    for covered in read_covered(rig.storage):
        own = int.from_bytes(bitmap_of(covered.positions, covered.bits), "little")
        wanted[covered.topic] = wanted.get(covered.topic, 0) | own
    records = {r["physicalOffset"]: r for r in dump_lines("filter", "record")}
    units = [u for u in bitmaps_of(rig) if records[u["physicalOffset"]]["topic"] in topics]
    assert units
    for unit in units:
        bits = int.from_bytes(unit["bitMap"], "little")
        assert bits == wanted[records[unit["physicalOffset"]]["topic"]]


@mends("S33")
def test_a_damaged_record_gets_the_bits_of_a_late_group(golden: Golden, tmp_path: Path) -> None:
    """Its consumers meet it then, and are told, instead of passing it over."""
    store = golden("filter")
    rig = Rig(store, tmp_path)
    late = max(filters_of(store), key=lambda entry: entry.born_ms)
    reader = rig.reader()
    rig.read_to(reader, rig.end)
    (log,) = (tmp_path / "commitlog").iterdir()
    wanted = parse_sql(late.expression, Dialect.ROCKETMQ)
    missed = next(
        r
        for r in dump_lines("filter", "record")
        if r["topic"] == late.topic and wanted.matches(r["properties"]) is not True
    )
    data = bytearray(log.read_bytes())
    data[missed["physicalOffset"] + 7] ^= 1
    log.write_bytes(data)
    rig.register([late])
    while reader.do_work(0):
        pass
    reader.close()
    (covered,) = read_covered(rig.storage)
    own = bitmap_of(covered.positions, covered.bits)
    at = missed["physicalOffset"]
    (found,) = (unit for unit in bitmaps_of(rig) if unit["physicalOffset"] == at)
    assert found["bitMap"] == own


def test_a_reader_that_never_rests_catches_up_all_the_same(golden: Golden, tmp_path: Path) -> None:
    """Each cycle has a record to dispatch; a step is due now and then, and none in between."""
    store = golden("filter")
    rig = Rig(store, tmp_path)
    late = max(filters_of(store), key=lambda entry: entry.born_ms)
    starts = [record["physicalOffset"] for record in dump_lines("filter", "record")]
    half = len(starts) // 2
    reader = rig.reader()
    rig.read_to(reader, starts[half])
    rig.register([late])
    covered = []
    for number, following in enumerate(starts[half + 1 :]):
        rig.board.set_word(layout.BOARD_APPENDED, following)
        assert reader.do_work(TURN_NS * (1 + number // 2)), "there is always something to do"
        assert rig.board.word(layout.BOARD_DISPATCHED) == following
        covered.append([item.start for item in read_covered(rig.storage)])
    reader.close()
    waited = covered.index([0])
    assert covered[:waited] == [[starts[half]]] * waited
    assert waited >= 4, "each second cycle has no time for it"


def bitmaps_of(rig: Rig) -> list[dict[str, Any]]:
    """Each unit's position and its bitmap, as the files have them."""
    from gantrymq.brokerd.dump.queues import ExtFiles

    found = []
    for folder in sorted((rig.directory / "consumequeue").glob("*/*")):
        extensions = ExtFiles(rig.storage, folder.parent.name, int(folder.name))
        for path in sorted(folder.iterdir()):
            data = path.read_bytes()
            for at in range(0, len(data), layout.CQ_UNIT_BYTES):
                unit = layout.CQ_UNIT.unpack(data, at)
                if unit["size"]:
                    extension = extensions.unit(unit["tags_code"])
                    assert extension is not None, unit
                    bitmap = bytes.fromhex(extension["bitMap"])
                    found.append({"physicalOffset": unit["physical_offset"], "bitMap": bitmap})
    return found


def bitmap_of(positions: tuple[int, ...], bits: int) -> bytes:
    return sum(1 << position for position in set(positions)).to_bytes(bits // 8, "little")


@pytest.mark.parametrize("name", ["crc", "crc-533"])
def test_extensions_without_bitmaps_are_rocketmqs(
    golden: Golden, tmp_path: Path, name: str
) -> None:
    """SF-74: where no bits are wanted the bitmap is empty."""
    store = golden(name)
    rig = Rig(store, tmp_path)
    reader = rig.reader()
    rig.read_to(reader, rig.end)
    reader.close()
    system = {topic.name for topic in rig.board.topics() if topic.system}
    theirs = {
        path: data
        for path, data in extension_files(store.store).items()
        if path.split("/")[1] not in system  # ours have their tag codes in the units
    }
    assert theirs
    assert rig.extensions() == theirs


def test_rocketmqs_file_of_filters_is_read_and_written(golden: Golden, tmp_path: Path) -> None:
    """FL-13: `consumerFilter.json`; an entry whose bits do not fit spoils the file."""
    store = golden("filter")
    form = BloomForm.of(20, 32)
    entries = filters_of(store)
    assert len(entries) == 5
    storage = PosixStorage(str(tmp_path))
    write_filters(storage, entries, form)
    written = parse_config((tmp_path / "config" / FILE).read_text())
    theirs = parse_config((store.store / "config" / FILE).read_text())
    assert written["filterDataByTopic"] == theirs["filterDataByTopic"]
    ours = replace(entries[0], dialect="sql", dead_ms=0)
    write_filters(storage, [ours], form)
    assert read_filters(storage, form) == [ours]
    assert read_filters(storage, BloomForm.of(10, 20)) == []


def test_bits_are_those_of_the_golden_set() -> None:
    """FL-60, FL-61, FL-63."""
    with gzip.open(DATA / "sql92.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    rows = [line for line in lines if "bloom" in line]
    assert len(rows) > 100
    for row in rows:
        form = BloomForm.of(*row["bloom"])
        assert (form.hashes, form.bits) == (row["k"], row["m"]), row
        assert form.positions_of(row["key"].encode()) == row["positions"], row
    assert BloomForm.of(20, 32).positions("CID_A", "TopicTest") == [20, 68, 27]


def test_bits_of_our_dialect_serve_a_rocketmq() -> None:
    """ADR 0020: what RocketMQ's rules are TRUE of, ours are TRUE of, too."""
    with gzip.open(DATA / "sql92.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    seen = 0
    for row in lines:
        if row.get("result") != "true":
            continue
        try:
            wanted = parse_sql(row["expr"], Dialect.SQL)
        except FilterSyntaxError:
            continue
        assert wanted.matches(row["props"]) is True, row
        seen += 1
    assert seen > 300


def test_records_are_read_in_vain_as_often_as_configured() -> None:
    """FL-60: 20 % with as many groups as expected, all of whose filters are TRUE; few with few."""
    form = BloomForm.of(20, 32)
    for others, least, most in ((32, 0.16, 0.22), (8, 0.0, 0.02)):
        passed = 0
        for message in range(1500):
            bits = {p for n in range(others) for p in form.positions(f"g{message}-{n}", "t")}
            passed += set(form.positions(f"mine-{message}", "t")) <= bits
        assert least <= passed / 1500 <= most, (others, passed)


@pytest.mark.parametrize("moment", ["compiled", "asked", "asked of older records"])
def test_filters_that_have_ended_the_reader_twice_are_set_aside(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A group's expression is a client's: by a defect of ours it ended each successor as well."""
    store = golden("filter")
    rig = Rig(store, tmp_path)
    reader = rig.reader()
    if moment == "asked of older records":
        rig.read_to(reader, rig.end)
    rig.register(filters_of(store))
    reader.close()

    module, name = {
        "compiled": (filters, "_bind"),
        "asked": (extend, "extend_units"),
        "asked of older records": (extend, "match_units"),
    }[moment]
    works = getattr(module, name)

    def planted(*given: Any) -> Any:  # noqa: ANN401
        if name != "extend_units" or given[4].any():  # which also makes extensions without filters
            raise PlantedError
        return works(*given)

    monkeypatch.setattr(module, name, planted)
    deaths = 0
    while True:
        try:
            reader = rig.reader()
            rig.read_to(reader, rig.end)
            break
        except PlantedError:
            deaths += 1
            assert deaths <= DEATHS_MAX, "it ends each successor"
    reader.close()
    assert deaths == DEATHS_MAX
    assert [event for _level, event, _fields in rig.table.notes] == ["filters_set_aside"]
    assert read_covered(rig.storage) == [], "no consumer relies on bits that are not there"
