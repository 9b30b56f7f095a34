"""`gantrymq ingest` without Spark: the table equals the log, whatever is killed or gone."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from gantrymq.cli import ingest as cli
from gantrymq.cli.app import app
from gantrymq.cli.ingest import run_ingest
from gantrymq.cli.ingest_show import Progress
from gantrymq.clients.spark import needs, planning
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.table import compact
from gantrymq.clients.spark.table.files import TableFiles
from gantrymq.clients.spark.table.job import Ingest, IngestOptions, run_here
from gantrymq.clients.spark.table.manifest import MANIFEST, load_manifest
from gantrymq.clients.subscription import FilterExpression, FilterType
from gantrymq.shm.checkpoint import FILE as CHECKPOINT
from gantrymq.shm.errors import (
    Corrupt,
    FilterSyntaxError,
    Incompatible,
    SettingIllegal,
    StoreBusy,
    StoreFailed,
)
from gantrymq.shm.lognames import segment_name
from tests.support.brokers import command
from tests.support.spark_rows import rows_of, sealed_rows
from tests.support.tables import (
    SEGMENT_BYTES,
    GrowingStore,
    content_of,
    listed,
    require_equal,
    table_rows,
)
from tests.support.trials import mends


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranges in a segment; no waiting for a disk: here processes die, not power."""
    monkeypatch.setattr(planning, "RANGE_BYTES", 1 << 11)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)


@pytest.fixture
def growing(store_dir: Path) -> GrowingStore:
    made = GrowingStore(store_dir)
    made.grow()
    return made


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "table"


def options(store: Path, out: Path, *, report: bool = False, **words: str) -> IngestOptions:
    read = ReadOptions.parse({"store": str(store), "includeActive": "false", **words})
    return IngestOptions(read, str(out), "t", report_data_loss=report)


def ingest(chosen: IngestOptions, files: TableFiles | None = None) -> list[str]:
    """Run until the table has all; what the steps were, several of a kind as one."""
    events = []
    with Ingest(chosen, files=files) as job:
        while (done := job.step()) is not None:
            events.append(done.event)
            if (merged := job.compact()) is not None:
                events.append(merged.event)
    return [event for event, _ in groupby(events)]


def test_the_table_is_the_log_by_topic_and_day(growing: GrowingStore, out: Path) -> None:
    assert ingest(options(growing.root, out)) == ["commit"]
    found = require_equal(out, growing.root)
    assert found.count == 30
    names = listed(out)
    folders = {name.rpartition("/")[0] for name in names}
    assert folders == {
        f"data/folder=topic-{topic}/date=2023-11-14"
        for topic in ("orders", "%25RETRY%25bills", "t%2F1")
    }
    before = {name: (out / name).stat().st_mtime_ns for name in names}
    assert ingest(options(growing.root, out)) == [], "nothing is done twice"
    growing.grow()
    assert ingest(options(growing.root, out)) == ["commit"]
    assert require_equal(out, growing.root).count == 60
    assert {name: (out / name).stat().st_mtime_ns for name in names} == before
    assert {row["date"] for row in table_rows(out)} == {"2023-11-14", "2023-11-15"}


#: More than a life with a step and a compaction makes changes.
LIVES = 28


class Killed(BaseException):
    """Not an Exception: nothing may catch it."""


class DyingFiles(TableFiles):
    """Ends at its n-th change of the folder, right before it or right behind it."""

    def __init__(self, root: str, left: int, *, behind: bool) -> None:
        super().__init__(root)
        self.left = left
        self._behind = behind

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401
        found = super().__getattribute__(name)
        changes = ("create", "rename", "unlink", "exchange", "link", "remove_tree")
        return self._dying(found) if name in changes else found

    def _dying(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def run(*values: Any, **named: Any) -> Any:  # noqa: ANN401
            self.left -= 1
            if self.left < 0 and not self._behind:
                raise Killed
            done = change(*values, **named)
            if self.left < 0:
                raise Killed
            return done

        return run


@pytest.mark.parametrize(("behind", "exchanges"), [(False, True), (True, False)])
def test_killed_at_any_change_it_goes_on(
    growing: GrowingStore, out: Path, monkeypatch: pytest.MonkeyPatch, behind: bool, exchanges: bool
) -> None:
    """Life after life dies one change later; who lists the folder sees no message twice."""
    monkeypatch.setattr(planning, "RANGE_BYTES", SEGMENT_BYTES)
    monkeypatch.setattr(compact, "FILES_MIN", 2)
    if not exchanges:
        monkeypatch.setattr(TableFiles, "exchange", lambda self, one, other: False)
    chosen = options(growing.root, out)
    survived: list[int] = []
    log = places_of(growing)
    for changes in range(LIVES):
        files = DyingFiles(str(out), changes, behind=behind)
        try:
            ingest(chosen, files)
            survived.append(changes)
            growing.grow()
            log = places_of(growing)
        except Killed:
            pass
        assert content_of(table_rows(out)).places <= log
    assert len(survived) < LIVES - 10, "many lives ended early"
    assert ingest(chosen) in ([], ["commit", "compact"])
    require_equal(out, growing.root)
    assert len(listed(out)) < 3 * len(survived), "some were merged"


def aside_of(out: Path) -> list[Path]:
    """What lies aside."""
    return list(out.glob("_gantry/aside/*"))


@mends("S218")
def test_a_job_that_goes_on_leaves_nothing_aside(
    growing: GrowingStore, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of steps and merges nor of what failed."""
    monkeypatch.setattr(compact, "FILES_MIN", 2)
    fails = [False]

    def run(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        done = run_here(function, tasks)
        if fails[0]:
            raise OSError(errno.EIO, "the task's machine is gone")
        return done

    with Ingest(options(growing.root, out), run) as job:
        for work in (job.step, job.step, job.compact):
            fails[0] = True
            with pytest.raises(OSError, match="gone"):
                work()
            assert not aside_of(out)
            fails[0] = False
            assert work() is not None
            assert not aside_of(out)
            growing.grow()
        while job.step() is not None:
            pass
        require_equal(out, growing.root)


@mends("S219")
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_a_merge_is_run_twice(
    growing: GrowingStore, out: Path, monkeypatch: pytest.MonkeyPatch, before: bool, killed: bool
) -> None:
    """Spark runs a task again: speculatively, or where it takes an executor that lives for lost."""
    for _ in range(3):
        growing.grow()
    ingest(options(growing.root, out))
    manifest = load_manifest(TableFiles(str(out)))
    assert manifest is not None
    monkeypatch.setattr(compact, "FILES_MIN", 2)
    monkeypatch.setattr(compact, "TARGET_BYTES", 2 * max(f.bytes for f in manifest.files))

    def begin(path: str, sources: list[str], types: dict[str, str]) -> int:
        Path(path).write_bytes(b"PAR1")
        raise Killed

    def other_attempt(task: compact.MergeTask) -> None:
        with monkeypatch.context() as patch, suppress(Killed):
            if killed:
                patch.setattr(compact, "_write", begin)
            compact.merge(task)

    def merge(task: compact.MergeTask) -> compact.Merged:
        if before:
            other_attempt(task)
        merged = compact.merge(task)
        if not before:
            other_attempt(task)
        return merged

    with Ingest(options(growing.root, out), lambda _function, tasks: run_here(merge, tasks)) as job:
        assert job.compact() is not None
    require_equal(out, growing.root)


def places_of(growing: GrowingStore) -> set[tuple[str, int, int]]:
    """Topic, queue and offset of each message of the log."""
    rows = sealed_rows(growing.root, columns="topic,queue_id,queue_offset")
    return {(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows}


def test_small_files_become_one(growing: GrowingStore, out: Path) -> None:
    events = ingest(options(growing.root, out))
    while "compact" not in events:
        assert len(listed(out)) < 3 * 2 * compact.FILES_MIN
        growing.grow()
        events += ingest(options(growing.root, out))
    require_equal(out, growing.root)
    manifest = load_manifest(TableFiles(str(out)))
    assert manifest is not None
    merged = [file for file in manifest.files if file.end - file.start > SEGMENT_BYTES]
    assert merged
    assert all(file.rows >= compact.FILES_MIN for file in merged)


def test_a_merge_makes_whole_row_groups(growing: GrowingStore, out: Path) -> None:
    """Groups of a few rows each cost a reader more than the rows; merging may be left for later."""
    chosen = options(growing.root, out)

    def run(*, merge: bool) -> None:
        with Progress(io.StringIO(), io.StringIO(), as_json=False) as progress:
            run_ingest(chosen, run_here, progress, threading.Event(), merge=merge)

    for _ in range(2 * compact.FILES_MIN):
        run(merge=False)
        growing.grow()
    before = listed(out)
    groups = [parquet.ParquetFile(out / name).num_row_groups for name in before]
    assert set(groups) == {1}
    run(merge=True)
    after = listed(out)
    assert len(after) < len(before) / 2, "also what earlier runs have left"
    assert {parquet.ParquetFile(out / name).num_row_groups for name in after} == {1}
    require_equal(out, growing.root)


def test_columns_may_be_added_later(
    growing: GrowingStore, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "RANGE_BYTES", SEGMENT_BYTES)
    monkeypatch.setattr(compact, "FILES_MIN", 3)
    few = "topic,queue_id,queue_offset,physical_offset"
    ingest(options(growing.root, out, columns=few))
    growing.grow()
    growing.grow()
    assert "compact" in ingest(options(growing.root, out, columns=f"{few},tag"))
    rows = table_rows(out)
    assert any(f"-{3 * SEGMENT_BYTES:020d}." in name for name in listed(out)), "some were merged"
    assert len(rows) == 90
    assert {row.get("tag") for row in rows if row["physical_offset"] < SEGMENT_BYTES} == {None}
    assert {row["tag"] for row in rows if row["physical_offset"] >= SEGMENT_BYTES} == {"a"}


def test_a_filtered_table_is_the_filtered_log(growing: GrowingStore, out: Path) -> None:
    text = "n >= 10 AND n < 50 AND TAGS = 'a'"
    matches = FilterExpression(text, FilterType.SQL92).matches
    for segments in (1, 2):
        ingest(options(growing.root, out, filter=f" {text} "))
        whole = sealed_rows(growing.root)
        passed = [row for row in whole if matches(dict(row["properties"]))]
        assert len(passed) == {1: 20, 2: 40}[segments] < len(whole)
        assert require_equal(out, growing.root, filter=text) == content_of(passed)
        growing.grow()
    for other in ("", "n >= 10"):
        with pytest.raises(SettingIllegal, match="of all topics, of what passes the filter n >= "):
            Ingest(options(growing.root, out, filter=other))
    with pytest.raises(FilterSyntaxError, match="position 3: the end where"):
        options(growing.root, out, filter="n >")


def test_what_is_gone_is_an_error_or_a_gap(growing: GrowingStore, out: Path) -> None:
    """F21: without a pin retention may be faster than the ingest."""
    ingest(options(growing.root, out))
    for _ in range(3):
        growing.grow()
    growing.expire()
    assert ingest(options(growing.root, out)) != [], "it was read before"
    growing.grow()
    growing.grow()
    for _ in range(4):
        growing.expire()
    gone = f"positions {4 * SEGMENT_BYTES} to {5 * SEGMENT_BYTES}"
    with pytest.raises(StoreFailed, match=gone):
        ingest(options(growing.root, out))
    assert ingest(options(growing.root, out, report=True))[:2] == ["gap", "commit"]
    manifest = load_manifest(TableFiles(str(out)))
    assert manifest is not None
    assert manifest.gaps == ((4 * SEGMENT_BYTES, 5 * SEGMENT_BYTES),)
    assert content_of(table_rows(out)).count == 150


def test_a_pin_holds_what_the_table_has_not(growing: GrowingStore, out: Path) -> None:
    (growing.root / "gantry").mkdir(exist_ok=True)
    pin = growing.root / "gantry" / "pins" / "t"
    with Ingest(options(growing.root, out)) as job:
        assert json.loads(pin.read_bytes())["position"] == 0
        while job.step() is not None:
            assert json.loads(pin.read_bytes())["position"] == job.manifest.position
    assert json.loads(pin.read_bytes()) == {
        "position": SEGMENT_BYTES, "until_ratio": 100, "table": str(out)
    }  # fmt: skip
    with pytest.raises(SettingIllegal, match="--name"):
        Ingest(options(growing.root, out.with_name("other")))


@pytest.fixture
def durable(growing: GrowingStore) -> Iterator[Callable[[int], None]]:
    """Return a function: a log position is durable from now on, by a broker that runs."""
    from gantrymq.brokerd.checkpoint import CheckpointFile
    from gantrymq.shm.storage import PosixStorage

    file = CheckpointFile(PosixStorage(str(growing.root)), bytes(16), 1)
    assert (growing.root / CHECKPOINT).exists()
    yield lambda position: file.write(position, 0, 0)
    file.close()


def test_the_active_segment_counts_as_far_as_it_is_durable(
    growing: GrowingStore, out: Path, durable: Callable[[int], None]
) -> None:
    growing.grow(seal=False)
    chosen = options(growing.root, out, includeActive="true")
    durable(SEGMENT_BYTES)
    ingest(chosen)
    assert content_of(table_rows(out)).count == 30
    places = [row["physical_offset"] for row in log_rows_active(growing)]
    durable(places[40])
    ingest(chosen)
    assert content_of(table_rows(out)).count == 40
    durable(places[41] + 1)
    ingest(chosen)
    assert content_of(table_rows(out)).count == 41, "a record whose end is not durable waits"
    durable(
        growing.end + len((growing.root / segment_name(growing.end)).read_bytes().rstrip(b"\0"))
    )
    ingest(chosen)
    require_equal(out, growing.root, includeActive="true")


@mends("D3")
def test_runs_that_end_inside_an_open_segment_double_nothing(
    growing: GrowingStore, out: Path, durable: Callable[[int], None]
) -> None:
    """Nobody has to ask for it; the segment is sealed while the table is in its middle."""
    chosen = IngestOptions(ReadOptions.parse({"store": str(growing.root)}), str(out), "t")
    growing.grow(seal=False)
    for row in log_rows_active(growing)[31:50:3]:
        durable(row["physical_offset"] + 1)
        ingest(chosen)
        last = table_rows(out)[-1]
        assert last["physical_offset"] < row["physical_offset"], "its end is not durable"
    assert 31 < content_of(table_rows(out)).count < 60
    growing.seal()
    durable(growing.end + 1)
    ingest(chosen)
    require_equal(out, growing.root)


@mends("D3")
def test_a_broker_that_has_just_begun_shows_its_messages(growing: GrowingStore, out: Path) -> None:
    """One open segment, all durable: a read by default, and an ingest by default, have it."""
    store = growing.root.with_name("fresh")
    fresh = GrowingStore(store)
    fresh.grow(seal=False)
    assert len(rows_of(store)) == 30
    assert ingest(IngestOptions(ReadOptions.parse({"store": str(store)}), str(out), "t"))
    assert content_of(table_rows(out)) == content_of(rows_of(store))


@mends("D3")
@pytest.mark.parametrize("active", [True, False])
def test_what_is_left_out_is_told(growing: GrowingStore, out: Path, active: bool) -> None:
    """Of a RocketMQ's that runs it is not known what is durable; or it was not asked for."""
    growing.grow(seal=False)
    (growing.root / "abort").write_bytes(b"")
    flag = "--active" if active else "--no-active"
    ran = command("ingest", "--store", growing.root, "--out", out, flag)
    assert ran.returncode == 0, ran
    shown = ran.stdout
    assert re.search(r"\n\d{4,} bytes of the segment that is being written were left out", shown)
    assert ("--active reads" in shown) is not active
    assert require_equal(out, growing.root).count == 30


def log_rows_active(growing: GrowingStore) -> list[dict[str, Any]]:
    return sealed_rows(growing.root, includeActive="true")


@mends("D8")
def test_a_run_that_is_killed_soon_leaves_something(growing: GrowingStore, out: Path) -> None:
    """A run's first step is one range; the next ones are larger, while nobody kills it."""
    for _ in range(7):
        growing.grow()
    chosen = options(growing.root, out)
    positions = [0]
    for _ in range(3):
        with Ingest(chosen) as job:
            assert job.step() is not None
            positions.append(job.manifest.position)
    first = [end - start for start, end in pairwise(positions)]
    assert max(first) <= 1 << 12, "one range, to the next record"
    with Ingest(chosen) as job:
        sizes = [done.bytes for done in iter(job.step, None)]
    assert sizes[0] <= 1 << 12
    assert sizes[1] > sizes[0]
    assert max(sizes) > 4 * sizes[0]
    require_equal(out, growing.root)


def test_a_signal_before_the_job_has_begun_is_heard(
    growing: GrowingStore, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the packages that it needs are loaded."""
    heard = []

    @contextmanager
    def explained(*_packages: str) -> Iterator[None]:
        signal.raise_signal(signal.SIGTERM)
        yield

    def run(_source: object, _target: object, stop: threading.Event) -> None:
        heard.append(stop.is_set())

    monkeypatch.setattr(needs, "explained", explained)
    monkeypatch.setattr(cli, "_ingest", run)
    words = ["ingest", f"--store={growing.root}", f"--out={out}"]
    with pytest.raises(SystemExit) as ended:
        app(words)
    assert ended.value.code == 0
    assert heard == [True]


def test_two_do_not_write_one_table(growing: GrowingStore, out: Path) -> None:
    with Ingest(options(growing.root, out)), pytest.raises(StoreBusy, match="another ingest"):
        Ingest(options(growing.root, out))


def test_other_folders_and_stores_are_refused(
    growing: GrowingStore, out: Path, tmp_path: Path
) -> None:
    ingest(options(growing.root, out))
    with pytest.raises(SettingIllegal, match="table of all topics"):
        Ingest(options(growing.root, out, topic="orders"))
    with pytest.raises(SettingIllegal, match="no table"):
        Ingest(replace(options(growing.root, growing.root), name="u"))
    (tmp_path / "new" / "commitlog").mkdir(parents=True)
    with pytest.raises(Incompatible, match="another store"):
        Ingest(options(tmp_path / "new", out))
    with pytest.raises(SettingIllegal, match="no commitlog/"):
        Ingest(options(tmp_path, tmp_path / "unborn"))
    assert not (tmp_path / "unborn").exists()


def test_a_damaged_record_ends_the_run_or_is_a_row(growing: GrowingStore, out: Path) -> None:
    segment = growing.root / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[40] ^= 1
    segment.write_bytes(data)
    with pytest.raises(Corrupt, match="position 0"):
        ingest(options(growing.root, out))
    assert listed(out) == []
    with Ingest(options(growing.root, out, badRecords="report")) as job:
        steps = list(iter(job.step, None))
    assert sum(done.rows for done in steps) == 30
    assert [done.bad_rows for done in steps] == [1, *[0] * (len(steps) - 1)]
    (bad,) = [row for row in table_rows(out) if not row["crc_ok"]]
    assert bad["bad_bytes"] == bytes(data[: bad["bad_size"]])
    assert (bad["topic"], bad["date"]) == ("orders", "__HIVE_DEFAULT_PARTITION__")
    assert bad["bad_reason"] == "a checksum or a length of the record is wrong"


@pytest.mark.parametrize("at", [10, -3])
def test_a_damaged_manifest_is_refused(growing: GrowingStore, out: Path, at: int) -> None:
    ingest(options(growing.root, out))
    path = out / MANIFEST
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corrupt, match=r"manifest\.json"):
        Ingest(options(growing.root, out))


@pytest.mark.parametrize("as_json", [False, True])
def test_one_that_follows_tells_once_a_minute(
    growing: GrowingStore, out: Path, as_json: bool
) -> None:
    """Three minutes: one with a step, one without, one that is not over."""
    now, told = [0.0], io.StringIO()
    progress = Progress(told, io.StringIO(), as_json=as_json, follows=True, clock=lambda: now[0])

    class Pauses(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            now[0] += timeout
            if now[0] == 30.0:
                growing.grow()
            if now[0] == 150.0:
                self.set()
            return self.is_set()

    with progress:
        run_ingest(options(growing.root, out), run_here, progress, Pauses(), 10.0)
    lines = told.getvalue().splitlines()
    if as_json:
        events = [json.loads(line) for line in lines]
        names = [name for name, _ in groupby(one["event"] for one in events)]
        assert names == ["begin", "commit", "look", "end"]
        assert events[-2] == {
            "event": "look", "position": 2 * SEGMENT_BYTES, "lag_bytes": 0, "table_rows": 60,
            "table_files": len(listed(out)),
        }  # fmt: skip
        return
    assert len(lines) == 4
    assert lines[0].startswith("60 messages in 60 s; the table has 60, up to position 16384; 0 ")
    assert lines[1].startswith("0 messages in 60 s; the table has 60,")
    assert lines[2].startswith("60 messages in 150.0 s")
    assert "were left out: --active reads" in lines[3]
