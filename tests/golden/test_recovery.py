"""Stage `recovered` on golden stores that were tampered with: what a start makes of them.

Expectations follow from the sets' own dumps and from what SF-110 to SF-120 tell of real starts.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd.dump import dump_objects
from tests.support.golden import GoldenStore, dump_lines

Golden = Callable[[str], GoldenStore]
Line = dict[str, Any]
Key = tuple[str, int]
UNIT_BYTES = 20


@pytest.fixture
def plain(own_copy: Golden) -> GoldenStore:
    """11 queues in 6 segments, stopped cleanly."""
    return own_copy("plain")


def recovered(golden: GoldenStore) -> list[Line]:
    return list(dump_objects(golden.store, golden.settings_file))


def units(lines: list[Line]) -> dict[Key, list[Line]]:
    found: dict[Key, list[Line]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "cq":
            found[line["topic"], line["queueId"]].append(line)
    return dict(found)


def queues(lines: list[Line]) -> dict[Key, tuple[int, int]]:
    return {
        (line["topic"], line["queueId"]): (line["minOffset"], line["maxOffset"])
        for line in lines
        if line["kind"] == "queue"
    }


def summary_of(lines: list[Line]) -> Line:
    assert lines[-1]["kind"] == "summary"
    return lines[-1]


def expected_units() -> dict[Key, list[Line]]:
    return units(dump_lines("plain", "cq"))


def farthest_queue() -> Key:
    """The queue with the log's last record."""
    last = dump_lines("plain", "record")[-1]
    return last["topic"], last["queueId"]


def segment_files(golden: GoldenStore) -> list[Path]:
    return sorted((golden.store / "commitlog").iterdir())


def queue_files(golden: GoldenStore, key: Key) -> list[Path]:
    return sorted((golden.store / "consumequeue" / key[0] / str(key[1])).iterdir())


def zero(path: Path, start: int, count: int) -> None:
    data = bytearray(path.read_bytes())
    assert any(data[start : start + count])
    data[start : start + count] = bytes(count)
    path.write_bytes(data)


def zero_unit(golden: GoldenStore, key: Key, number: int) -> None:
    file_bytes = int(golden.settings["mappedFileSizeConsumeQueue"])
    file, at = divmod(number * UNIT_BYTES, file_bytes)
    zero(queue_files(golden, key)[file], at, UNIT_BYTES)


def leave_a_crash(golden: GoldenStore) -> None:
    """As SF-110 forces a full check: `abort` there, no checkpoint."""
    (golden.store / "abort").write_text("1")
    (golden.store / "checkpoint").unlink()


@pytest.mark.parametrize("crashed", [False, True])
def test_a_missing_queue_comes_back_only_after_a_crash(plain: GoldenStore, crashed: bool) -> None:
    """SF-110, SF-120; a clean stop brings back only what lies behind the farthest queue (SF-90)."""
    key = ("PlainA", 1)
    assert key != farthest_queue()
    shutil.rmtree(plain.store / "consumequeue" / key[0] / str(key[1]))
    if crashed:
        leave_a_crash(plain)
    expected = expected_units()
    if not crashed:
        del expected[key]
    assert units(recovered(plain)) == expected


@pytest.mark.parametrize("crashed", [False, True])
def test_a_unit_short_comes_back_only_after_a_crash(plain: GoldenStore, crashed: bool) -> None:
    """SF-68, SF-110, SF-120."""
    key = ("PlainB", 0)
    assert key != farthest_queue()
    expected = expected_units()
    zero_unit(plain, key, len(expected[key]) - 1)
    if crashed:
        leave_a_crash(plain)
    else:
        expected[key].pop()
    assert units(recovered(plain)) == expected


def test_records_behind_all_queues_are_dispatched(plain: GoldenStore) -> None:
    """SF-90: all but a record that starts exactly where the farthest queue ends.

    Later records of its queue are appended all the same, one unit too early (SF-65).
    """
    records = dump_lines("plain", "record")[-30:]
    expected = expected_units()
    for record in records:
        key = record["topic"], record["queueId"]
        zero_unit(plain, key, record["queueOffset"])
    lost = records[0]
    key = lost["topic"], lost["queueId"]
    before = [unit for unit in expected[key] if unit["index"] < lost["queueOffset"]]
    behind = [unit for unit in expected[key] if unit["index"] > lost["queueOffset"]]
    assert behind
    expected[key] = before + [{**unit, "index": unit["index"] - 1} for unit in behind]
    assert units(recovered(plain)) == expected


def test_units_behind_the_logs_end_are_cut(plain: GoldenStore) -> None:
    """SF-92, SF-110: the last 20 records are gone from the log."""
    records = dump_lines("plain", "record")
    end = records[-20]["physicalOffset"]
    last = segment_files(plain)[-1]
    zero(last, end - int(last.name), 200)
    lines = recovered(plain)
    assert (summary_of(lines)["maxPhyOffset"], summary_of(lines)["records"]) == (end, 786)
    kept = {
        key: [unit for unit in found if unit["physicalOffset"] < end]
        for key, found in expected_units().items()
    }
    assert units(lines) == {key: found for key, found in kept.items() if found}
    assert queues(lines) == {key: (0, len(found)) for key, found in kept.items()}


def test_a_log_cut_at_a_segments_start(plain: GoldenStore) -> None:
    """SF-92: the last segment is all zero, so the log ends at its start."""
    last = segment_files(plain)[-1]
    last.write_bytes(bytes(plain.segment_bytes))
    lines = recovered(plain)
    assert summary_of(lines)["maxPhyOffset"] == int(last.name)
    assert [line["kind"] for line in lines if line["kind"] == "filler"] == ["filler"] * 5


def test_a_log_that_ends_with_a_filler(plain: GoldenStore) -> None:
    """SF-92, as 5.4.0 does: without a segment behind it the last record's end is the log's."""
    segment_files(plain)[-1].unlink()
    lines = recovered(plain)
    fillers = [line["physicalOffset"] for line in dump_lines("plain", "filler")]
    assert summary_of(lines)["maxPhyOffset"] == fillers[-1]
    assert [line["physicalOffset"] for line in lines if line["kind"] == "filler"] == fillers[:-1]


@pytest.mark.parametrize("crashed", [False, True])
def test_a_log_cut_before_two_empty_segments(plain: GoldenStore, crashed: bool) -> None:
    """As 5.4.0 does: the filler stays, the log ends at the first empty segment's start."""
    for segment in segment_files(plain)[-2:]:
        segment.write_bytes(bytes(plain.segment_bytes))
    if crashed:
        leave_a_crash(plain)
    lines = recovered(plain)
    assert summary_of(lines)["maxPhyOffset"] == 4 * plain.segment_bytes
    fillers = [line["physicalOffset"] for line in lines if line["kind"] == "filler"]
    assert len(fillers) == 4
    assert all(
        unit["physicalOffset"] < fillers[-1] for found in units(lines).values() for unit in found
    )


def test_5_3_starts_with_the_segment_that_the_queues_reach(own_copy: Golden) -> None:
    """As 5.3.3 does after a clean stop: it takes an empty segment's start for the log's end."""
    golden = own_copy("plain-533")
    for segment in segment_files(golden)[-2:]:
        segment.write_bytes(bytes(golden.segment_bytes))
    assert summary_of(recovered(golden))["maxPhyOffset"] == int(segment_files(golden)[-1].name)


def test_no_log_means_no_queues(plain: GoldenStore) -> None:
    """SF-95: they are there, but empty."""
    for segment in segment_files(plain):
        segment.unlink()
    lines = recovered(plain)
    assert queues(lines) == dict.fromkeys(expected_units(), (0, 0))
    assert not units(lines)
    assert (summary_of(lines)["minPhyOffset"], summary_of(lines)["maxPhyOffset"]) == (-1, 0)


def test_min_offsets_follow_the_oldest_segment(plain: GoldenStore) -> None:
    """SF-67, SF-102: segments are gone; the first unit that stays is sought in the oldest file."""
    for segment in segment_files(plain)[:2]:
        segment.unlink()
    log_min = 2 * plain.segment_bytes
    units_per_file = int(plain.settings["mappedFileSizeConsumeQueue"]) // UNIT_BYTES
    lines = recovered(plain)
    assert summary_of(lines)["minPhyOffset"] == log_min
    outcomes = set()
    for key, found in expected_units().items():
        wanted = next(unit["index"] for unit in found if unit["physicalOffset"] >= log_min)
        in_oldest_file = wanted < units_per_file
        outcomes.add(in_oldest_file)
        first = wanted if in_oldest_file else 0
        assert queues(lines)[key] == (first, len(found))
        assert units(lines)[key] == found[first:]
    assert outcomes == {False, True}


def test_a_queue_whose_records_are_all_gone_is_empty_but_goes_on(own_copy: Golden) -> None:
    """SF-67, SF-75: min = max, of plain queues and batch queues."""
    golden = own_copy("batch")
    for segment in segment_files(golden)[:4]:
        segment.unlink()
    found = queues(recovered(golden))
    assert found["BatchT", 1] == (54, 54)
    assert found["BcqT", 0] == (55, 55)
    assert {first for key, (first, _) in found.items() if key != ("BatchT", 1)} != {0}
    assert all(first <= last for first, last in found.values())


def test_rebuilt_queues_of_a_shortened_log_keep_their_offsets(plain: GoldenStore) -> None:
    """SF-65: filler units stand for what is gone; min offset is behind them."""
    for segment in segment_files(plain)[:2]:
        segment.unlink()
    shutil.rmtree(plain.store / "consumequeue")
    lines = recovered(plain)
    log_min = 2 * plain.segment_bytes
    for key, found in units(lines).items():
        wanted = [u for u in expected_units()[key] if u["physicalOffset"] >= log_min]
        assert found == wanted, key
        assert queues(lines)[key] == (wanted[0]["index"], wanted[-1]["index"] + 1)


def test_recovery_trusts_all_but_the_last_three_queue_files(plain: GoldenStore) -> None:
    """SF-88: an all-zero unit ends a queue there only."""
    key = ("PlainA", 3)
    files = queue_files(plain, key)
    assert len(files) == 3  # 137 units of 50 a file
    zero_unit(plain, key, 60)
    lines = recovered(plain)
    assert queues(lines)[key] == (0, 60)
    assert units(lines)[key] == expected_units()[key][:60]


def test_topics_come_from_the_backup_if_need_be(plain: GoldenStore) -> None:
    """SF-103."""
    (plain.store / "config" / "topics.json").write_text("{")
    assert summary_of(recovered(plain))["topics"] == dump_lines("plain", "summary")[0]["topics"]


def test_index_files_of_a_crash_depend_on_the_checkpoint(plain: GoldenStore) -> None:
    """SF-96: all go without one, and one is made anew from the scan."""
    old = dump_lines("plain", "summary")[0]["indexFilesAfterLoad"]
    leave_a_crash(plain)
    lines = recovered(plain)
    assert not set(old) & set(summary_of(lines)["indexFilesAfterLoad"])
    found = {
        (line["topic"], line["key"]): line["physicalOffsets"]
        for line in lines
        if line["kind"] == "indexQuery"
    }
    expected = dump_lines("plain", "indexQuery")
    assert found == {(line["topic"], line["key"]): line["physicalOffsets"] for line in expected}


@pytest.mark.parametrize(("later_ms", "segment"), [(0, 2), (-1, 1)])
def test_a_crashed_store_is_scanned_from_the_checkpoint_on(
    own_copy: Golden, later_ms: int, segment: int
) -> None:
    """SF-84, SF-91: the latest segment that begins at or before the checkpoint's min timestamp."""
    golden = own_copy("crash")
    shutil.rmtree(golden.store / "consumequeue")
    records = dump_lines("crash", "record")
    base = 2 * golden.segment_bytes
    (start,) = (r["storeTimestamp"] for r in records if r["physicalOffset"] == base)
    times = (start + 3000 + later_ms).to_bytes(8, "big") * 2
    (golden.store / "checkpoint").write_bytes(times.ljust(4096, b"\0"))
    found = {
        unit["physicalOffset"] for queue in units(recovered(golden)).values() for unit in queue
    }
    scanned = {r["physicalOffset"] for r in records} - set(range(segment * golden.segment_bytes))
    assert found - {0} == scanned
