"""Times that Spark and its users give in microseconds, where the log has milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.sink.options import WriteOptions
from gantrymq.clients.spark.sink.staging import as_messages
from gantrymq.shm.errors import SettingIllegal
from tests.support.trials import mends

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WHOLE_MS = (-500, -1, 0, 1, 1_700_000_000_123, 253_402_300_799_000)
#: An Arabic digit, Roman ones of full width, and what Python takes between digits.
FOREIGN_NUMBERS = ("\u0661", "\uff11\uff12", "1_0")


def moments() -> list[tuple[datetime, int]]:
    """Times, and the first whole millisecond that is not before each."""
    return [
        (EPOCH + timedelta(milliseconds=ms, microseconds=micros), ms + (micros > 0))
        for ms in WHOLE_MS
        for micros in (0, 1, 500, 999)
    ]


@mends("S292")
def test_a_read_begins_and_ends_at_the_next_millisecond() -> None:
    for moment, first_ms in moments():
        text = moment.isoformat()
        read = ReadOptions.parse({"store": "s", "startTime": text, "endTime": text})
        assert (read.start_ms, read.end_ms) == (first_ms, first_ms), text


@mends("S293")
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", None])
@pytest.mark.parametrize("unit", ["us", "ms", "s"])
def test_no_row_is_due_before_its_time(unit: str, zone: str | None) -> None:
    given = [(moment, ms) for moment, ms in moments() if unit == "us" or moment.microsecond == 0]
    whole = [moment.replace(tzinfo=None) if zone is None else moment for moment, _ in given]
    due = pa.array([*whole, None], pa.timestamp(unit, zone))
    batch = pa.record_batch({"body": pa.array([b"x"] * len(due)), "delivery_timestamp": due})
    found = as_messages(batch, "t").column("delivery_timestamp").to_pylist()
    assert found == [*(ms for _, ms in given), None]


@mends("S294")
@pytest.mark.parametrize("text", FOREIGN_NUMBERS)
def test_options_are_numbers_of_plain_digits(text: str) -> None:
    for name in ("queue", "startOffset", "maxRowsPerTrigger", "startTime"):
        with pytest.raises(SettingIllegal, match=f"option '{name}' = "):
            ReadOptions.parse({"store": "s", name: text})
    with pytest.raises(SettingIllegal, match="option 'timeout' = "):
        WriteOptions.parse({"home": "h", "topic": "t", "timeout": text})
    assert WriteOptions.parse({"home": "h", "topic": "t", "timeout": "2.5"}).timeout_s == 2.5
    with pytest.raises(SettingIllegal, match="option 'endOffset' = "):
        ReadOptions.parse({"store": "s", "endOffset": "9" * 5000})
