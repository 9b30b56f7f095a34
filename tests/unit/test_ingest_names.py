"""What is legal in a log can be held by a table: names of any length, any number, any bytes."""

from __future__ import annotations

import os
import random
import resource
import string
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.sumfile import save
from gantrymq.clients.spark.table import compact, writing
from gantrymq.clients.spark.table.commit import Table
from gantrymq.clients.spark.table.files import TableFiles
from gantrymq.clients.spark.table.job import Ingest, IngestOptions
from gantrymq.clients.spark.table.manifest import INTENT, Intent, Manifest, Move, load_manifest
from gantrymq.clients.spark.table.writing import partition_of
from gantrymq.shm.errors import SettingIllegal
from gantrymq.shm.limits import RETRY_TOPIC_BYTES_MAX, TOPIC_BYTES_MAX
from gantrymq.shm.record import Record
from tests.support.golden import unpack
from tests.support.sealed import segment_of, write_segment, write_sidecars
from tests.support.spark_rows import rows_of
from tests.support.tables import Content, listed, require_equal, table_rows
from tests.support.trials import mends

SEGMENT_BYTES = 1 << 20
BARS = "|" * 90
NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting for a disk: it is about names here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)


def store_of(root: Path, records: Iterable[Record]) -> Path:
    """A store of one sealed segment, and an empty one behind it."""
    view, _ = segment_of(records, SEGMENT_BYTES)
    write_segment(root, 0, view)
    write_sidecars(root, [0])
    write_segment(root, SEGMENT_BYTES, view[:0])
    return root


def message(topic: str, number: int, properties: bytes = b"") -> Record:
    made = Record(topic=topic, body=b"%d" % number, properties=properties, queue_offset=number)
    return replace(made, store_timestamp=NOW_MS + number, born_timestamp=NOW_MS)


def ingest(store: Path, out: Path, **words: str) -> Content:
    """Run it, and fail unless the table is the log."""
    read = ReadOptions.parse({"store": str(store), "includeSystem": "true", **words})
    with Ingest(IngestOptions(read, str(out), "t")) as job:
        while job.step() is not None:
            pass
        while job.compact() is not None:
            pass
    return require_equal(out, store, includeSystem="true", **words)


@mends("D2")
def test_a_topic_of_any_legal_length_has_a_folder(store_dir: Path, tmp_path: Path) -> None:
    names = [BARS, "|" * TOPIC_BYTES_MAX, f"%RETRY%{'%' * (RETRY_TOPIC_BYTES_MAX - 7)}", "orders"]
    store_of(store_dir, (message(name, number) for number, name in enumerate(names * 3)))
    assert ingest(store_dir, tmp_path / "table").count == 12
    folders = {name.split("/")[1] for name in listed(tmp_path / "table")}
    assert len(folders) == len(names)
    assert "folder=topic-orders" in folders


@mends("D2")
def test_the_golden_store_of_odd_things_is_a_table(tmp_path: Path) -> None:
    """Some of its records have the same queue and offset: all are there."""
    store = unpack("odd", tmp_path).store
    read = ReadOptions.parse({"store": str(store), "includeSystem": "true"})
    with Ingest(IngestOptions(read, str(tmp_path / "table"), "t")) as job:
        while job.step() is not None:
            pass
    rows = [{k: v for k, v in row.items() if k != "date"} for row in table_rows(tmp_path / "table")]
    assert rows == rows_of(store, includeSystem="true")
    assert any(len(row["topic"]) == RETRY_TOPIC_BYTES_MAX for row in rows)


def legal_topic(sample: random.Random) -> str:
    """One that a broker takes, or one of a RocketMQ's wide records: any characters."""
    if sample.random() < 0.5:
        return "".join(sample.choices("|%-_" + string.ascii_letters, k=sample.randrange(1, 128)))
    letters = [chr(sample.choice((sample.randrange(1, 0x250), 0x1F600, 0x20AC))) for _ in range(9)]
    return "".join(letters) * sample.choice((1, 60)) + sample.choice(("", ".", "..", "/", "~"))


def legal_message(sample: random.Random, number: int) -> Record:
    topic = sample.choice(("007", "2026-01-01", "null", ".", "..", "a/b", legal_topic(sample)))
    packed = sample.random() < 0.1
    body = zlib.compress(bytes(1 << 18)) if packed else sample.randbytes(sample.randrange(50))
    names = ("", " ", "topic", "date", "KEYS", "TAGS", "é\0x", "a=b/c", "n" * 300)
    pairs = [(sample.choice(names), sample.choice(names)) for _ in range(sample.randrange(5))]
    days = sample.choice((0, -1, 1, 19_000, 2_932_896, 2_932_897, 1 << 36))
    return Record(
        topic=topic, body=body, sys_flag=0x301 if packed else 0, queue_offset=number,
        properties="".join(f"{name}\1{value}\2" for name, value in pairs).encode(),
        store_timestamp=days * 86_400_000, born_timestamp=sample.choice((0, -1, (1 << 62))),
    )  # fmt: skip


@mends("D2")
@pytest.mark.parametrize("run", range(4))
def test_whatever_is_legal_is_in_the_table(
    store_dir: Path, tmp_path: Path, seed: int, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows are written in many parts, and merged."""
    if run % 2:
        monkeypatch.setattr(writing, "BUFFERED_MAX", 1 << 19)
        monkeypatch.setattr(compact, "FILES_MIN", 2)
        monkeypatch.setattr("gantrymq.clients.spark.bodies.PART_BYTES_MAX", 1 << 19)
    sample = random.Random(f"{seed} {run}")
    store_of(store_dir, [legal_message(sample, number) for number in range(300)])
    assert ingest(store_dir, tmp_path / "table").count == 300


@mends("D2")
def test_more_topics_than_a_process_may_have_files(store_dir: Path, tmp_path: Path) -> None:
    store_of(store_dir, (message(f"t{number}", number) for number in range(400)))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, limits[1]))
    try:
        count = ingest(store_dir, tmp_path / "table").count
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert count == 400


def wedge(out: Path, files: tuple[str, ...]) -> None:
    """The folder as an older version left it: one of the step's files is placed, one cannot be."""
    known = Manifest(1, 1, 0, 0, system=True)
    table = Table(TableFiles(str(out)))
    table.commit(known)
    table.close()
    for name in files:
        (out / name).parent.mkdir(parents=True)
        (out / name).write_bytes(b"placed")
    aside = out / "_gantry" / "aside" / "x"
    aside.mkdir(parents=True)
    (aside / "1").write_bytes(b"never")
    final = f"topic={quote(BARS, safe='')}/date=2023-11-14/a.parquet"
    moves = (*(Move("_gantry/aside/x/0", name) for name in files), Move("_gantry/aside/x/1", final))
    intent = Intent(msgspec.structs.replace(known, generation=2, position=SEGMENT_BYTES), moves)
    save(TableFiles(str(out)), INTENT, intent)


@mends("D2")
def test_a_table_that_was_wedged_goes_on(store_dir: Path, tmp_path: Path) -> None:
    """By the intent of a version that checked no names, half of whose files had been placed."""
    out = tmp_path / "table"
    store_of(store_dir, [message(BARS, 0), message("orders", 1)])
    out.mkdir()
    wedge(out, ("topic=orders/date=2023-11-14/a.parquet",))
    assert ingest(store_dir, out).count == 2
    assert sorted(path.name for path in out.iterdir()) == ["_gantry", "data"]


def test_a_table_of_the_older_layout_keeps_it(store_dir: Path, tmp_path: Path) -> None:
    """Folders `topic=T`, which say the topic; files of both kinds in one table would say two."""
    store_of(store_dir, [message("orders", 0), message(BARS, 1)])
    assert partition_of("orders", 0, 1) == "topic=orders/date=1970-01-01"
    out = tmp_path / "table"
    ingest(store_dir, out)
    manifest = load_manifest(TableFiles(str(out)))
    assert manifest is not None
    save(TableFiles(str(out)), "_gantry/manifest.json", msgspec.structs.replace(
        manifest, layout=1, position=0, proof=type(manifest.proof)(),
    ))  # fmt: skip
    read = ReadOptions.parse({"store": str(store_dir), "includeSystem": "true"})
    with Ingest(IngestOptions(read, str(out), "t")) as job:
        while job.step() is not None:
            pass
    found = sorted(path.parent.parent.name for path in out.glob("topic=*/*/*.parquet"))
    assert found[1] == "topic=orders"
    assert found[0].startswith("topic=%7C%7C")
    assert len(found[0]) < 150


@mends("D2")
def test_a_name_that_no_folder_can_have_is_refused_first(store_dir: Path, tmp_path: Path) -> None:
    """Before anything is written of the step: the table is as it was, and can be read."""
    store_of(store_dir, [message(BARS, 0)])
    out = tmp_path
    while len(str(out)) < 3900:
        out /= "d" * min(200, 3930 - len(str(out)))
    read = ReadOptions.parse({"store": str(store_dir)})
    with Ingest(IngestOptions(read, str(out), "t")) as job:
        with pytest.raises(SettingIllegal, match="too long a name"):
            job.step()
        assert not (out / "data").exists()
        assert not (out / INTENT).exists()
