"""How long a call may hold others up: a broker that does not answer costs each its own timeout."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gantrymq.clients import attachment as attachment_module
from gantrymq.clients import member as member_module
from gantrymq.clients import session as session_module
from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.control import look_at
from gantrymq.clients.producer import Producer
from gantrymq.clients.push import consumer as push_module
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.transactions.transaction import Transaction
from gantrymq.shm import transactionwire
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import BrokerGone, Closed, GantryError, Timeout
from gantrymq.temporary import Broker
from tests.support.brokers import ServingBroker
from tests.support.clientlocks import held, locks_of
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S, poll_until
from tests.system.test_broker_away import HANDLE, WAITS

T = TypeVar("T")
SHORT_S = 0.05


class Beside(threading.Thread):
    """A call in a thread of its own, which may take for ever."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.told: object = None
        self.start()

    def run(self) -> None:
        """Make it."""
        try:
            self.told = self._call()
        except GantryError as error:
            self.told = error

    def require_told(self) -> object:
        """What came of it. Fails if nothing does."""
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the call waits for another one"
        return self.told


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingBroker]:
    home = tmp_path_factory.mktemp("patience") / "home"
    with ServingBroker(home, hung_agent_timeout=0) as broker:
        yield broker.wait_until_ready()


@contextmanager
def hung(pid: int) -> Iterator[None]:
    """Let a process stand still meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_future_that_is_decided_waits_for_no_broker() -> None:
    """The backlog has given its message up; how long its caller would wait is another matter."""
    with Broker.temporary() as broker, Producer(broker.home) as producer:
        producer.send("t", b"first")
        broker.stop()
        asked = threading.Event()
        future = producer.send_async("t", b"given up", timeout=SHORT_S)

        def ask() -> object:
            asked.set()
            return future.exception(math.inf)

        beside = Beside(ask)
        assert asked.wait(PATIENCE_S)
        try:
            assert isinstance(beside.require_told(), BrokerGone)
        finally:
            broker.start()


def test_a_thread_that_waits_for_the_supervisor_holds_up_no_other(serving: ServingBroker) -> None:
    with Producer(serving.home, timeout=math.inf) as producer:
        producer.send("known", b"first")
        with hung(serving.process.pid):
            opening = Beside(lambda: producer.send("new", b"x", timeout=PATIENCE_S))
            while not producer._link.session._control.is_asking:
                assert opening.is_alive()
            sending = Beside(lambda: producer.send("known", b"second", timeout=PATIENCE_S))
            assert not isinstance(sending.require_told(), GantryError)
            other = Beside(lambda: producer.send("other", b"x", timeout=SHORT_S))
            assert isinstance(other.require_told(), Timeout)
        assert not isinstance(opening.require_told(), GantryError)


def test_a_thread_that_attaches_again_holds_up_no_other(tmp_path: Path) -> None:
    with ServingBroker(tmp_path / "home") as broker:
        broker.wait_until_ready()
        with Producer(broker.home, timeout=math.inf) as producer:
            producer.send("t", b"first")
            broker.kill_all()
            broker.end()
            broker.again().wait_until_ready()
            with hung(broker.process.pid):
                patient = Beside(lambda: producer.send("t", b"x"))
                while not producer._link._replacer:
                    assert patient.is_alive()
                hasty = Beside(lambda: producer.send("t", b"y", timeout=SHORT_S))
                assert isinstance(hasty.require_told(), BrokerGone)
                assert patient.is_alive()
            assert not isinstance(patient.require_told(), GantryError)


def test_a_thread_that_waits_for_room_holds_up_no_other(serving: ServingBroker) -> None:
    """A full ring is full for all; each says so when its own time is up."""
    with Producer(serving.home, timeout=math.inf) as producer:
        producer.send("t", b"first")
        with look_at(serving.home):
            pid = serving.pid_of(Role.WRITER)
        with hung(pid):
            patient = Beside(lambda: [producer.send_async("t", bytes(4000)) for _ in range(2000)])
            while not producer._link._sleepers:
                assert patient.is_alive()
            hasty = Beside(lambda: producer.send("t", bytes(4000), timeout=SHORT_S))
            assert isinstance(hasty.require_told(), GantryError)
        assert not isinstance(patient.require_told(), GantryError)


def test_a_commit_in_parts_holds_up_no_other(serving: ServingBroker) -> None:
    """Each future is decided by its own answer."""
    with Producer(serving.home, producer_group="pay", timeout=math.inf) as producer:
        large, small = (producer.begin_transaction() for _ in range(2))
        halves = [
            producer.send_async("t", b"x", transaction=large)
            for _ in range(transactionwire.HALVES_MAX + 1)
        ]
        halves.append(producer.send_async("t", b"y", transaction=small))
        for half in halves:
            half.result(PATIENCE_S)
        with hung(serving.pid_of(Role.TXN_CHECKER)):
            future = large.commit_async()
            asked = Beside(lambda: (future.done(), small.commit_async().done()))
            assert asked.require_told() == (False, False)
        future.result(PATIENCE_S)
        small.commit(PATIENCE_S)


def test_a_consumer_attaches_within_its_timeout(
    serving: ServingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_module, "TIMEOUT_S", 1.0)
    with hung(serving.process.pid):
        with pytest.raises(Timeout, match=r"in 1\.0 s"):
            PullConsumer("pull", ["t"], home=serving.home, timeout=1.0)
        with pytest.raises(Timeout, match=r"in 1\.0 s"):
            PushConsumer("push", ["t"], print, home=serving.home).start()


def never_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits longer than its timeout waits for ever."""
    for module in (attachment_module, member_module):
        monkeypatch.setattr(module, "ANSWER_NS", 1 << 60)
    monkeypatch.setattr(session_module, "ANSWER_S", 1e6)


_BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)
#: Calls of a consumer that are answered by an agent, which hangs.
ANSWERED: dict[str, tuple[Role, Callable[[PullConsumer], object]]] = {
    "commit": (Role.GROUPS, PullConsumer.commit),
    "assign": (Role.GROUPS, lambda consumer: consumer.assign(consumer.assignment()[:1])),
    "close": (Role.GROUPS, PullConsumer.close),
    "seek": (Role.READER, lambda consumer: consumer.seek(consumer.assignment()[0], _BEGINNING)),
}


@mends("S5.2")
@pytest.mark.parametrize("name", ANSWERED)
def test_a_consumer_waits_for_answers_as_long_as_it_was_told(
    serving: ServingBroker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    never_answered(monkeypatch)
    role, call = ANSWERED[name]
    with (
        Producer(serving.home) as producer,
        PullConsumer(f"hung-{name}", ["t"], home=serving.home, timeout=1.0) as consumer,
    ):
        poll_until(lambda: (consumer.poll(timeout=0), consumer.assignment())[1], "it has queues")
        with hung(serving.pid_of(role)):
            producer.send("t", b"not shown yet")
            told = Beside(lambda: call(consumer)).require_told()
        assert isinstance(told, Timeout) or name == "close"


@mends("S5.2")
@pytest.mark.parametrize("role", Role)
def test_a_call_waits_for_a_hung_agent_as_long_as_it_was_told(
    serving: ServingBroker, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    """Every public call with a timeout, whichever process of the broker hangs."""
    never_answered(monkeypatch)
    with ExitStack() as clients:
        producers = [
            clients.enter_context(Producer(serving.home, producer_group="g", timeout=1.0))
            for _ in WAITS
        ]
        for producer in producers:
            producer.send("t", b"first")
        consumers = [
            clients.enter_context(PullConsumer(f"hung{number}", ["t"], home=serving.home))
            for number in range(len(WAITS))
        ]
        each = zip(WAITS.values(), producers, consumers, strict=True)
        with hung(serving.pid_of(role)):
            calls = [
                Beside(partial(call, producer, consumer, SHORT_S))
                for call, producer, consumer in each
            ]
            for call in calls:
                call.require_told()


#: Locks that are held for a few statements, by nobody who waits for anything else.
MOMENTS = {
    "WriterLink.lock", "Backlog._lock", "CheckerLink._lock", "Commits._lock", "Session._turn",
    "OwnThread._lock",
}  # fmt: skip
#: Calls on one transaction; they wait for each other.
SHARED: dict[str, Callable[[Producer, Transaction, float], object]] = {
    "commit": lambda _p, tx, s: tx.commit(s),
    "rollback": lambda _p, tx, s: tx.rollback(s),
    "send": lambda p, tx, s: p.send("new", b"x", transaction=tx, timeout=s),
    "send_async": lambda p, tx, s: p.send_async("new", b"x", transaction=tx, timeout=s),
    "commit_async": lambda _p, tx, s: tx.commit_async().result(s),
    "recall": lambda p, _tx, s: p.recall_message("t", HANDLE, timeout=s),
}


@mends("S5.1")
@pytest.mark.parametrize("name", SHARED)
def test_a_call_waits_for_another_threads_lock_as_long_as_it_was_told(
    serving: ServingBroker, name: str
) -> None:
    """Whatever that one waits for."""
    with Producer(serving.home, producer_group="g", timeout=math.inf) as producer:
        other, transaction = (producer.transaction() for _ in range(2))
        for each in (other, transaction):
            producer.send("t", b"half", transaction=each)
        other.commit()
        locks = locks_of(producer, transaction)
        with held(lock for kind in locks.keys() - MOMENTS for lock in locks[kind]):
            told = Beside(partial(SHARED[name], producer, transaction, SHORT_S)).require_told()
        if name == "commit_async":  # it takes none: what it waits for is the answer
            assert told is None
        else:
            assert isinstance(told, Timeout)


#: What a thread waits for, whose lock it has meanwhile, and how others on the same thing end.
BESIDE: dict[str, tuple[Role, str, type[GantryError]]] = {
    "commit": (Role.TXN_CHECKER, "Transaction.lock", Timeout),
    "rollback": (Role.TXN_CHECKER, "Transaction.lock", Timeout),
    "recall": (Role.SCHEDULER, "Recaller._lock", Timeout),
    "send into": (Role.TXN_CHECKER, "Transaction.lock", Closed),
    "send_async into": (Role.TXN_CHECKER, "Transaction.lock", Closed),
}


@mends("S5.1")
@pytest.mark.parametrize("name", BESIDE)
def test_a_call_beside_one_that_waits_for_an_agent_ends_by_its_own_timeout(
    serving: ServingBroker, name: str
) -> None:
    role, lock_name, kind = BESIDE[name]
    patient, hasty = (SHARED[way] for way in _WAYS[name])
    with Producer(serving.home, producer_group="g", timeout=math.inf) as producer:
        transaction = producer.transaction()
        producer.send("t", b"half", transaction=transaction)
        (lock,) = locks_of(producer, transaction)[lock_name]
        with hung(serving.pid_of(role)):
            waiting = Beside(partial(patient, producer, transaction, math.inf))
            poll_until(lambda: _is_taken(lock), "the other thread is in its call")
            told = Beside(partial(hasty, producer, transaction, SHORT_S)).require_told()
            assert waiting.is_alive()
        assert isinstance(told, kind)
        waiting.require_told()


_WAYS = {
    "commit": ("commit", "commit"),
    "rollback": ("commit", "rollback"),
    "recall": ("recall", "recall"),
    "send into": ("commit", "send"),
    "send_async into": ("rollback", "send_async"),
}


def _is_taken(lock: Any) -> bool:  # noqa: ANN401 - an RLock
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


@mends("S4")
def test_commits_without_waiting_open_no_session(
    serving: ServingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they wait for the thread that does, for callbacks; each future has its own time."""
    never_answered(monkeypatch)
    with Producer(serving.home, producer_group="g", timeout=math.inf) as producer:
        transactions = [producer.transaction() for _ in range(20)]
        for transaction in transactions:
            producer.send("t", b"half", transaction=transaction)
        (opening,) = locks_of(producer, transactions[0])["CheckerLink._opening"]
        called = threading.Event()
        with hung(serving.process.pid):
            begun = Beside(lambda: [each.commit_async() for each in transactions[:10]])
            futures = begun.require_told()
            assert isinstance(futures, list)
            futures[0].add_done_callback(lambda _future: called.set())
            poll_until(lambda: _is_taken(opening), "a thread opens the session")
            more = Beside(lambda: [each.commit_async() for each in transactions[10:]])
            futures += more.require_told()  # type: ignore[arg-type]
            for future in (futures[0], futures[-1]):
                told = Beside(partial(future.result, SHORT_S)).require_told()
                assert isinstance(told, Timeout)
        assert called.wait(PATIENCE_S)
        for future in futures:
            future.result(PATIENCE_S)


@mends("S4")
def test_a_callback_of_a_commit_holds_up_no_other(serving: ServingBroker) -> None:
    with Producer(serving.home, producer_group="g", timeout=PATIENCE_S) as producer:
        first, second = (producer.transaction() for _ in range(2))
        for transaction in (first, second):
            producer.send("t", b"half", transaction=transaction)
        entered, leave = threading.Event(), threading.Event()

        def stay(_future: object) -> None:
            entered.set()
            leave.wait()

        slow = first.commit_async()
        slow.add_done_callback(stay)
        assert entered.wait(PATIENCE_S)
        try:
            told = Beside(lambda: second.commit_async().result(PATIENCE_S)).require_told()
        finally:
            leave.set()
        assert told is None
