"""What the end of a transaction ends: every message of it, those on their way too, and no other."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import NoReturn

import pytest

from gantrymq.clients.producer import Producer
from gantrymq.clients.session import deadline_after
from gantrymq.clients.transactions import checkerlink
from gantrymq.clients.transactions.checkerlink import CheckerLink
from gantrymq.clients.transactions.commits import Commits
from gantrymq.clients.transactions.transaction import Transaction
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import (
    ArgumentIllegal,
    BrokerGone,
    Closed,
    DiskFull,
    StoreFailed,
    TransactionDecided,
    TransactionFailed,
    TransactionInDoubt,
)
from gantrymq.shm.transactionwire import End
from tests.support.brokers import ServingBroker
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S, poll_until
from tests.system.test_patience import SHORT_S, Beside, hung

GROUP = "pay"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingBroker]:
    home = tmp_path_factory.mktemp("ends") / "home"
    with ServingBroker(home, hung_agent_timeout=0) as broker:
        yield broker.wait_until_ready()


@pytest.fixture
def producer(serving: ServingBroker) -> Iterator[Producer]:
    with Producer(serving.home, producer_group=GROUP, timeout=PATIENCE_S) as made:
        made.send("t", b"first")
        yield made


def outcomes(serving: ServingBroker, transaction: Transaction) -> set[str]:
    """What became of each message, said by the txn-checker to somebody who wants them delivered."""
    with closing(CheckerLink(serving.home)) as link:
        return {
            link.end(
                End(0, GROUP, transaction.transaction_id, True, [place]), deadline_after(PATIENCE_S)
            ).outcome
            for place in transaction.places()
        }


def many(producer: Producer, transaction: Transaction) -> None:
    """Messages that are on their way still."""
    for number in range(200):
        producer.send_async("t", b"%d" % number, transaction=transaction)


def fall_out(producer: Producer) -> Transaction:
    with pytest.raises(ValueError, match="local work") as caught, producer.transaction() as made:  # noqa: PT012
        many(producer, made)
        raise ValueError("local work")
    assert caught.value.__notes__[0].endswith("200 messages rolled back")
    return made


def roll_back(producer: Producer) -> Transaction:
    transaction = producer.begin_transaction()
    many(producer, transaction)
    transaction.rollback()
    return transaction


def close(producer: Producer) -> Transaction:
    transaction = producer.begin_transaction()
    many(producer, transaction)
    producer.close()
    return transaction


@mends("S1")
@pytest.mark.parametrize("end", [fall_out, roll_back, close])
def test_a_rollback_ends_what_is_on_its_way(
    serving: ServingBroker, producer: Producer, end: Callable[[Producer], Transaction]
) -> None:
    transaction = end(producer)
    assert (transaction.state, len(transaction.places())) == ("rolled_back", 200)
    assert outcomes(serving, transaction) == {"rolled_back"}


@mends("S1")
@pytest.mark.parametrize("stored", [0, 1])
def test_a_rollback_waits_for_what_is_on_its_way(
    serving: ServingBroker, producer: Producer, stored: int
) -> None:
    transaction = producer.begin_transaction()
    for _ in range(stored):
        producer.send("t", b"stored", transaction=transaction)
    with hung(serving.pid_of(Role.WRITER)):
        producer.send_async("t", b"on its way", transaction=transaction)
        beside = Beside(transaction.rollback)
        poll_until(lambda: producer._link._sleepers, "the rollback waits for the message")
    assert beside.require_told() is None
    assert (transaction.state, len(transaction.places())) == ("rolled_back", stored + 1)
    assert outcomes(serving, transaction) == {"rolled_back"}


@mends("S1")
def test_a_rollback_that_is_not_known_to_be_whole_says_so(
    serving: ServingBroker, producer: Producer
) -> None:
    """What is stored is rolled back all the same; the next one asks for the rest."""
    transaction = producer.begin_transaction()
    producer.send("t", b"stored", transaction=transaction)
    (stored,) = transaction.places()
    with hung(serving.pid_of(Role.WRITER)):
        producer.send_async("t", b"on its way", transaction=transaction)
        with pytest.raises(TransactionInDoubt, match="rolled back"):
            transaction.rollback(timeout=SHORT_S)
        assert transaction.state == "in_doubt"
        with pytest.raises(Closed, match="has failed"):
            producer.send("t", b"late", transaction=transaction)
    transaction.rollback()
    assert (transaction.state, transaction.places()[0]) == ("rolled_back", stored)
    assert outcomes(serving, transaction) == {"rolled_back"}


def test_a_commit_that_fails_rolls_back_what_is_on_its_way(
    serving: ServingBroker, producer: Producer
) -> None:
    """The refused one is the first of them: the others are waited for."""
    transaction = producer.begin_transaction()
    with hung(serving.pid_of(Role.WRITER)):
        producer.send_async("t", b"refused", queue_id=900, transaction=transaction)
        producer.send_async("t", b"on its way", transaction=transaction)
        with pytest.raises(TransactionFailed, match="not known to be rolled back"):
            transaction.commit(timeout=SHORT_S)
        assert transaction.state == "in_doubt"
        beside = Beside(transaction.commit)
        poll_until(lambda: producer._link._sleepers, "the commit waits for the messages")
    assert "1 that were stored are rolled back" in str(beside.require_told())
    assert (transaction.state, len(transaction.places())) == ("rolled_back", 1)
    assert outcomes(serving, transaction) == {"rolled_back"}


REFUSED = (DiskFull("no room"), BrokerGone("never handed over"))


@pytest.mark.parametrize("error", [*REFUSED, StoreFailed("stored or not")])
def test_what_is_not_stored_is_nothing_to_end(
    serving: ServingBroker, producer: Producer, error: Exception
) -> None:
    """What may be is: nobody knows where."""
    transaction = producer.begin_transaction()
    with hung(serving.pid_of(Role.WRITER)):
        half = producer.send_async("t", b"x", transaction=transaction)
        half.set_exception(error)
        if error in REFUSED:
            transaction.rollback()
        else:
            with pytest.raises(TransactionInDoubt, match="1 of its messages may be stored"):
                transaction.rollback()
    assert transaction.state == ("rolled_back" if error in REFUSED else "in_doubt")


class _BrokenOffError(BaseException):
    """As Ctrl-C is."""


def test_a_send_that_was_broken_off_leaves_a_rollback_in_doubt(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been put: its caller was not told."""
    transaction = producer.begin_transaction()

    def break_off(*_args: object) -> None:
        raise _BrokenOffError

    monkeypatch.setattr(producer._halves, "_put", break_off)
    with pytest.raises(_BrokenOffError):
        producer.send("t", b"x", transaction=transaction)
    with pytest.raises(TransactionFailed, match="not known to be rolled back"):
        transaction.commit()
    with pytest.raises(TransactionInDoubt):
        transaction.rollback()


@mends("S131")
@pytest.mark.parametrize("kind", [TimeoutError, ValueError, BrokerGone, KeyboardInterrupt])
@pytest.mark.parametrize("commit", [True, False])
def test_a_half_behind_whose_put_a_handler_raises_may_be_stored(
    producer: Producer, commit: bool, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever type its error has: nobody is told that it is rolled back."""
    transaction = producer.begin_transaction()
    put = producer._halves._put

    def put_and_be_interrupted(*args: object) -> object:
        half = put(*args)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGUSR1)
        return half

    def fail(_number: int, _frame: object) -> None:
        raise kind("a handler's")

    before = signal.signal(signal.SIGUSR1, fail)
    try:
        monkeypatch.setattr(producer._halves, "_put", put_and_be_interrupted)
        with pytest.raises(kind, match="a handler's"):
            producer.send("t", b"x", transaction=transaction)
    finally:
        signal.signal(signal.SIGUSR1, before)
    if commit:
        with pytest.raises(TransactionFailed, match="not known to be rolled back"):
            transaction.commit()
    else:
        with pytest.raises(TransactionInDoubt):
            transaction.rollback()
    assert transaction.state == "in_doubt"


@mends("S134")
def test_an_end_that_is_broken_off_leaves_no_request_behind(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each later one would be taken for one of several, and asked for slowly."""

    def break_off(*_given: object) -> NoReturn:
        raise _BrokenOffError

    transaction = producer.begin_transaction()
    producer.send("t", b"x", transaction=transaction)
    with monkeypatch.context() as patch:
        patch.setattr(checkerlink, "await_told", lambda *_given: 0)
        patch.setattr(transaction, "_end_slowly", break_off)
        with pytest.raises(_BrokenOffError):
            transaction.commit()
    assert producer._transactions is not None
    assert not producer._transactions._link._awaited


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_amid_a_send_of_its_thread_is_none_of_that_message(
    serving: ServingBroker, producer: Producer, commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler ends what its thread is just sending into: that is left out, and told."""
    transaction = producer.begin_transaction()
    put = producer._halves._put
    told: list[Exception] = []

    def put_and_be_interrupted(*args: object) -> object:
        half = put(*args)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGUSR1)
        return half

    def end(*_args: object) -> None:
        try:
            transaction.commit() if commit else transaction.rollback()
        except (TransactionFailed, TransactionInDoubt) as error:
            told.append(error)

    before = signal.signal(signal.SIGUSR1, end)
    try:
        monkeypatch.setattr(producer._halves, "_put", put_and_be_interrupted)
        producer.send("t", b"x", transaction=transaction)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(told) == 1
    assert transaction.state == "in_doubt"
    transaction.rollback()
    assert outcomes(serving, transaction) == {"rolled_back"}


@mends("S3")
def test_what_is_sent_behind_the_end_is_refused(serving: ServingBroker, producer: Producer) -> None:
    """As soon as that has begun, whoever waits for it."""
    later, once, back = (producer.begin_transaction() for _ in range(3))
    for transaction in (later, once, back):
        producer.send("t", b"x", transaction=transaction)
    with hung(serving.pid_of(Role.TXN_CHECKER)):
        future = later.commit_async()
        for send in (producer.send, partial(producer.send_async)):
            with pytest.raises(Closed, match="is being ended: begin another one"):
                send("t", b"late", transaction=later)
        assert not future.done()
    future.result(PATIENCE_S)
    once.commit()
    back.rollback(math.inf)
    for transaction, state in ((later, "committed"), (once, "committed"), (back, "rolled_back")):
        with pytest.raises(Closed, match=f"is {state}"):
            producer.send("t", b"late", transaction=transaction)
        assert len(transaction.halves) == 1


@mends("S85")
def test_a_callback_that_exits_amid_a_close_leaves_nothing_undone(
    serving: ServingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the other commits nor the open transactions; its SystemExit comes out at the end."""

    def leave(_future: object) -> None:
        raise SystemExit("of a callback")

    monkeypatch.setattr(Commits, "watch", lambda *_: None)  # `close` comes first
    producer = Producer(serving.home, producer_group=GROUP, timeout=PATIENCE_S)
    *committed, left_open = [producer.begin_transaction() for _ in range(4)]
    for transaction in (*committed, left_open):
        producer.send("t", b"half", transaction=transaction)
    with hung(serving.pid_of(Role.TXN_CHECKER)):
        futures = [transaction.commit_async() for transaction in committed]
        futures[1].add_done_callback(leave)
    with pytest.raises(SystemExit, match="of a callback"):
        producer.close()
    assert [transaction.state for transaction in committed] == ["committed"] * 3
    assert left_open.state == "rolled_back"
    assert not producer._link.is_open


def _by_another_thread(close: Callable[[], None]) -> None:
    thread = threading.Thread(target=close)
    thread.start()
    thread.join()


def _by_a_handler(close: Callable[[], None]) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: close())
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@mends("S95")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("how", [lambda close: close(), _by_another_thread, _by_a_handler])
def test_a_close_amid_a_with_is_told_at_its_end(
    serving: ServingBroker, how: Callable[[Callable[[], None]], None], count: int
) -> None:
    """What was rolled back there does not look committed."""
    producer = Producer(serving.home, producer_group=GROUP, timeout=PATIENCE_S)
    transaction = producer.transaction()

    def work() -> None:
        with transaction:
            for _ in range(count):
                producer.send("t", b"half", transaction=transaction)
            how(producer.close)

    with pytest.raises(TransactionDecided, match="its producer was closed") as told:
        work()
    assert told.value.outcome == transaction.state == "rolled_back"
    assert outcomes(serving, transaction) == {"rolled_back"}


@mends("S234")
def test_a_rollback_that_is_refused_gives_nothing_up(serving: ServingBroker) -> None:
    """For its timeout: what another one has rolled back is told at the end of the `with`."""
    producer = Producer(serving.home, producer_group=GROUP, timeout=PATIENCE_S)
    transaction = producer.transaction()

    def work() -> None:
        with transaction:
            producer.send("t", b"half", transaction=transaction)
            with pytest.raises(ArgumentIllegal, match="timeout is"):
                transaction.rollback(math.nan)
            producer.send("t", b"another", transaction=transaction)
            producer.close()

    with pytest.raises(TransactionDecided, match="its producer was closed"):
        work()
    assert outcomes(serving, transaction) == {"rolled_back"}


@mends("S113")
@pytest.mark.parametrize("how", [_by_another_thread, _by_a_handler])
def test_a_commit_that_failed_amid_a_with_is_told_at_its_end(
    serving: ServingBroker, how: Callable[[Callable[[], None]], None]
) -> None:
    """Unless who has it has rolled it back."""
    with Producer(serving.home, producer_group=GROUP, timeout=PATIENCE_S) as producer:

        def work(end: Callable[[], None]) -> None:
            with transaction:
                producer.send("t", b"half", transaction=transaction)
                transaction.fail(ValueError("a message could not be sent"))
                how(commit)
                end()

        def commit() -> None:
            with pytest.raises(TransactionFailed):
                transaction.commit()

        transaction = producer.transaction()
        with pytest.raises(TransactionFailed):
            work(lambda: None)
        transaction = producer.transaction()
        work(transaction.rollback)
        assert transaction.state == "rolled_back"


@mends("S95")
def test_an_end_of_ones_own_amid_a_with_is_no_error(
    serving: ServingBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that another thread's close comes amid, or comes amid that."""
    producer = Producer(serving.home, producer_group=GROUP, timeout=PATIENCE_S)
    with producer.transaction() as transaction:
        producer.send("t", b"half", transaction=transaction)
        transaction.commit()
    assert transaction.state == "committed"
    with producer.transaction() as transaction:
        producer.send("t", b"half", transaction=transaction)
        closer = threading.Thread(target=producer.close)
        with transaction.lock:
            closer.start()
            transaction.rollback()
        closer.join()
    assert transaction.state == "rolled_back"
    assert not caplog.records
    with Producer(serving.home, producer_group=GROUP, timeout=PATIENCE_S) as producer:
        with producer.transaction() as transaction:
            producer.send("t", b"half", transaction=transaction)
            assert transaction._abandon(PATIENCE_S)
            transaction.rollback()
        assert transaction.state == "rolled_back"
