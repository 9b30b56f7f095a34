"""Messages of inner batches as a consumer's kernel takes them: one for each unit (RD-70, RD-73)."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import numpy as np
import pytest

from gantrymq.shm import layout
from gantrymq.shm.codes import Stop
from gantrymq.shm.kernels import fetch, inner, scan
from gantrymq.shm.properties import java_hash
from tests.support.queue_files import QueueFiles, lay_out, random_record
from tests.unit.test_fetch import Reader

#: Tag, body and flag of each message.
MESSAGES = [("paid", b"one", 7), ("längs", b"", -3), ("paid", b"three" * 50, 0), ("", b"4", 1)]
NOT_ONE_MORE = struct.pack(">iiiii", 0, 0, 0, 0, 5) + b"five"


def stored(tag: str, body: bytes, flag: int) -> bytes:
    properties = f"UNIQ_KEY\x01{tag}{flag}\x02".encode()
    properties += f"TAGS\x01{tag}\x02".encode() if tag else b""
    head = struct.pack(">iiiii", 0, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def batches(seed: int, behind: bytes = b"") -> QueueFiles:
    """A single message, an inner batch, another single one; a unit for each message."""
    dice = random.Random(seed)
    first, batch = random_record(dice, 0), random_record(dice, 1)
    body = b"".join(stored(*message) for message in MESSAGES) + behind
    batch = replace(batch, body=body, sys_flag=batch.sys_flag | layout.SYS_INNER_BATCH)
    last = random_record(dice, 1 + len(MESSAGES))
    files = lay_out([first, batch, last])
    units = files.units.reshape(3, -1)
    rows = np.repeat(units, [1, len(MESSAGES), 1], axis=0).copy()
    codes = [java_hash(tag) if tag else 0 for tag, _body, _flag in MESSAGES]
    rows[1:-1, layout.CQ_TAGS :] = np.array(codes, ">i8").view(np.uint8).reshape(-1, 8)
    return replace(files, units=rows.reshape(-1))


def reader_of(files: QueueFiles, **how: str) -> Reader:
    reader = Reader(files, **how)  # type: ignore[arg-type] # tags or sql
    reader.form[fetch.END_OFFSET] = len(MESSAGES) + 2
    return reader


def test_each_unit_of_an_inner_batch_is_its_message(seed: int) -> None:
    """Offset base + i, the batch's place, times and hosts; its own body, properties and flag."""
    files = batches(seed)
    reader = reader_of(files)
    assert reader.fetch() is Stop.DONE
    assert reader.column(fetch.QUEUE_OFFSET) == list(range(len(MESSAGES) + 2))
    batch = files.records[1]
    for row, (tag, body, flag) in enumerate(MESSAGES, 1):
        assert reader.body(row) == body
        assert stored(tag, body, flag).endswith(reader.property_bytes(row))
        assert reader.column(fetch.FLAG)[row] == flag
        assert reader.column(fetch.SYS_FLAG)[row] == batch.sys_flag & ~layout.SYS_INNER_BATCH
        assert reader.column(fetch.POSITION)[row] == batch.physical_offset
        assert reader.column(fetch.STORE_MS)[row] == batch.store_timestamp
        assert reader.hosts_of(row).startswith(batch.born_host)
    for row, record in ((0, files.records[0]), (-1, files.records[2])):
        assert reader.body(row % reader.rows) == record.body
        assert reader.column(fetch.FLAG)[row] == record.flag


def test_a_row_of_a_batch_needs_no_more_room_than_its_message(seed: int) -> None:
    """So a batch may be larger than the columns are."""
    files = batches(seed)
    reader = reader_of(files)
    reader.form[fetch.OFFSET], reader.form[fetch.END_OFFSET] = 1, 1 + len(MESSAGES)
    reader.bodies = np.zeros(sum(len(stored(*m)) for m in MESSAGES) - 60, np.uint8)
    assert len(files.records[1].body) > reader.bodies.size
    assert reader.fetch() is Stop.DONE
    assert reader.rows == len(MESSAGES)


def test_a_filter_looks_at_each_message(seed: int) -> None:
    """Tags; an expression, of which the reference is asked for each message of one place."""
    tagged = reader_of(batches(seed), tags="paid")
    tagged.form[fetch.OFFSET], tagged.form[fetch.END_OFFSET] = 1, 1 + len(MESSAGES)
    assert tagged.fetch() is Stop.DONE
    assert tagged.column(fetch.QUEUE_OFFSET) == [1, 3]
    reader = reader_of(batches(seed), sql="TAGS LIKE 'l_ngs' OR TAGS = 'längs!'")
    reader.form[fetch.OFFSET], reader.form[fetch.END_OFFSET] = 1, 1 + len(MESSAGES)
    asked = []
    while (stop := reader.fetch()) is Stop.ASKED:
        at, size = (
            int(reader.form[fetch.ROW_AT + n]) for n in (scan.PROPERTIES_AT, scan.PROPERTIES_SIZE)
        )
        tag = "längs" if b"l\xc3\xa4ngs" in reader.files.log[at : at + size].tobytes() else ""
        asked.append(tag)
        mark = int(reader.form[fetch.WANTED_POSITION]) + 1
        reader.form[fetch.VERDICT] = mark if tag else -mark
    assert stop is Stop.DONE
    assert reader.column(fetch.QUEUE_OFFSET) == [2]
    assert asked.count("längs") == 1


@pytest.mark.parametrize("ours", [0, 1])
def test_a_batch_may_be_gone_through_in_any_order(seed: int, ours: int) -> None:
    """What is remembered of the batch that was judged last is no other batch's."""
    dice = random.Random(seed)
    made = []
    for number in range(2):
        body = b"".join(stored(tag, b"%d" % number + text, flag) for tag, text, flag in MESSAGES)
        record = random_record(dice, number * len(MESSAGES))
        made.append(replace(record, body=body, sys_flag=record.sys_flag | layout.SYS_INNER_BATCH))
    files = lay_out(made)
    units = np.repeat(files.units.reshape(2, -1), len(MESSAGES), axis=0).reshape(-1)
    reader = Reader(replace(files, units=units))
    reader.form[fetch.OURS] = ours
    ways = [0, 1, 2, 3, 2, 2, 0, 5, 7, 1, 4, 6, 5, 3]
    for row, offset in enumerate(ways):
        reader.form[fetch.OFFSET], reader.form[fetch.END_OFFSET] = offset, offset + 1
        assert reader.fetch() is Stop.DONE
        batch, number = divmod(offset, len(MESSAGES))
        assert reader.body(row) == b"%d" % batch + MESSAGES[number][1]
        assert reader.column(fetch.FLAG)[row] == MESSAGES[number][2]
    assert reader.column(fetch.QUEUE_OFFSET) == ways


def test_a_batch_that_is_damaged_is_not_taken_for_one_that_was_judged(seed: int) -> None:
    """Its sum is asked for as long as it does not hold."""
    files = batches(seed)
    log = files.log.copy()
    at = files.records[1].physical_offset - files.log_base
    place = bytes(log[at:].tobytes()).index(b"three") + at
    log[place] ^= 1
    reader = reader_of(replace(files, log=log))
    reader.form[fetch.OURS], reader.form[fetch.OFFSET] = 0, 1
    for _ in range(2):
        assert reader.fetch() is Stop.INVALID
    assert reader.rows == 0


@pytest.mark.parametrize("offset", [0, 5])
def test_a_unit_that_a_batch_has_no_message_for_is_refused(seed: int, offset: int) -> None:
    """Behind its last one, and before its first."""
    files = batches(seed)
    units = files.units.reshape(-1, layout.CQ_UNIT_BYTES).copy()
    units[offset] = units[1]
    reader = reader_of(replace(files, units=units.reshape(-1)))
    reader.form[fetch.OFFSET] = offset
    assert reader.fetch() is Stop.INVALID
    assert reader.rows == 0


def test_what_follows_the_messages_of_a_batch_is_none_of_them(seed: int) -> None:
    """Lengths that do not add up end the list, for those who make units and those who read them."""
    files = batches(seed, behind=NOT_ONE_MORE)
    rows = np.zeros(3 * scan.ROW_WORDS, np.int64)
    form = np.array([0, files.log_base, 0, 0, 0, 0], np.int64)
    scan.scan_log(files.log, form, rows)
    assert form[5] == 3
    state, scratch = np.zeros(inner.FORM_WORDS, np.int64), np.zeros(scan.ROW_WORDS, np.int64)
    out = np.zeros(2 * inner.MESSAGE_WORDS, np.int64)
    listed: list[list[int]] = []
    while count := inner.list_messages(files.log, rows, state, scratch, out):
        listed += out.reshape(-1, inner.MESSAGE_WORDS)[:count].tolist()
    offsets = [row[inner.MESSAGE_OFFSET] for row in listed]
    assert offsets == list(range(len(MESSAGES) + 2)), "two at a time"
    codes = [java_hash(tag) if tag else 0 for tag, _body, _flag in MESSAGES]
    assert [row[inner.MESSAGE_TAGS] for row in listed][1:-1] == codes
    assert [row[inner.MESSAGE_ROW] for row in listed] == [0, 1, 1, 1, 1, 2]
    units = files.units.reshape(-1, layout.CQ_UNIT_BYTES).copy()
    units[5] = units[4]
    reader = reader_of(replace(files, units=units.reshape(-1)))
    assert reader.fetch() is Stop.INVALID
    assert reader.rows == 1 + len(MESSAGES)
