"""Whoever dies in the middle of a transaction: its end is what its producer was told."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.transactions.resolution import TransactionResolution
from gantrymq.clients.transactions.transaction import Transaction
from gantrymq.shm.codes import Role
from tests.support.brokers import ServingBroker
from tests.support.forked import start_program
from tests.support.stores import read_live_log
from tests.support.watchdog import poll_until

PATIENCE_S = 60.0
ABANDON = """
import sys
from gantrymq import Producer
producer = Producer(sys.argv[1], producer_group=sys.argv[2])
tx = producer.begin_transaction()
producer.send(sys.argv[2], b"first", transaction=tx)
producer.send(sys.argv[2], b"second", transaction=tx)
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingBroker]:
    home = tmp_path_factory.mktemp("kills") / "home"
    with ServingBroker(home, transaction_timeout_s=1, transaction_check_interval_s=1) as broker:
        yield broker.wait_until_ready()


def delivered(home: Path, topic: str) -> list[bytes]:
    log = read_live_log(home)
    return sorted(item.record.body for item in log if item.record.topic == topic)


@pytest.mark.parametrize("answer", [TransactionResolution.COMMIT, TransactionResolution.ROLLBACK])
def test_the_next_producer_is_asked(
    serving: ServingBroker, unique_name: str, answer: TransactionResolution
) -> None:
    """One was killed between its halves and the END; all of the transaction is decided alike."""
    pipe = subprocess.PIPE
    with start_program(ABANDON, serving.home, unique_name, stdin=pipe, stdout=pipe) as dead:
        assert dead.stdout is not None
        assert dead.stdout.readline() == b"sent\n"
        dead.kill()
    asked: list[Message] = []

    def checker(message: Message) -> TransactionResolution:
        asked.append(message)
        return answer

    wanted = [b"first", b"second"] if answer is TransactionResolution.COMMIT else []
    with Producer(
        serving.home, producer_group=unique_name, transaction_checker=checker, timeout=PATIENCE_S
    ) as producer:
        poll_until(lambda: asked and delivered(serving.home, unique_name) == wanted, "decided")
        with producer.transaction() as tx:
            producer.send(unique_name, b"third", transaction=tx)
    assert delivered(serving.home, unique_name) == [*wanted, b"third"]


def commit_behind_a_stopped_writer(
    serving: ServingBroker, producer: Producer, topic: str
) -> tuple[Transaction, threading.Thread, list[BaseException]]:
    """A transaction whose END the txn-checker has taken, while nothing gets into the log."""
    tx = producer.begin_transaction()
    producer.send(topic, b"once", transaction=tx)
    told: list[BaseException] = []

    def commit() -> None:
        try:
            tx.commit()
        except BaseException as error:
            told.append(error)

    os.kill(serving.pid_of(Role.WRITER), signal.SIGSTOP)
    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    desk = producer._transactions
    assert desk is not None

    def is_taken() -> bool:
        lane = desk._link._lane
        return lane is not None and lane.words[5] > 0 and not lane.unread_bytes()

    poll_until(is_taken, "the END is taken")
    return tx, thread, told


@pytest.mark.parametrize("victim", [Role.TXN_CHECKER, Role.WRITER])
def test_commit_tells_the_truth(serving: ServingBroker, unique_name: str, victim: Role) -> None:
    """P7: the checker or the writer dies between END and its answer: committed, once."""
    with Producer(serving.home, producer_group=unique_name, timeout=PATIENCE_S) as producer:
        tx, thread, told = commit_behind_a_stopped_writer(serving, producer, unique_name)
        writer = serving.pid_of(Role.WRITER)
        os.kill(serving.pid_of(victim), signal.SIGKILL)
        if victim is not Role.WRITER:
            os.kill(writer, signal.SIGCONT)
        thread.join(PATIENCE_S)
        assert (told, tx.state) == ([], "committed")
        assert delivered(serving.home, unique_name) == [b"once"]
        with producer.transaction() as after:
            producer.send(unique_name, b"then", transaction=after)
    assert delivered(serving.home, unique_name) == [b"once", b"then"]


def test_commit_waits_for_the_next_life(tmp_path: Path, unique_name: str) -> None:
    """P7: all die between END and its answer; a checker thread answers again after it, too."""
    asked: list[Message] = []

    def checker(message: Message) -> TransactionResolution:
        asked.append(message)
        return TransactionResolution.COMMIT

    with ServingBroker(
        tmp_path / "home", transaction_timeout_s=1, transaction_check_interval_s=1
    ) as broker:
        home = broker.wait_until_ready().home
        with Producer(
            home, producer_group=unique_name, transaction_checker=checker, timeout=PATIENCE_S
        ) as producer:
            left = producer.begin_transaction()
            producer.send(unique_name, b"left", transaction=left)
            tx, thread, told = commit_behind_a_stopped_writer(broker, producer, unique_name)
            os.kill(broker.pid_of(Role.WRITER), signal.SIGKILL)
            broker.kill_all()
            broker.again()
            thread.join(PATIENCE_S)
            assert (told, tx.state) == ([], "committed")
            poll_until(lambda: len(delivered(home, unique_name)) == 2, "the other is asked about")
        # More than once if a life before or an answer took longer than a second.
        assert b"left" in [message.body for message in asked]
        assert delivered(home, unique_name) == [b"left", b"once"]
