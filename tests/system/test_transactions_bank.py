"""A database and a topic that must agree, whatever is killed (issue of transactions, P7, P10)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.cli.tx_show import look
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.producer import Producer
from gantrymq.shm.errors import BrokerGone
from gantrymq.temporary import Broker
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
        "transaction_timeout_s": 1,
        "transaction_check_interval_s": 1,
        "transaction_check_max": 1000,
    }
    with Broker.temporary(**settings) as running:
        yield running


def test_a_database_and_a_topic_agree(broker: Broker, tmp_path: Path, seed: int) -> None:
    """Each transfer that was booked is one message; each that was not is none; none is left."""
    bank = Bank(tmp_path / "bank.db")
    bank.create()
    _announce(broker)
    plan = plan_of(seed, TRANSFERS)
    offices = {office(broker.home, bank, plan, TRANSFERS) for _ in range(WORKERS)}
    with (
        Audit(broker.home) as audit,
        Producer(broker.home, producer_group=GROUP, transaction_checker=bank.check),
    ):
        while offices:
            if broker.process.poll() is not None:
                broker.start()
                _announce(broker)
            audit.read()
            offices -= {pid for pid in offices if _has_ended(pid)}
        poll_until(lambda: not look(broker.home).read(), "every half is decided", 60.0)
        booked = bank.booked()
        assert bank.total() == ACCOUNTS * DEPOSIT
        assert _all(broker, len(booked)) == Counter(booked)
        assert TRANSFERS * 8 // 10 < len(booked) < TRANSFERS
        poll_until(lambda: audit.read() >= len(booked), "all is consumed", 30.0)
        assert audit.consumed == booked


class Audit:
    """A consumer that lives as long as the broker, and comes again after it."""

    def __init__(self, home: Path) -> None:
        self.consumed: set[int] = set()
        self._home = home
        self._consumer: PullConsumer | None = None

    def read(self) -> int:
        """Read what is there; how many are known."""
        try:
            if self._consumer is None:
                first = ConsumeFrom.FIRST_OFFSET
                self._consumer = PullConsumer("audit", [TOPIC], home=self._home, consume_from=first)
            bodies = self._consumer.poll(timeout=0.1).bodies
            self.consumed |= {int(bytes(body)) for body in bodies}
        except BrokerGone:
            self.close()
        return len(self.consumed)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _has_ended(pid: int) -> bool:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        assert os.waitstatus_to_exitcode(status) == 0
    return bool(ended)


def _announce(broker: Broker) -> None:
    """Which process workers have to kill."""
    (broker.home / "pid").write_text(str(broker.process.pid))


def _all(broker: Broker, count: int) -> Counter[int]:
    """Every message of the topic, as often as it is there."""
    found: Counter[int] = Counter()
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer("everything", [TOPIC], home=broker.home, consume_from=first) as consumer:
        while found.total() < count:
            found.update(int(bytes(body)) for body in consumer.poll(timeout=10.0).bodies)
        found.update(int(bytes(body)) for body in consumer.poll(timeout=0).bodies)
    return found
