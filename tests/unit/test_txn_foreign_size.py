"""Halves that another broker has stored, larger than a record of ours: they stop nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.limits import BODY_BYTES_MAX, PROPERTIES_BYTES_MAX
from gantrymq.shm.properties import HALF_TOPIC, encode_properties
from gantrymq.shm.record import Record, encode_record
from gantrymq.shm.transactionwire import COMMITTED, GIVEN_UP, ROLLED_BACK
from gantrymq.workers.transactions import progress
from gantrymq.workers.transactions.agent import TxnChecker
from gantrymq.workers.transactions.indoubt import InDoubt
from tests.support.parking import HOST
from tests.support.simclock import SimClock
from tests.support.transacting import CHECKER, GROUP, Peer, TxnLife

SEGMENT = 1 << 23
HOURS_100_MS = 360_000_000
TOO_LARGE = BODY_BYTES_MAX + 1
LARGEST = BODY_BYTES_MAX
HALF = wire.Check(0, 0, 0, "")

Adopted = Callable[..., TxnLife]


@pytest.fixture
def adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adopted:
    """Makes a life over a log that another broker has written: one half at its beginning."""
    monkeypatch.setattr(progress, "interval_ns", 1_000_000_000)
    monkeypatch.setitem(TxnLife.own_rings, CHECKER, 1 << 24)

    def make(body: int, group: str = GROUP, **more: str) -> TxnLife:
        named = {"UNIQ_KEY": "A" * 32, "TRAN_MSG": "true", "PGROUP": group, **more}
        named |= {"REAL_TOPIC": "orders", "REAL_QID": "1"}
        clock = SimClock()
        now_ms = clock.wall_ms()
        record = Record(
            topic=HALF_TOPIC, body=b"x" * body, properties=encode_properties(named),
            born_timestamp=now_ms, born_host=HOST, store_timestamp=now_ms, store_host=HOST,
        )  # fmt: skip
        data = encode_record(record)
        log = tmp_path / "store" / "commitlog"
        log.mkdir(parents=True)
        (log / f"{0:020d}").write_bytes(data.ljust(SEGMENT, b"\0"))
        life = TxnLife(tmp_path / "store", clock, {"mapped_file_size_commit_log": SEGMENT})
        life.run_for(3000)
        return life

    return make


def require_alive(life: TxnLife) -> None:
    """Others' transactions are decided, and a clean stop comes to an end."""
    half = life.half("e" * 32)
    assert Peer(life).ended([half], commit=True) == (COMMITTED, "")
    life.run_for(1000)
    checker = cast("TxnChecker", life.agents[CHECKER])
    assert checker._decisions.sure_to == life.board.word(layout.BOARD_APPENDED)
    life.stop()


def test_the_largest_is_committed(adopted: Adopted) -> None:
    """SF-18: as long as a body may be."""
    life = adopted(LARGEST)
    assert Peer(life).ended([HALF], commit=True, tx="") == (COMMITTED, "")
    assert life.committed() == {0: 1}
    require_alive(life)


def test_one_byte_more_is_refused_by_name(adopted: Adopted) -> None:
    """Nothing of the decision is in the log, and it can be taken back."""
    life = adopted(TOO_LARGE)
    peer = Peer(life)
    assert peer.ended([HALF], commit=True, tx="") == ("", wire.UNSTORABLE)
    assert (life.committed(), life.ops()) == ({}, [])
    assert peer.ended([HALF], commit=False, tx="") == (ROLLED_BACK, "")
    require_alive(life)


def test_an_operator_is_told(adopted: Adopted) -> None:
    life = adopted(TOO_LARGE)
    peer = Peer(life)
    assert peer.settle(0, wire.COMMIT).error == wire.UNSTORABLE
    assert (life.committed(), life.ops(), life.notes()) == ({}, [], [])
    assert peer.settle(0, wire.ROLLBACK).outcome == ROLLED_BACK
    require_alive(life)


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (TOO_LARGE, {}),
        # Room for the properties of a RocketMQ's record, but not for our trailer beside them.
        (1, {"BIG": "y" * (PROPERTIES_BYTES_MAX - 111)}),
    ],
)
def test_what_cannot_be_parked_stays_open(
    adopted: Adopted, body: int, more: dict[str, str]
) -> None:
    """TX-37: it is not named before there is a copy of it, also after a start."""
    life = adopted(body, "gone", **more)
    (half,) = life.in_topic(HALF_TOPIC)
    assert not more or PROPERTIES_BYTES_MAX - 20 < len(half.properties) <= PROPERTIES_BYTES_MAX
    life.clock.step_wall(HOURS_100_MS)
    life.run_for(60_000)
    assert (life.parked(), life.ops()) == ([], [])
    life.kill(CHECKER)
    life.run_for(3000)
    assert [doubt.state for doubt in InDoubt(life.storage, life.board).read()] == ["open"]
    require_alive(life)


def test_one_that_fills_a_segment_is_parked_where_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SF-20: the topic of what is given up is longer than that of halves, by two letters."""
    monkeypatch.setattr(progress, "interval_ns", 1_000_000_000)
    life = TxnLife(tmp_path / "store", SimClock())
    probe = life.half("1" * 32, PGROUP="gone", body=b"")
    (record,) = life.in_topic(HALF_TOPIC)
    room = life.board.segment_bytes - 8 - record.total_size
    halves = [life.half(f"{n:032x}", PGROUP="gone", body=bytes(room - n)) for n in range(4)]
    life.run_for(2000)
    life.clock.step_wall(HOURS_100_MS)
    life.run_for(60_000)
    parked = [probe.position, *(half.position for half in halves[2:])]
    assert sorted(record.origin for record in life.parked()) == sorted(parked)
    assert "".join(life.ops()).count(",") == 3
    states = {d.position: d.state for d in InDoubt(life.storage, life.board).read()}
    assert states == dict.fromkeys(parked, GIVEN_UP) | {
        half.position: "open" for half in halves[:2]
    }
