"""`store dump` against what RocketMQ's own classes read from the same stores, byte for byte."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd.dump import Stage, dump_objects, encode_line
from tests.support.golden import (
    CLEAN_SETS,
    CRASH_SETS,
    DATA,
    SETS,
    GoldenStore,
    dump_lines,
    dump_text,
)

Golden = Callable[[str], GoldenStore]
Lines = list[dict[str, Any]]


def lines_of(golden: GoldenStore, stage: Stage = "recovered", now_ms: int | None = None) -> Lines:
    return list(dump_objects(golden.store, golden.settings_file, stage, now_ms))


def clock_of(name: str) -> int | None:
    """Unix ms at which RocketMQ made a new index file while the dump was taken (SF-96)."""
    files = json.loads(dump_text(name)[-1])["indexFilesAfterLoad"]
    made = sorted(set(files) - {line["name"] for line in dump_lines(name, "indexFile")})
    if not made:
        return None
    seconds = time.mktime(time.strptime(made[0][:14], "%Y%m%d%H%M%S"))
    return int(seconds) * 1000 + int(made[0][14:])


def of_kinds(lines: Sequence[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] in kinds]


def assert_equal_lines(found: Sequence[str], expected: Sequence[str]) -> None:
    """As a plain comparison, but telling the first difference only."""
    for number, (line, wanted) in enumerate(zip(found, expected, strict=False), 1):
        assert line == wanted, f"line {number}"
    assert len(found) == len(expected)


def test_no_set_is_missing() -> None:
    assert {path.name.removesuffix(".tar.xz") for path in DATA.glob("*.tar.xz")} == set(SETS)


@pytest.mark.parametrize("name", SETS)
def test_every_line_is_rocketmqs(golden: Golden, name: str) -> None:
    """All kinds in their order: SF-16 to SF-33, SF-61 to SF-97, SF-118, SF-121 to SF-124."""
    lines = lines_of(golden(name), now_ms=clock_of(name))
    assert_equal_lines([encode_line(line) for line in lines], dump_text(name))


@pytest.mark.parametrize("name", CRASH_SETS)
def test_stage_disk_shows_a_crashed_store_as_it_lies(golden: Golden, name: str) -> None:
    lines = lines_of(golden(name), stage="disk")
    assert_equal_lines([encode_line(line) for line in lines], dump_text(name, "disk"))


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_stage_disk_of_a_clean_store_has_the_same_log(golden: Golden, name: str) -> None:
    kinds = ("record", "filler", "indexFile", "indexEntry", "config")
    disk = lines_of(golden(name), stage="disk")
    assert of_kinds(disk, *kinds) == dump_lines(name, *kinds)
    assert not of_kinds(disk, "queue", "cq", "bcq", "indexQuery")


@pytest.mark.parametrize("name", ["batch", "batch-533"])
def test_stage_disk_counts_units_of_plain_queues_only(golden: Golden, name: str) -> None:
    """As RocketMQ does: it walks `consumequeue/`, and batch queues lie elsewhere (SF-75)."""
    (summary,) = of_kinds(lines_of(golden(name), stage="disk"), "summary")
    queues = dump_lines(name, "queue")
    plain = [line for line in queues if line["type"] == "SimpleCQ"]
    assert 0 < len(plain) < len(queues)
    assert summary["queueEnds"] == {
        f"{line['topic']}-{line['queueId']}": line["maxOffset"] for line in plain
    }


@pytest.mark.parametrize("stage", ["recovered", "disk"])
def test_a_dump_changes_nothing(own_copy: Golden, stage: Stage) -> None:
    golden = own_copy("crash")
    before = fingerprint(golden.store)
    lines_of(golden, stage=stage)
    assert fingerprint(golden.store) == before


def fingerprint(root: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in root.rglob("*")
        if path.is_file() and path.name != "timerwheel"
    }


@pytest.mark.parametrize("name", [name for name in SETS if name != "filter"])
def test_queues_that_are_gone_come_back_from_the_log(own_copy: Golden, name: str) -> None:
    """SF-95, SF-110. Not for `filter`: its bitmaps depend on the groups of the time."""
    golden = own_copy(name)
    for directory in ("consumequeue", "consumequeue_ext", "batchconsumequeue"):
        shutil.rmtree(golden.store / directory, ignore_errors=True)
    (golden.store / "checkpoint").unlink()  # so that a crashed store is scanned from its start
    kinds = ("record", "filler", "queue", "cq", "bcq")
    assert of_kinds(lines_of(golden), *kinds) == dump_lines(name, *kinds)


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_lengths_of_files_tell_the_sizes(golden: Golden, name: str) -> None:
    lines = list(dump_objects(golden(name).store))
    kinds = ("record", "filler", "queue", "cq", "bcq", "indexFile", "config")
    assert of_kinds(lines, *kinds) == dump_lines(name, *kinds)
    assert not of_kinds(lines, "indexEntry", "indexQuery")  # a length does not tell the slots


@pytest.mark.parametrize(("name", "segments_scanned"), [("plain", 2), ("plain-533", 10)])
def test_5_4_scans_the_last_files_only(own_copy: Golden, name: str, segments_scanned: int) -> None:
    """SF-123: what lies in older segments gets no queue units."""
    golden = own_copy(name)
    shutil.rmtree(golden.store / "consumequeue")
    with golden.settings_file.open("a") as settings:
        settings.write("commitLogRecoverMaxNum=2\n")
    segments = sorted(int(path.name) for path in (golden.store / "commitlog").iterdir())
    scanned = segments[-segments_scanned:]
    lines = lines_of(golden)
    records = [line["physicalOffset"] for line in of_kinds(lines, "record")]
    in_queues = {line["physicalOffset"] for line in of_kinds(lines, "cq") if line["size"] < 1 << 30}
    assert in_queues == {position for position in records if position >= scanned[0]}
    assert len(records) == len(dump_lines(name, "record"))


def test_damage_before_the_end_is_told(own_copy: Golden) -> None:
    """The log after it, from the next segment on, is shown all the same."""
    golden = own_copy("plain")
    first = golden.store / "commitlog" / "00000000000000000000"
    records = dump_lines("plain", "record")
    damaged = records[3]["physicalOffset"]
    data = bytearray(first.read_bytes())
    data[damaged + 4] ^= 0xFF
    first.write_bytes(data)
    lines = lines_of(golden)
    (told,) = of_kinds(lines, "invalid")
    assert (told["physicalOffset"], told["reason"]) == (damaged, "unknown magic")
    later = [line for line in records if line["physicalOffset"] >= golden.segment_bytes]
    assert of_kinds(lines, "record") == records[:3] + later
