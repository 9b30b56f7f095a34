"""A forked child's end ends nothing of its parent's: broker, clients, pytest's fixture."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.queries.client import Client
from gantrymq.shm.errors import Closed
from gantrymq.temporary import Broker
from tests.support.applications import FIRST, PATIENCE_S
from tests.support.clientlocks import held, locks_of
from tests.support.tree import ROOT
from tests.support.trials import mends
from tests.support.watchdog import poll_until
from tests.system.test_closed_clients import CALLS


def _in_child(act: Callable[[], object]) -> int:
    """Do something in a forked child, whose frames then end as those of a process of Python do."""
    pid = os.fork()
    if pid:
        return _code_of(pid)
    code = 1
    try:
        act()
        code = 0
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
    finally:
        os._exit(code)


def _code_of(pid: int) -> int:
    """How a child has ended; one that hangs is killed, and fails the test."""
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        poll_until(lambda: os.waitid(os.P_PID, pid, how), "the child has ended")
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        status = os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status)


def _end(thing: object) -> None:
    """End a thing as `with` does."""
    exits = type(thing).__exit__  # type: ignore[attr-defined]
    exits(thing, None, None, None)
    exits(thing, SystemExit, SystemExit(0), None)
    thing.close()  # type: ignore[attr-defined]


@mends("A8")
def test_a_childs_end_leaves_the_broker_alone() -> None:
    with Broker.temporary() as broker:
        assert _in_child(lambda: _end(broker)) == 0
        assert broker.process.poll() is None
        with Producer(broker.home) as producer:
            assert producer.send("t", b"x").queue_offset == 0

        def use() -> None:
            for act in (broker.stop, broker.start, broker.__enter__):
                with pytest.raises(Closed, match="parent"):
                    act()

        assert _in_child(use) == 0
        assert broker.process.poll() is None


@mends("A8")
def test_the_interpreters_end_in_a_child_leaves_the_broker_alone(tmp_path: Path) -> None:
    """The program of the trial; its child takes the `with` statements down."""
    program = (
        "import os, sys\n"
        "from gantrymq import *\n"
        "with Broker.temporary() as b, Producer(b.home) as p, Client(b.home) as c,"
        " PullConsumer('g', ['t'], home=b.home) as q,"
        " PushConsumer('h', ['t'], print, home=b.home):\n"
        "    if os.fork() == 0:\n"
        "        sys.exit(0)\n"
        "    assert os.wait()[1] == 0\n"
        "    assert p.send('t', b'x').queue_offset == 0\n"
        "    assert len(q.poll(timeout=60)) == 1\n"
        "    assert b.home.exists() and b.process.poll() is None\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")


@mends("A8")
def test_a_broker_ends_with_its_process_though_a_child_lives_on() -> None:
    """What it notices is the end of a pipe, which a child has no part of."""
    with Broker.temporary() as broker:
        pipe = broker.process.stdin
        assert pipe is not None
        number = pipe.fileno()

        def look() -> None:
            assert pipe.closed
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(number)

        assert _in_child(look) == 0
        assert not pipe.closed


@mends("A8")
def test_a_childs_end_commits_nothing_of_its_parents_consumer(
    broker: Broker, unique_name: str
) -> None:
    """What the parent was handed is not done with, whatever the child does."""
    group = "g-" + unique_name
    with Producer(broker.home) as producer:
        for number in range(3):
            producer.send(unique_name, b"%d" % number, queue_id=0)
    consumer = PullConsumer(group, [unique_name], home=broker.home, consume_from=FIRST)
    assert len(consumer.poll(timeout=PATIENCE_S)) == 3
    assert _in_child(lambda: _end(consumer)) == 0
    consumer.close(commit=False)
    with PullConsumer(group, [unique_name], home=broker.home, consume_from=FIRST) as again:
        assert len(again.poll(timeout=PATIENCE_S)) == 3


@mends("A8")
def test_a_child_of_a_listener_goes_no_further_than_its_call(
    broker: Broker, unique_name: str
) -> None:
    """Nor does it acknowledge: what it does to the arena would be the parent's."""
    children: list[int] = []
    seen: list[bytes] = []
    parent, reports = os.getpid(), os.pipe()
    done = threading.Event()

    def listen(message: Message) -> None:
        body = bytes(message.body)
        if os.getpid() != parent:
            os.write(reports[1], b"!")
            return
        seen.append(body)
        if not children:
            pid = os.fork()
            if pid == 0:
                raise SystemExit(0)
            children.append(pid)
            os.waitpid(pid, 0)
        if len(seen) == 20:
            done.set()

    with Producer(broker.home) as producer:
        producer.send_batch(unique_name, [b"%d" % n for n in range(20)])
    options = {"consume_from": FIRST, "concurrency": 1}
    group = "g-" + unique_name
    with PushConsumer(group, [unique_name], listen, home=broker.home, **options) as consumer:  # type: ignore[arg-type]
        assert done.wait(PATIENCE_S)
        assert consumer.is_running
    os.close(reports[1])
    assert os.read(reports[0], 9) == b""
    os.close(reports[0])
    assert sorted(seen, key=int) == [b"%d" % n for n in range(20)]


@mends("A8")
def test_a_childs_end_leaves_the_others_alone(broker: Broker, topic: str) -> None:
    seen: list[bytes] = []
    with (
        Producer(broker.home, producer_group="g-" + topic) as producer,
        Client(broker.home) as client,
    ):
        producer.send(topic, b"before")
        transaction = producer.transaction()
        producer.send(topic, b"half", transaction=transaction)
        with PushConsumer(
            "g-" + topic, [topic], lambda m: seen.append(bytes(m.body)), home=broker.home
        ) as push:
            for thing in (producer, client, push):
                assert _in_child(partial(_end, thing)) in (0, 1)
            assert _in_child(partial(transaction.__exit__, None, None, None)) == 1
            assert push.is_running
            transaction.commit()
            poll_until(lambda: b"half" in seen, "the listener goes on")
        assert len(list(client.query(topic))) == 2


_WITH_FIXTURE = """
import os, sys
from gantrymq import Producer

def test_a_child_ends(gantrymq_broker):
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    os.waitpid(pid, 0)
    with Producer() as producer:
        assert producer.send("t", b"x").queue_offset == 0
"""


@mends("A8")
def test_a_childs_end_leaves_the_fixture_alone(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_WITH_FIXTURE)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.stdout.splitlines()[-1].startswith("1 passed"), ended.stdout


@mends("A12.9")
def test_a_closed_broker_is_not_started() -> None:
    broker = Broker.temporary()
    broker.stop()
    broker.start()
    broker.close()
    broker.close()
    for again in (broker.start, broker.__enter__):
        with pytest.raises(Closed, match="files are removed"):
            again()
    broker.stop()


@mends("S6")
def test_a_child_finds_no_lock_of_its_parents_threads(broker: Broker, topic: str) -> None:
    """Every call there says that it is the parent's, whatever a thread was doing at the fork."""
    group = "g-" + topic
    with (
        Producer(broker.home, producer_group=group) as producer,
        PullConsumer("pull-" + group, [topic], home=broker.home) as pull,
        PushConsumer(group, [topic], lambda _: None, home=broker.home) as push,
    ):
        producer.send(topic, b"x")
        pull.poll(timeout=0)
        transactions = [producer.transaction() for _ in range(3)]
        for transaction in transactions:
            producer.send(topic, b"half", transaction=transaction)
        transactions.pop().commit()
        first, second = transactions
        future = first.commit_async()
        calls: dict[str, Callable[[], object]] = {
            "commit": lambda: second.commit(PATIENCE_S),
            "rollback": lambda: second.rollback(PATIENCE_S),
            "commit_async": second.commit_async,
            "send into": lambda: producer.send(topic, b"x", transaction=second),
            "send_async into": lambda: producer.send_async(topic, b"x", transaction=second),
            "result": lambda: future.result(PATIENCE_S),
            "exception": lambda: future.exception(PATIENCE_S),
            "callback": lambda: future.add_done_callback(print),
        }
        for thing in (producer, pull, push):
            for name, arguments in CALLS[type(thing)].items():
                calls[f"{type(thing).__name__}.{name}"] = partial(_call, thing, name, arguments)

        def try_all() -> None:
            for name, call in calls.items():
                os.write(2, f"{name}: ".encode())  # the last one is what hangs
                with pytest.raises(Closed):
                    call()
                os.write(2, b"Closed\n")

        locks = locks_of(producer, pull, push, first, second, future)
        with held(lock for several in locks.values() for lock in several):
            code = _in_child(try_all)
        assert code == 0
        future.result(PATIENCE_S)
        second.rollback()


def _call(thing: object, name: str, arguments: tuple[object, ...]) -> object:
    result = getattr(thing, name)(*arguments)
    return next(result) if name == "__iter__" else result
