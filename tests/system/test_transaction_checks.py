"""Checks of transactions that nobody has ended, by a real broker; closing and forking with them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from gantrymq.clients.message import Message, ReceivedMessage
from gantrymq.clients.producer import Producer
from gantrymq.clients.transactions.resolution import TransactionResolution
from gantrymq.shm.errors import Closed, GantryError, TransactionDecided
from gantrymq.temporary import Broker
from tests.support.transactions import delivered
from tests.support.trials import mends
from tests.support.watchdog import poll_until

PATIENCE_S = 60.0
COMMIT = TransactionResolution.COMMIT
ROLLBACK = TransactionResolution.ROLLBACK
UNKNOWN = TransactionResolution.UNKNOWN


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"transaction_timeout_s": 1, "transaction_check_interval_s": 1}
    with Broker.temporary(**settings) as running:
        yield running


class Asked:
    """A transaction_checker that notes what it is asked; the last of its answers stands."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.messages: list[ReceivedMessage] = []

    def __call__(self, message: Message) -> TransactionResolution:
        assert isinstance(message, ReceivedMessage)
        self.messages.append(message)
        answer = self.answers[min(len(self.messages), len(self.answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]


@pytest.mark.parametrize("answer", [COMMIT, ROLLBACK])
def test_an_abandoned_transaction_is_asked_about(
    broker: Broker, unique_name: str, answer: TransactionResolution
) -> None:
    """The message as it was sent; siblings are decided with it."""
    asked = Asked(answer)
    with Producer(broker.home, producer_group=unique_name, transaction_checker=asked) as producer:
        tx = producer.begin_transaction()
        receipt = producer.send(
            unique_name, b"first", tag="paid", keys=["k"], properties={"a": "b"}, transaction=tx
        )
        producer.send(unique_name, b"second", transaction=tx)
        wanted = 2 if answer is COMMIT else 0
        poll_until(lambda: not producer._transactions.open, "it is decided")  # type: ignore[union-attr]
        poll_until(lambda: len(delivered(broker, unique_name)) == wanted, "all is decided")
        message = asked.messages[0]
        if message.body == b"first":
            assert message.message_id == receipt.message_id
            assert (message.tag, message.keys, message.properties) == ("paid", ("k",), {"a": "b"})
        assert message.topic == unique_name
        told = pytest.raises(TransactionDecided) if answer is ROLLBACK else nullcontext()
        with told:
            tx.commit()


@mends("S70")
def test_a_checker_that_fails_is_asked_again(
    broker: Broker, unique_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It raises, exits, returns nonsense, does not know: counted as UNKNOWN, with a warning."""
    asked = Asked(RuntimeError(unique_name), SystemExit(1), "commit", UNKNOWN, COMMIT)
    with (
        caplog.at_level(logging.WARNING, "gantrymq"),
        Producer(broker.home, producer_group=unique_name, transaction_checker=asked) as producer,
    ):
        tx = producer.begin_transaction()
        producer.send(unique_name, b"rescued", transaction=tx)
        poll_until(lambda: delivered(broker, unique_name) == [b"rescued"], "it is committed")
    told = [record.getMessage() for record in caplog.records]
    assert sum("transaction_checker failed" in text for text in told) == 2
    assert sum("no TransactionResolution" in text for text in told) == 1
    assert len(asked.messages) >= 5, "again what takes longer to answer than the interval"


def test_a_checker_that_hangs_holds_up_nobody_else(broker: Broker, unique_name: str) -> None:
    """Nor its own producer's sends and commits; another producer of the group is asked as well."""
    hangs, entered = threading.Event(), threading.Event()

    def checker(_: Message) -> TransactionResolution:
        entered.set()
        hangs.wait(PATIENCE_S)
        return UNKNOWN

    stuck = Producer(broker.home, producer_group=unique_name, transaction_checker=checker)
    try:
        tx = stuck.begin_transaction()
        stuck.send(unique_name, b"open", transaction=tx)
        assert entered.wait(PATIENCE_S)
        with stuck.transaction() as other:
            stuck.send(unique_name, b"other", transaction=other)
        asked = Asked(COMMIT)
        with Producer(broker.home, producer_group=unique_name, transaction_checker=asked):
            poll_until(lambda: b"open" in delivered(broker, unique_name), "the other commits it")
    finally:
        hangs.set()
        stuck.close()
    assert delivered(broker, unique_name) == [b"open", b"other"]


def test_two_applications_of_one_group(broker: Broker, unique_name: str) -> None:
    """Either may be asked; who does not know says so, and the other is asked."""
    knows, does_not = Asked(COMMIT), Asked(UNKNOWN)
    with (
        Producer(broker.home, producer_group=unique_name, transaction_checker=does_not) as one,
        Producer(broker.home, producer_group=unique_name, transaction_checker=knows),
    ):
        for body in (b"a", b"b", b"c"):
            one.send(unique_name, body, transaction=one.begin_transaction())
        poll_until(lambda: len(delivered(broker, unique_name)) == 3, "all are committed")
    # An answer that takes longer than the interval is asked for again.
    assert {message.body for message in knows.messages} == {b"a", b"b", b"c"}


def test_what_runs_in_a_with_is_not_asked_about(broker: Broker, unique_name: str) -> None:
    """Its end is sure to come, however long the local work takes."""
    asked = Asked(ROLLBACK)
    with Producer(broker.home, producer_group=unique_name, transaction_checker=asked) as producer:
        left = producer.begin_transaction()
        with producer.transaction() as tx:
            producer.send(unique_name, b"long work", transaction=tx)
            producer.send(unique_name, b"left", transaction=left)
            poll_until(lambda: asked.messages, "the younger one is asked about")
        assert [message.body for message in asked.messages] == [b"left"]
    assert delivered(broker, unique_name) == [b"long work"]


def test_closing_rolls_back_what_is_open(
    broker: Broker, unique_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "gantrymq"),
        Producer(broker.home, producer_group=unique_name) as producer,
    ):
        tx = producer.begin_transaction()
        producer.send(unique_name, b"open", transaction=tx)
    assert tx.state == "rolled_back"
    assert ["rolled back" in record.getMessage() for record in caplog.records] == [True]
    with pytest.raises(Closed):
        tx.commit()
    with pytest.raises(Closed):
        producer.send(unique_name, b"late", transaction=tx)


def test_a_forked_child_is_told(broker: Broker, unique_name: str) -> None:
    """A transaction belongs to the process that began it; the parent goes on."""
    asked = Asked(COMMIT)
    with Producer(broker.home, producer_group=unique_name, transaction_checker=asked) as producer:
        tx = producer.begin_transaction()
        producer.send(unique_name, b"parent", transaction=tx)
        child = os.fork()
        if not child:
            told = 0
            for step in (tx.commit, tx.rollback, tx.commit_async, producer.transaction):
                try:
                    step()
                except Closed:
                    told += 1
                except GantryError:
                    pass
            producer.close()
            os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        tx.commit()
    assert delivered(broker, unique_name) == [b"parent"]
