"""Rows of the scan kernel as columns of units, beside the same in plain words."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm.kernels import scan, units
from gantrymq.shm.layout import SYS_COMMIT, SYS_PREPARED, SYS_ROLLBACK

DELAYS_MS = (0, 1_000, 5_000, 30_000)
SCHEDULE = 2
BASE = 1 << 20
Row = dict[int, int]


def table(rows: list[Row]) -> NDArray[np.int64]:
    out = np.zeros((len(rows), scan.ROW_WORDS), np.int64)
    for number, row in enumerate(rows):
        out[number, list(row)] = list(row.values())
    return out.reshape(-1)


def rows_of(dice: random.Random, count: int) -> list[Row]:
    return [
        {
            scan.AT: number * 128,
            scan.SIZE: dice.randrange(91, 4096),
            scan.QUEUE_ID: dice.choice([0, 3, 2**31 - 1, -1]),
            scan.QUEUE_OFFSET: dice.randrange(1 << 40),
            scan.SYS_FLAG: dice.choice([0, 1, SYS_PREPARED, SYS_COMMIT, SYS_ROLLBACK]),
            scan.STORE_MS: 1_700_000_000_000 + number,
            scan.TAGS_CODE: dice.randrange(-(1 << 31), 1 << 31),
            scan.DELAY: dice.randrange(6),
        }
        for number in range(count)
    ]


def expected(rows: list[Row], topics: list[int], end: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for row, topic in zip(rows, topics, strict=True):
        half = row[scan.SYS_FLAG] & SYS_ROLLBACK in (SYS_PREPARED, SYS_ROLLBACK)
        position = BASE + row[scan.AT]
        if half or position >= end:
            continue
        code = row[scan.TAGS_CODE]
        if topic == SCHEDULE and row[scan.DELAY]:
            code = row[scan.STORE_MS] + DELAYS_MS[min(row[scan.DELAY], len(DELAYS_MS) - 1)]
        key = topic << 32 | row[scan.QUEUE_ID] % (1 << 32)
        found.append((key, row[scan.QUEUE_OFFSET], position, row[scan.SIZE], code))
    return found


def form_of(end: int, schedule: int = SCHEDULE) -> NDArray[np.int64]:
    form = np.zeros(units.FORM_WORDS, np.int64)
    form[[units.BASE, units.UNITS_END, units.SCHEDULE]] = BASE, end, schedule
    return form


def test_each_record_that_has_a_unit_gives_one(seed: int) -> None:
    """SF-61: halves and rollbacks have none; SF-63: parked ones hold their time of delivery."""
    dice = random.Random(seed)
    rows = rows_of(dice, 400)
    topics = [dice.randrange(4) for _ in rows]
    end = BASE + 300 * 128
    wanted = expected(rows, topics, end)
    assert 100 < len(wanted) < 300
    form, out = form_of(end), np.full((units.COLUMNS, 500), -7, np.int64)
    delays = np.array(DELAYS_MS, np.int64)
    added = units.unit_columns(
        table(rows), np.array(topics, np.int64), delays, form, out.reshape(-1)
    )
    assert added == form[units.COUNT] == len(wanted)
    assert [tuple(column) for column in out[:, :added].T.tolist()] == wanted
    assert (out[:, added:] == -7).all()


def test_calls_add_up(seed: int) -> None:
    dice = random.Random(seed)
    rows = rows_of(dice, 60)
    topics = np.array([dice.randrange(4) for _ in rows], np.int64)
    form, out = form_of(1 << 40), np.zeros((units.COLUMNS, 60), np.int64)
    delays = np.array(DELAYS_MS, np.int64)
    counts = []
    for start in range(0, 60, 20):
        part = table(rows[start : start + 20])
        one = topics[start : start + 20]
        counts.append(units.unit_columns(part, one, delays, form, out.reshape(-1)))
    wanted = expected(rows, topics.tolist(), 1 << 40)
    assert sum(counts) == form[units.COUNT] == len(wanted)
    assert [tuple(column) for column in out[:, : len(wanted)].T.tolist()] == wanted


def test_a_store_without_parked_messages_has_tags_alone() -> None:
    row = {scan.TAGS_CODE: 77, scan.DELAY: 2, scan.STORE_MS: 5, scan.SIZE: 100}
    form, out = form_of(1 << 40, schedule=-1), np.zeros((units.COLUMNS, 1), np.int64)
    one = np.zeros(1, np.int64)
    assert units.unit_columns(table([row]), one, np.array(DELAYS_MS), form, out.reshape(-1)) == 1
    assert out[units.TAGS, 0] == 77


def test_rows_are_counted_up_to_another_topic() -> None:
    """Another name, a longer one and a shorter one end the run; the first row too."""
    memory = np.frombuffer(b"orders" * 3 + b"order" + b"ordert" + b"orders", np.uint8)
    places = [(0, 6), (6, 6), (12, 6), (18, 5), (23, 6), (29, 6), (0, 12)]
    name = np.frombuffer(b"orders", np.uint8)

    def count(first: int) -> int:
        rows = [{scan.TOPIC_AT: at, scan.TOPIC_SIZE: size} for at, size in places[first:]]
        return int(units.rows_of_topic(memory, table(rows), name))

    assert [count(first) for first in range(8)] == [3, 2, 1, 0, 0, 1, 0, 0]
