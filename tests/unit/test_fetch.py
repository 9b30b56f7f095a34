"""Units to columns: what is taken, what is passed over, and what stops the way."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from gantrymq.clients.filtertable import FilterTable
from gantrymq.shm import layout
from gantrymq.shm.codes import Stop
from gantrymq.shm.filter import parse_sql, parse_tags
from gantrymq.shm.jit import JIT_OFF
from gantrymq.shm.kernels import fetch
from gantrymq.shm.properties import LOST_TAG, java_hash, parse_properties
from gantrymq.shm.ranges import OPEN
from tests.support.queue_files import QueueFiles, lay_out, random_record
from tests.support.tree import ROOT


@dataclass
class Reader:
    """Arrays of a consumer around the kernel."""

    files: QueueFiles
    rows_max: int = 64
    body_bytes: int = 1 << 16
    tags: str = "*"
    sql: str = ""
    form: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.form = np.zeros(fetch.FORM_WORDS, np.int64)
        self.form[fetch.END_OFFSET] = len(self.files.records)
        self.form[fetch.LOG_BASE] = self.files.log_base
        self.form[fetch.STRETCH_END] = OPEN
        self.form[fetch.OURS] = 1
        found = FilterTable.of(parse_sql(self.sql) if self.sql else parse_tags(self.tags))
        self.form[fetch.FILTER] = found.kind
        self.table, self.tag_bytes = found.words, found.texts
        self.bodies = np.zeros(self.body_bytes, np.uint8)
        self.properties = np.zeros(1 << 16, np.uint8)
        self.body_offsets = np.zeros(self.rows_max + 1, np.int64)
        self.property_offsets = np.zeros(self.rows_max + 1, np.int64)
        self.columns = np.zeros(fetch.COLUMNS * self.rows_max, np.int64)
        self.hosts = np.zeros(fetch.HOSTS_BYTES * self.rows_max, np.uint8)

    def fetch(self) -> Stop:
        return Stop(
            fetch.fetch(
                self.files.units, self.files.log, self.form, self.table, self.tag_bytes,
                self.bodies, self.body_offsets, self.properties, self.property_offsets,
                self.columns, self.hosts,
            )
        )  # fmt: skip

    @property
    def rows(self) -> int:
        return int(self.form[fetch.ROWS])

    def column(self, number: int) -> list[int]:
        return [int(n) for n in self.columns.reshape(fetch.COLUMNS, -1)[number, : self.rows]]

    def body(self, row: int) -> bytes:
        return self.bodies[self.body_offsets[row] : self.body_offsets[row + 1]].tobytes()

    def property_bytes(self, row: int) -> bytes:
        offsets = self.property_offsets
        return self.properties[offsets[row] : offsets[row + 1]].tobytes()

    def hosts_of(self, row: int) -> bytes:
        return self.hosts[row * fetch.HOSTS_BYTES : (row + 1) * fetch.HOSTS_BYTES].tobytes()


def records(seed: int, count: int = 24) -> QueueFiles:
    dice = random.Random(seed)
    return lay_out([random_record(dice, offset) for offset in range(count)], log_base=65536)


def writable(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return array.copy()


@pytest.mark.parametrize("run", range(8))
@pytest.mark.parametrize("trailers", [True, False])
def test_every_field_of_every_record_arrives(seed: int, run: int, trailers: bool) -> None:
    dice = random.Random(seed + run)
    made = [random_record(dice, offset) for offset in range(30)]
    files = lay_out(made, trailers=trailers, log_base=1 << 40)
    reader = Reader(files)
    reader.form[fetch.OURS] = trailers
    assert reader.fetch() is Stop.DONE
    assert reader.rows == 30
    assert reader.form[fetch.OFFSET] == 30
    for row, record in enumerate(files.records):
        assert reader.body(row) == record.body
        stored = parse_properties(reader.property_bytes(row))
        stored.pop("__CRC32#", None)
        assert stored == record.property_map()
        hosts = reader.hosts_of(row)
        assert hosts.startswith(record.born_host)
        assert hosts[fetch.STORE_HOST_AT :].startswith(record.store_host)
    for number, name in (
        (fetch.QUEUE_OFFSET, "queue_offset"),
        (fetch.POSITION, "physical_offset"),
        (fetch.BORN_MS, "born_timestamp"),
        (fetch.STORE_MS, "store_timestamp"),
        (fetch.RECONSUME_TIMES, "reconsume_times"),
        (fetch.SYS_FLAG, "sys_flag"),
        (fetch.FLAG, "flag"),
    ):
        assert reader.column(number) == [getattr(record, name) for record in files.records], name


def test_calls_add_rows_and_stop_where_there_is_no_room(seed: int) -> None:
    files = records(seed)
    reader = Reader(files, rows_max=10)
    reader.form[fetch.END_OFFSET] = 4
    assert reader.fetch() is Stop.DONE
    reader.form[fetch.END_OFFSET] = 24
    assert reader.fetch() is Stop.LIMIT
    assert reader.rows == 10
    assert [reader.body(row) for row in range(10)] == [r.body for r in files.records[:10]]


def test_a_row_that_does_not_fit_says_how_large_it_is(seed: int) -> None:
    record = replace(random_record(random.Random(seed), 0), body=bytes(5000))
    files = lay_out([record])
    reader = Reader(files, body_bytes=4096)
    assert reader.fetch() is Stop.LIMIT
    assert reader.rows == 0
    size = int(reader.form[fetch.WANTED_SIZE])
    larger = Reader(files, body_bytes=size)
    assert larger.fetch() is Stop.DONE
    assert larger.body(0) == bytes(5000)


def test_tags_are_matched_by_hash_and_then_exactly(seed: int) -> None:
    """FL-3, FL-4: Aa and BB have one hash; what is passed over moves the offset all the same."""
    dice = random.Random(seed)
    tags = ["Aa", "BB", "paid", "", "Aa", "refunded"]
    made = []
    for offset, tag in enumerate(tags):
        text = f"UNIQ_KEY\x01{offset:032d}\x02" + (f"TAGS\x01{tag}\x02" if tag else "")
        made.append(replace(random_record(dice, offset), properties=text.encode()))
    files = lay_out(made)
    for text, wanted in (
        ("Aa", [0, 4]),
        ("BB", [1]),
        ("Aa || BB", [0, 1, 4]),
        ("paid||refunded", [2, 5]),
        (" ", []),
        ("*", [0, 1, 2, 3, 4, 5]),
    ):
        reader = Reader(files, tags=text)
        assert reader.fetch() is Stop.DONE
        assert reader.column(fetch.QUEUE_OFFSET) == wanted, text
        assert reader.form[fetch.OFFSET] == 6


def test_what_stands_for_a_lost_record_is_passed_over_unless_asked_for(seed: int) -> None:
    """ADR 0014: `*` takes all but these, also where a neighbour's tag has the same hash."""
    dice = random.Random(seed)
    like = 'H"' + LOST_TAG[2:]
    assert java_hash(like) == java_hash(LOST_TAG)
    blocks = ["", f"TAGS\x01{LOST_TAG}\x02", f"TAGS\x01{like}\x02", f"a\x01b\x02TAGS\x01{LOST_TAG}"]
    blocks += [f"TAGS\x01{LOST_TAG}\x02TAGS\x01{LOST_TAG}2\x02", f"KEYS\x01{LOST_TAG}\x02"]
    made = [
        replace(random_record(dice, offset), properties=block.encode())
        for offset, block in enumerate(blocks)
    ]
    for text, wanted in (("*", [0, 2, 4, 5]), (LOST_TAG, [1, 3]), (like, [2])):
        reader = Reader(lay_out(made), tags=text)
        assert reader.fetch() is Stop.DONE
        assert reader.column(fetch.QUEUE_OFFSET) == wanted, text
        assert reader.form[fetch.OFFSET] == len(made)


def test_the_last_of_several_tags_counts(seed: int) -> None:
    """SF-28; the unit's code is of the last one too."""
    properties = b"TAGS\x01first\x02TAGS\x01second\x02"
    files = lay_out([replace(random_record(random.Random(seed), 0), properties=properties)])
    for tag, rows in (("first", 0), ("second", 1)):
        reader = Reader(files, tags=tag)
        assert reader.fetch() is Stop.DONE
        assert reader.rows == rows


def test_an_expression_takes_what_it_is_true_of(seed: int) -> None:
    """FL-14, FL-15: by the record's properties, whatever its tag."""
    dice = random.Random(seed)
    files = lay_out([random_record(dice, n) for n in range(30)])
    reader = Reader(files, sql="n BETWEEN 5 AND 20 AND TAGS IN ('paid', 'längs')")
    assert reader.fetch() is Stop.DONE
    wanted = [
        n
        for n, record in enumerate(files.records)
        if 5 <= n <= 20 and parse_properties(record.properties).get("TAGS") in ("paid", "längs")
    ]
    assert reader.column(fetch.QUEUE_OFFSET) == wanted


def test_what_a_program_leaves_open_is_asked_for_once(seed: int) -> None:
    """`_` is a character, which may have several bytes: the reference says."""
    dice = random.Random(seed)
    files = lay_out(
        [
            replace(random_record(dice, n), properties=f"TAGS\x01{tag}\x02".encode())
            for n, tag in enumerate(("längs", "paid", "längs", "lings"))
        ]
    )
    reader = Reader(files, sql="TAGS LIKE 'l_ngs'")
    asked = 0
    while (stop := reader.fetch()) is Stop.ASKED:
        asked += 1
        offset, mark = int(reader.form[fetch.OFFSET]), int(reader.form[fetch.WANTED_POSITION]) + 1
        assert offset in (0, 2)
        reader.form[fetch.VERDICT] = mark if offset == 0 else -mark
    assert stop is Stop.DONE
    assert asked == 2
    assert reader.column(fetch.QUEUE_OFFSET) == [0, 3]


def test_a_unit_of_another_segment_or_file_is_left_to_the_caller(seed: int) -> None:
    files = records(seed)
    reader = Reader(files)
    reader.form[fetch.LOG_BASE] = 0
    assert reader.fetch() is Stop.ROLL
    assert reader.form[fetch.WANTED_POSITION] == 65536
    reader = Reader(files)
    reader.form[fetch.END_OFFSET] = 25
    assert reader.fetch() is Stop.TRUNCATED
    assert reader.rows == 24
    reader = Reader(files)
    reader.form[fetch.CQ_BASE] = 3
    assert reader.fetch() is Stop.TRUNCATED


def test_records_below_the_low_watermark_are_not_read(seed: int) -> None:
    files = records(seed)
    reader = Reader(files)
    reader.form[fetch.LOW] = files.records[0].physical_offset + 1
    assert reader.fetch() is Stop.REMOVED
    assert reader.rows == 0


def test_filler_units_are_passed_over(seed: int) -> None:
    """SF-65: the queue began at 5, its file at 0."""
    dice = random.Random(seed)
    files = lay_out([random_record(dice, 5 + n) for n in range(3)], first_unit=5)
    units = writable(files.units)
    filler = layout.CQ_UNIT.pack(physical_offset=0, size=layout.CQ_FILLER_SIZE, tags_code=0)
    units[:100] = np.frombuffer(filler * 5, np.uint8)
    reader = Reader(QueueFiles(units, files.units, [], 0))
    reader.files = QueueFiles(files.log, units, files.records, 0)
    reader.form[fetch.END_OFFSET] = 8
    assert reader.fetch() is Stop.DONE
    assert reader.column(fetch.QUEUE_OFFSET) == [5, 6, 7]


def test_every_flipped_bit_of_a_record_is_noticed(seed: int) -> None:
    """P13, where this broker wrote: a record without a true trailer is none."""
    made = [replace(random_record(random.Random(seed), 0), body=b"0123456789")]
    files = lay_out(made)
    size = int(layout.CQ_UNIT.unpack(files.units)["size"])
    step = 7 if JIT_OFF else 1
    for bit in range(0, size * 8, step):
        log = writable(files.log)
        log[bit // 8] ^= 1 << bit % 8
        reader = Reader(QueueFiles(log, files.units, files.records, 0))
        assert reader.fetch() is Stop.INVALID, f"bit {bit} of {size} bytes"


def test_a_wrong_unit_is_noticed(seed: int) -> None:
    files = records(seed)
    for field_name, value in (("size", 1), ("physical_offset", 65536 + 8)):
        units = writable(files.units)
        row = layout.CQ_UNIT.unpack(units)
        row[field_name] = value
        units[:20] = np.frombuffer(layout.CQ_UNIT.pack(**row), np.uint8)
        assert Reader(replace(files, units=units)).fetch() is Stop.INVALID
    shifted = replace(files, units=files.units[20:])
    assert Reader(shifted).fetch() is Stop.INVALID


def test_a_stale_trailer_of_another_broker_does_not_hide_its_message(seed: int) -> None:
    """Binding only in ranges that we wrote: elsewhere the body's sum decides (SF-24)."""
    stale = b"a\x01b\x02__CRC32#\x010000000000\x02"
    files = lay_out(
        [replace(random_record(random.Random(seed), 0), properties=stale)], trailers=False
    )
    assert Reader(files).fetch() is Stop.INVALID
    reader = Reader(files)
    reader.form[fetch.OURS] = 0
    assert reader.fetch() is Stop.DONE
    assert reader.property_bytes(0) == stale


def test_a_call_ends_where_another_broker_has_gone_on(seed: int) -> None:
    """The trailer is binding up to there; the next call takes the other side's rules."""
    files = records(seed, 6)
    third = files.records[3].physical_offset
    log = writable(files.log)
    at = third - files.log_base
    log[at + 40] ^= 1  # bornTimestamp: only a trailer covers it
    log.flags.writeable = False
    reader = Reader(replace(files, log=log))
    reader.form[fetch.STRETCH_END] = third
    assert reader.fetch() is Stop.ROLL
    assert (reader.rows, reader.form[fetch.WANTED_POSITION]) == (3, third)
    reader.form[fetch.STRETCH_FROM], reader.form[fetch.STRETCH_END] = third, OPEN
    assert reader.fetch() is Stop.INVALID
    reader.form[fetch.OURS] = 0
    assert reader.fetch() is Stop.DONE
    assert reader.rows == 6


@pytest.mark.skipif(JIT_OFF, reason="this is the other half")
def test_the_same_holds_without_the_jit() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
