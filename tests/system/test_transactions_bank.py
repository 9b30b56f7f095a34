"""A database and a topic that must agree, whatever is killed (issue of transactions, P7, P10)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.consumer import ConsumeFrom, PullConsumer
from clients.home import read_board_file
from clients.producer import Producer
from gantrymq.temporary import Broker
from shm import layout
from shm.board import attach_board
from shm.errors import BrokerGone
from tests.support.bank import ACCOUNTS, DEPOSIT, GROUP, TOPIC, Bank, office, plan_of
from tests.support.brokers import SMALL
from tests.support.watchdog import poll_until

TRANSFERS = 1000
WORKERS = 3


@pytest.fixture
def broker() -> Iterator[Broker]:
    """With processes as in production; checks come early, and nothing is given up."""
    settings = {
        **SMALL,
        "profile": "standard",
        "transaction_timeout": 1,
        "transaction_check_interval": 1,
        "transaction_check_max": 1000,
    }
    with Broker.temporary(**settings) as running:
        yield running


def test_a_database_and_a_topic_agree(broker: Broker, tmp_path: Path, seed: int) -> None:
    """Each transfer that was booked is one message; each that was not is none; none is left."""
    bank = Bank(tmp_path / "bank.db")
    bank.create()
    plan = plan_of(seed, TRANSFERS)
    _announce(broker)
    offices = {office(broker.home, bank, plan, TRANSFERS) for _ in range(WORKERS)}
    consumed: set[int] = set()
    while offices:
        if broker.process.poll() is not None:
            broker.start()
            _announce(broker)
        consumed |= _read(broker)
        for pid in list(offices):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                assert os.waitstatus_to_exitcode(status) == 0
                offices.remove(pid)
    with Producer(broker.home, producer_group=GROUP, transaction_checker=bank.check):
        poll_until(lambda: not _open_halves(broker), "every half is decided", 60.0)
    booked = bank.booked()
    stored = _all(broker, len(booked))
    assert bank.total() == ACCOUNTS * DEPOSIT
    assert stored == Counter(booked)
    assert TRANSFERS * 8 // 10 < len(booked) < TRANSFERS
    while len(consumed) < len(booked):
        consumed |= _read(broker)
    assert consumed == booked


def _announce(broker: Broker) -> None:
    """Which process workers have to kill."""
    (broker.home / "pid").write_text(str(broker.process.pid))


def _open_halves(broker: Broker) -> int:
    board = attach_board(read_board_file(broker.home)["board"])
    return board.word(layout.BOARD_OPEN_HALVES)


def _read(broker: Broker) -> set[int]:
    """What a group has not read yet."""
    first = ConsumeFrom.FIRST_OFFSET
    try:
        with PullConsumer("audit", [TOPIC], home=broker.home, consume_from=first) as consumer:
            found = {int(bytes(body)) for body in consumer.poll(timeout=0.5).bodies}
            consumer.commit()
            return found
    except BrokerGone:
        return set()


def _all(broker: Broker, count: int) -> Counter[int]:
    """Every message of the topic, as often as it is there."""
    found: Counter[int] = Counter()
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer("everything", [TOPIC], home=broker.home, consume_from=first) as consumer:
        while found.total() < count:
            found.update(int(bytes(body)) for body in consumer.poll(timeout=10.0).bodies)
        found.update(int(bytes(body)) for body in consumer.poll(timeout=0).bodies)
    return found
