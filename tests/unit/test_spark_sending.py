"""How rows of a Spark batch are put together into all-or-nothing batches."""

from __future__ import annotations

import pytest

from gantrymq.clients.message import Message
from gantrymq.clients.spark.sink import sending
from gantrymq.shm import limits
from gantrymq.shm.errors import MessageIllegal
from tests.support.trials import mends

SEGMENT: int = 1 << 30
LARGE = {"p": "x" * 30_000}


@mends("S38")
def test_a_batch_holds_what_the_writer_can_take_with_properties() -> None:
    rows = [Message("orders", b"%d" % number, properties=LARGE) for number in range(300)]
    chunks = list(sending._chunks(rows, SEGMENT))
    assert [message for chunk in chunks for message in chunk] == rows
    assert max(30_000 * len(chunk) for chunk in chunks) <= limits.STAGING_BYTES


@mends("S38")
def test_a_batch_fits_into_a_small_segment() -> None:
    rows = [Message("orders", b"x" * 1000) for _ in range(40)]
    chunks = list(sending._chunks(rows, 4096))
    assert max(map(len, chunks)) == 3
    assert sum(map(len, chunks)) == 40


@mends("S38")
def test_a_row_that_no_segment_holds_is_named() -> None:
    rows = [Message("orders", b"1"), Message("orders", b"2", properties=LARGE)]
    with pytest.raises(MessageIllegal, match=r"row 8 of the batch.* a segment has 16384"):
        list(sending._chunks(rows, 16_384, 7))


def test_small_rows_go_together() -> None:
    rows = [Message("orders", b"x")] * (sending.CHUNK_ROWS // 2 + 1)
    assert [len(chunk) for chunk in sending._chunks(rows, SEGMENT)] == [len(rows)]
