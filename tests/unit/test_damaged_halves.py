"""What the txn-checker does with halves that are damaged, cut off or forged: it says so, goes on.

Random flips are tests/property/test_damaged_records.py; these are states that it does not come to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.properties import GIVEN_UP_TOPIC, HALF_TOPIC, encode_properties
from gantrymq.shm.record import Record, encode_record
from gantrymq.workers.transactions.note import read_note
from tests.support.parking import HOST, SIZES, Parked
from tests.support.simclock import SimClock
from tests.support.transacting import CHECKER, Peer, TxnLife, txn_life
from tests.support.trials import mends

TX = "0123456789abcdef" * 2
FOREIGN = {
    "UNIQ_KEY": "A" * 32, "TRAN_MSG": "true", "PGROUP": "pay", "REAL_TOPIC": "orders",
    "REAL_QID": "1",
}  # fmt: skip


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


def segment_of(life: TxnLife, position: int) -> tuple[Path, int]:
    """The file with a log position, and where it is there."""
    base = position // life.board.segment_bytes * life.board.segment_bytes
    return Path(life.storage.root) / "commitlog" / f"{base:020d}", position - base


def damage(life: TxnLife, position: int) -> None:
    """Change a byte of the body of the half there."""
    path, at = segment_of(life, position)
    with path.open("r+b") as file:
        file.seek(file.read().index(b"paid", at))
        file.write(b"P")


def fill_segment(life: TxnLife) -> None:
    life.park(*[Parked("orders", 0, {"UNIQ_KEY": f"{n:032X}"}, b"x" * 60_000) for n in range(6)])
    life.run_for(3000)


def damaged(life: TxnLife) -> list[object]:
    notes = life.tables[CHECKER].notes
    return [fields["position"] for _level, event, fields in notes if event == "record_damaged"]


@mends("S54")
def test_a_damaged_half_does_not_hold_retention_up(life: TxnLife) -> None:
    """It was sound when it became a row."""
    half = life.half(TX)
    life.run_for(3000)
    damage(life, half.position)
    fill_segment(life)
    life.board.set_word(layout.BOARD_TIMERS_WANTED, life.board.segment_bytes)
    life.run_for(30_000)
    note = read_note(life.storage)
    assert note is not None
    assert (note.open, note.given_up) == ([], [])
    assert note.halves_next > half.queue_offset
    assert damaged(life) == [half.position]


@mends("S54")
def test_nobody_is_told_that_a_half_was_rolled_back_whose_newer_record_is_damaged(
    life: TxnLife,
) -> None:
    half = life.half(TX)
    fill_segment(life)
    life.board.set_word(layout.BOARD_TIMERS_WANTED, life.board.segment_bytes)
    life.run_for(3000)
    newer = life.in_topic(HALF_TOPIC)[-1].physical_offset
    assert newer != half.position
    damage(life, newer)
    life.kill(CHECKER)
    life.run_for(3000)
    assert Peer(life, "pay").ended([half], commit=True) == ("", wire.UNKNOWN)
    assert damaged(life) == [newer]


@mends("S54")
def test_a_segment_that_was_cut_short_is_named_and_not_looked_into_for_ever(life: TxnLife) -> None:
    peer = Peer(life)
    life.half(TX, body=b"x" * 8000)
    half = life.half("f" * 32)
    fill_segment(life)
    checker = life.agents[CHECKER]
    checker._drop_maps()  # type: ignore[attr-defined]
    path, _at = segment_of(life, half.position)
    os.truncate(path, 4096)
    peer.end([half], commit=True)
    for _ in range(50):
        checker.do_work(life.clock.monotonic_ns())
        life.clock.advance(1_000_000)
    assert str(half.position) in str(life.tables[CHECKER].failures)


@mends("S54")
def test_a_segment_that_is_gone_is_named(life: TxnLife) -> None:
    half = life.half(TX)
    fill_segment(life)
    segment_of(life, half.position)[0].unlink()
    life.kill(CHECKER)
    life.run_for(3000)
    assert half.position in damaged(life)


def foreign_life(folder: Path, topic: str, origin: int) -> TxnLife:
    """A store with one half that another broker has stored, or parked."""
    clock = SimClock()
    record = Record(
        topic=topic, body=b"x", properties=encode_properties(FOREIGN), born_host=HOST,
        born_timestamp=clock.wall_ms(), store_timestamp=clock.wall_ms(), store_host=HOST,
        prepared_transaction_offset=origin,
    )  # fmt: skip
    size = SIZES["mapped_file_size_commit_log"]
    (folder / "commitlog").mkdir(parents=True)
    (folder / "commitlog" / f"{0:020d}").write_bytes(encode_record(record).ljust(size, b"\0"))
    return TxnLife(folder, clock)


@mends("S54")
def test_a_forged_half_that_says_that_it_stands_for_itself_ends_like_any_other(
    store_dir: Path,
) -> None:
    life = foreign_life(store_dir, HALF_TOPIC, -1)
    life.run_for(3000)
    assert Peer(life, "pay").ended([wire.Check(0, 0, 0, "")], commit=True, tx="")[0] == "committed"
    life.stop()


@mends("S54")
def test_what_a_rocketmq_has_given_up_is_checked_again(store_dir: Path) -> None:
    """It is of no transaction of ours."""
    life = foreign_life(store_dir, GIVEN_UP_TOPIC, 0)
    life.run_for(3000)
    assert Peer(life).settle(0, wire.RECHECK).outcome == wire.OUTCOMES[wire.RECHECK]
    life.stop()
