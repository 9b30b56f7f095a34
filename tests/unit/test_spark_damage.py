"""badRecords=report: what is damaged is a row with reason, place and bytes; all else is read."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd.checkpoint import CheckpointFile
from gantrymq.clients.spark import damage as spark_damage
from gantrymq.clients.spark import planning
from gantrymq.clients.spark.options import BAD_TYPES, COLUMN_TYPES, ReadOptions
from gantrymq.clients.spark.scan import read_rows
from gantrymq.clients.spark.stream import parts_between
from gantrymq.shm.checkpoint import FILE as CHECKPOINT
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.ranges import EVERYTHING, write_ranges
from gantrymq.shm.record import Record
from gantrymq.shm.storage import PosixStorage
from tests.support.sealed import segment_of, write_segment, write_sidecars
from tests.support.spark_rows import rows_of, sealed_rows
from tests.support.streams import first_position, next_position

SEGMENT_BYTES = 1 << 13
#: What is known of bytes that are no sound record.
SURE = ("physical_offset", "crc_ok", *BAD_TYPES)
Row = dict[str, Any]


@dataclass
class Log:
    """A store of two sealed segments and an active one, all written by us, and its sound rows."""

    root: Path
    placed: list[Record]
    rows: list[Row]

    @contextmanager
    def damaged(self, position: int, new: bytes) -> Iterator[None]:
        """Other bytes at a place, for a while."""
        path = self.root / "commitlog" / f"{position // SEGMENT_BYTES * SEGMENT_BYTES:020d}"
        sound = path.read_bytes()
        at = position % SEGMENT_BYTES
        path.write_bytes(sound[:at] + new + sound[at + len(new) :])
        yield
        path.write_bytes(sound)

    def bytes_at(self, start: int, size: int) -> bytes:
        base = start // SEGMENT_BYTES * SEGMENT_BYTES
        return (self.root / "commitlog" / f"{base:020d}").read_bytes()[start - base :][:size]


def report(log: Log, **options: str) -> tuple[list[Row], list[Row]]:
    """Sound rows and those of damage."""
    rows = rows_of(log.root, badRecords="report", **options)
    assert all(row["crc_ok"] is (row["bad_reason"] is None) for row in rows)
    return (
        [{name: row[name] for name in COLUMN_TYPES} for row in rows if row["crc_ok"]],
        [row for row in rows if not row["crc_ok"]],
    )


@pytest.fixture
def log(tmp_path: Path) -> Log:
    placed = []
    for number in range(3):
        records = [
            Record(
                topic=("orders", "t")[n % 2], body=bytes([n]) * (n * 3), store_timestamp=1 + number,
                properties=b"TAGS\x01a\x02KEYS\x01k%d\x02" % n, queue_offset=n,
            )
            for n in range(12)
        ]  # fmt: skip
        base = number * SEGMENT_BYTES
        view, found = segment_of(records, SEGMENT_BYTES, base, sealed=number < 2)
        write_segment(tmp_path, base, view)
        placed += found
    (tmp_path / "gantry").mkdir()
    write_ranges(PosixStorage(str(tmp_path)), EVERYTHING)
    write_sidecars(tmp_path)
    return Log(tmp_path, placed, rows_of(tmp_path))


def without_sidecars(log: Log) -> None:
    shutil.rmtree(log.root / "gantry" / "segments")


@pytest.mark.parametrize("with_sidecars", [True, False])
def test_one_flipped_bit_costs_one_record(log: Log, with_sidecars: bool, seed: int) -> None:
    """F20: everything around it is read, and its bytes are there, also where its length is hit."""
    if not with_sidecars:
        without_sidecars(log)
    sample = random.Random(seed)
    for n, place in enumerate([*sample.sample(range(88), 24), *sample.sample(range(88, 150), 4)]):
        hit = log.placed[(n * 5) % 24]
        position = hit.physical_offset + place % hit.total_size
        flipped = log.bytes_at(position, 1)[0] ^ (1 << sample.randrange(8))
        with log.damaged(position, bytes([flipped])):
            sound, bad = report(log)
            raw = log.bytes_at(hit.physical_offset, hit.total_size)
        assert sound == [row for row in log.rows if row["physical_offset"] != hit.physical_offset]
        assert [(row["physical_offset"], row["bad_size"]) for row in bad] == [
            (hit.physical_offset, hit.total_size)
        ]
        assert bad[0]["bad_bytes"] == raw
        assert bad[0]["topic"] == (hit.topic if with_sidecars else None)
        others = [name for name in COLUMN_TYPES if name not in (*SURE, "topic")]
        assert [bad[0][name] for name in others] == [None] * len(others)


def test_what_lies_between_two_sound_records_is_one_stretch(log: Log) -> None:
    """Zeroes over several records, at the segment's beginning, amid it and up to its filler."""
    without_sidecars(log)
    first, last = log.placed[:12], log.placed[12:24]
    end = last[-1].physical_offset + last[-1].total_size
    for start, behind, reason in (
        (0, first[2].physical_offset, "no record: "),
        (first[3].physical_offset, first[6].physical_offset, "no record: unknown magic"),
        (last[7].physical_offset + 2, end, "no record: "),
        (end, 2 * SEGMENT_BYTES, "no record: "),
    ):
        with log.damaged(start, b"\xa5" * (behind - start)):
            sound, (bad,) = report(log)
            assert bad["bad_bytes"] == log.bytes_at(bad["physical_offset"], bad["bad_size"])
            with pytest.raises(Corrupt) as caught:
                rows_of(log.root)
        whole = bad["physical_offset"] + bad["bad_size"]
        assert bad["physical_offset"] <= start < behind == whole
        assert start - bad["physical_offset"] in (0, 2)
        assert caught.value.position == bad["physical_offset"]
        assert bad["bad_reason"].startswith(reason)
        assert sound == [
            row for row in log.rows if not bad["physical_offset"] <= row["physical_offset"] < whole
        ]


def test_a_record_that_says_to_be_longer_hides_none(log: Log) -> None:
    """Its size leads to the record behind the next one."""
    without_sidecars(log)
    one, other = log.placed[3:5]
    with log.damaged(one.physical_offset, (one.total_size + other.total_size).to_bytes(4, "big")):
        sound, (bad,) = report(log)
    assert (bad["physical_offset"], bad["bad_size"]) == (one.physical_offset, one.total_size)
    assert len(sound) == len(log.rows) - 1


def test_a_long_stretch_is_rows_of_bounded_size(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_damage, "ROW_BYTES_MAX", 100)
    monkeypatch.setattr(spark_damage, "_BATCH_BYTES_MAX", 250)
    without_sidecars(log)
    size = sum(record.total_size for record in log.placed[:4])
    with log.damaged(0, bytes(range(256)) * 9):
        sound, bad = report(log)
        raw = log.bytes_at(0, sum(row["bad_size"] for row in bad))
    assert b"".join(row["bad_bytes"] for row in bad) == raw
    assert len(raw) >= size
    assert [row["physical_offset"] for row in bad] == list(range(0, len(raw), 100))
    assert {row["bad_size"] for row in bad[:-1]} == {100}
    assert sound


def test_damage_is_shown_whatever_else_is_asked_for(log: Log) -> None:
    """Its time, queue and key are unknown, without a sidecar its topic too."""
    hit = log.placed[2]
    with log.damaged(hit.physical_offset + 50, b"\xff\xff"):
        for options in (
            {"queue": "7"}, {"key": "k5"}, {"startTime": "1", "endTime": "2"}, {"topic": "orders"},
        ):  # fmt: skip
            assert len(report(log, **options)[1]) == 1
        assert report(log, topic="t")[1] == [], "the sidecar says that it is another's"
        without_sidecars(log)
        assert len(report(log, topic="t")[1]) == 1
        columns = "bad_reason,physical_offset"
        rows = rows_of(log.root, badRecords="report", columns=columns)
        assert [row for row in rows if row["bad_reason"]] == [
            {
                "bad_reason": "a checksum or a length of the record is wrong",
                "physical_offset": hit.physical_offset,
            }
        ]


def test_a_stream_passes_over_damage(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches of a few records, also in a segment whose chain is broken."""
    monkeypatch.setattr(planning, "RANGE_BYTES", 1 << 10)
    without_sidecars(log)
    words = {"badRecords": "report", "includeActive": "false"}
    options = ReadOptions.parse({"store": str(log.root), **words})
    sound, bad, at = [], [], first_position(options)
    with log.damaged(log.placed[4].physical_offset, bytes(9)):
        while (end := next_position(options, at, None, (3, None))) > at:
            for part in parts_between(options, {"position": at}, {"position": end}):
                for rows in read_rows(part, options):
                    sound += (rows.base + rows.records.at).tolist()
                    stretches = rows.damage.stretches if rows.damage else ()
                    bad += [rows.base + stretch.at for stretch in stretches]
            at = end
    assert bad == [log.placed[4].physical_offset]
    expected = [record.physical_offset for record in log.placed[:24]]
    assert sound == [position for position in expected if position not in bad]


@pytest.fixture
def active(log: Log) -> list[Record]:
    """Records of the active segment of a broker that runs or was killed, all of them durable."""
    (log.root / "abort").touch()
    set_durable(log, log.placed[-1].physical_offset + log.placed[-1].total_size)
    return log.placed[24:]


def set_durable(log: Log, position: int) -> None:
    file = CheckpointFile(PosixStorage(str(log.root)), bytes(16), 1)
    file.write(position, 0, 0)
    file.close()


#: First byte of a record's size, its magic, its body's length; its last byte; all of its head.
BROKEN = ((0, b"\xff"), (4, b"\0"), (84, b"\xff"), (-1, b"\0"), (0, bytes(88)))


@pytest.mark.parametrize(("at", "new"), BROKEN)
@pytest.mark.parametrize("stopped", [True, False])
def test_a_damaged_durable_record_is_no_torn_tail(
    log: Log, active: list[Record], stopped: bool, at: int, new: bytes
) -> None:
    """The last one, and one amid the others, whose successors are not left out either."""
    if stopped:  # in order, as RocketMQ says it: what was written is durable
        (log.root / "abort").unlink()
        (log.root / CHECKPOINT).unlink()
    whole = rows_of(log.root, includeActive="true")
    assert len(whole) == len(log.placed)
    for hit in (active[-1], active[4]):
        position = hit.physical_offset
        with log.damaged(position + at % hit.total_size, new):
            with pytest.raises(Corrupt, match=f"position {position};") as caught:
                rows_of(log.root, includeActive="true")
            assert caught.value.path == f"commitlog/{2 * SEGMENT_BYTES:020d}"
            sound, (bad,) = report(log, includeActive="true")
            raw = log.bytes_at(position, hit.total_size)
        assert bad["physical_offset"] == position
        assert bad["bad_bytes"] == raw
        assert sound == [row for row in whole if row["physical_offset"] != position]


@pytest.mark.parametrize(("at", "new"), BROKEN)
def test_only_what_is_not_durable_may_be_torn(
    log: Log, active: list[Record], at: int, new: bytes
) -> None:
    last = active[-1]
    set_durable(log, last.physical_offset)
    whole = rows_of(log.root, includeActive="true")
    assert whole[-1]["physical_offset"] == last.physical_offset, "it may be read while it is whole"
    with log.damaged(last.physical_offset + at % last.total_size, new):
        assert rows_of(log.root, includeActive="true") == whole[:-1]
        assert report(log, includeActive="true") == (whole[:-1], [])


@pytest.mark.parametrize(("at", "new"), BROKEN)
def test_a_stream_does_not_wait_at_damage(
    log: Log, active: list[Record], at: int, new: bytes
) -> None:
    """What is durable and cannot be read ends it, or is passed over."""
    hit, start = active[7], active[0].physical_offset
    with log.damaged(hit.physical_offset + at % hit.total_size, new):
        for words in ({}, {"badRecords": "report"}):
            chosen = {"store": str(log.root), "includeActive": "true"} | words
            options = ReadOptions.parse(chosen)
            end = next_position(options, start, None, (None, None))
            assert end == active[-1].physical_offset + active[-1].total_size
            parts = parts_between(options, {"position": start}, {"position": end})
            rows = (len(rows) for part in parts for rows in read_rows(part, options))
            if words:
                assert sum(rows) == len(active) - 1
            else:
                with pytest.raises(Corrupt, match=f"position {hit.physical_offset};"):
                    list(rows)


def test_a_last_segment_without_its_beginning_is_damaged_not_unused(
    log: Log, active: list[Record]
) -> None:
    """A page of zeroes there, as of one that was made ahead; the one before it stays sealed."""
    without_sidecars(log)
    start, behind = active[0].physical_offset, active[3].physical_offset
    whole = rows_of(log.root, includeActive="true")
    with log.damaged(start, bytes(behind - start)):
        with pytest.raises(Corrupt, match=f"position {start};"):
            rows_of(log.root, includeActive="true")
        sealed = [row for row in whole if row["physical_offset"] < start]
        assert sealed_rows(log.root) == sealed
        sound, (bad,) = report(log, includeActive="true")
    assert (bad["physical_offset"], bad["bad_size"]) == (start, behind - start)
    assert len(sound) == len(whole) - 3
