"""Push consumers whose session ends or whose `groups` dies: nothing is lost, little comes twice."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.groupreset import reset_offsets
from gantrymq.clients.message import Message, MessageQueue
from gantrymq.clients.push import dispatcher
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.clients.push.member import PushMember
from gantrymq.clients.push.window import Window
from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import BrokerGone
from tests.support.brokers import ServingBroker
from tests.support.forked import start_program
from tests.support.push import FIRST, PATIENCE_S, dead_letters, hold, send
from tests.support.trials import mends
from tests.support.watchdog import poll_until


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingBroker]:
    with ServingBroker(tmp_path_factory.mktemp("push") / "home") as broker:
        yield broker.wait_until_ready()


STOPPED = """
import sys
from pathlib import Path
from gantrymq import ConsumeFrom, PushConsumer
home, topic, folder = sys.argv[1:4]
def on_message(message):
    with open(folder + "/seen", "a") as file:
        file.write(bytes(message.body).decode() + " " + str(consumer.lost_acks) + "\\n")
    if bytes(message.body) == b"2":
        with open(folder + "/gate") as gate:
            gate.read()
consumer = PushConsumer("g-" + topic, [topic], on_message, home=home, orderly=True,
                        concurrency=1, consume_from=ConsumeFrom.FIRST_OFFSET)
consumer.run()
"""


def reset(broker: ServingBroker, group: str, queue: MessageQueue, offset: int) -> None:
    """Set an offset; whoever does not give the queue back at once loses its session."""
    reset_offsets(broker.home, group, queue.topic, lambda *_: {queue.queue_id: offset}, 0.1)


def test_who_was_stopped_and_evicted_learns_it_first(
    serving: ServingBroker, unique_name: str, tmp_path: Path
) -> None:
    """It finishes message 2 after its queue went to another: that counts for nothing, and its
    listener is called with nothing more of that lease."""
    topic, group = unique_name, "g-" + unique_name
    send(serving, topic, range(6), queue_id=0)
    gate, seen = tmp_path / "gate", tmp_path / "seen"
    os.mkfifo(gate)
    child = start_program(STOPPED, serving.home, topic, tmp_path)
    try:
        poll_until(lambda: seen.exists() and "2 0" in seen.read_text(), "message 2 is begun")
        child.send_signal(signal.SIGSTOP)
        reset(serving, group, MessageQueue(topic, 0), 2)
        messages: list[int] = []
        with PushConsumer(
            group, [topic], lambda m: messages.append(int(bytes(m.body))),
            home=serving.home, orderly=True,
        ):  # fmt: skip
            poll_until(lambda: messages == [2, 3, 4, 5], "another member has the queue")
            child.send_signal(signal.SIGCONT)
            gate.write_text("")
            send(serving, topic, range(6, 40))
            poll_until(
                lambda: len(messages) + len(seen.read_text().split("\n")) - 1 == 4 + 3 + 34,
                "both are at work again",
            )
    finally:
        child.send_signal(signal.SIGCONT)
        child.terminate()
        assert child.wait(timeout=PATIENCE_S) == 0
    lines = [line.split() for line in seen.read_text().splitlines()]
    assert [int(body) for body, _ in lines[:3]] == [0, 1, 2]
    assert all(int(body) >= 6 and lost == "1" for body, lost in lines[3:]), lines


@mends("S43")
@pytest.mark.parametrize("how", ["gone", "evicted"])
def test_ordered_a_resumed_consumer_waits_for_its_earlier_call_for_a_queue(
    serving: ServingBroker, unique_name: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """However long that takes, and though its lease is over; other queues go on."""
    monkeypatch.setattr(dispatcher, "FINISH_NS", 0)
    topic, group = unique_name, "g-" + unique_name
    calls: list[int] = []
    go_on = threading.Event()

    def listen(message: Message) -> None:
        calls.append(int(bytes(message.body)))
        hold(message, b"0", go_on)

    def window_of(member: PushMember) -> Window | None:
        queue = MessageQueue(topic, 0)
        return next((w for w in list(member.windows.values()) if w.queue == queue), None)

    def is_fetched_again() -> bool:
        window = consumer._dispatcher and window_of(consumer._dispatcher.member)
        return bool(window and window is not first and window.covered == 3)

    send(serving, topic, range(3), queue_id=0)
    with PushConsumer(
        group, [topic], listen, home=serving.home, consume_from=FIRST, orderly=True, concurrency=4
    ) as consumer:
        try:
            poll_until(lambda: calls == [0], "its first call hangs")
            assert consumer._dispatcher is not None
            first = window_of(consumer._dispatcher.member)
            if how == "gone":
                consumer._dispatcher.member.session._why_over = BrokerGone("as by a restart")
            else:
                reset(serving, group, MessageQueue(topic, 0), 0)
            poll_until(is_fetched_again, "the queue is there again")
            send(serving, topic, range(10, 11), queue_id=1)
            poll_until(lambda: 10 in calls, "another queue goes on")
            assert calls == [0, 10]
        finally:
            go_on.set()
        poll_until(lambda: calls[-1] == 2, "all came")
    assert calls == [0, 10, 0, 1, 2]


def test_groups_may_die(serving: ServingBroker, unique_name: str) -> None:
    """Requests repeat: every failure gets to the dead-letter queue once, nothing comes twice."""
    topic, group = unique_name, "g-" + unique_name
    bodies: list[int] = []

    def fail_some(message: Message) -> ConsumeResult | None:
        body = int(bytes(message.body))
        bodies.append(body)  # as other threads do: its last is anybody's
        return ConsumeResult.DEAD_LETTER if body % 10 == 0 else None

    with PushConsumer(group, [topic], fail_some, home=serving.home, consume_from=FIRST):
        for part in range(3):
            send(serving, topic, range(100 * part, 100 * part + 100))
            poll_until(lambda part=part: len(bodies) > 100 * part + 20, "some came")  # type: ignore[misc]
            pid = serving.pid_of(Role.GROUPS)
            os.kill(pid, signal.SIGKILL)
            poll_until(lambda pid=pid: serving.pid_of(Role.GROUPS) not in (0, pid), "replaced")  # type: ignore[misc]
        poll_until(lambda: len(bodies) >= 300, "all came")
    assert Counter(bodies) == Counter(range(300))
    with PullConsumer("d-" + group, [f"%DLQ%{group}"], home=serving.home, consume_from=FIRST) as c:
        dead = [int(bytes(body)) for body in c.poll(timeout=PATIENCE_S).bodies]
    assert sorted(dead) == list(range(0, 300, 10))
    with PullConsumer(group, [topic], home=serving.home) as rest:
        assert len(rest.poll(timeout=0)) == 0


DEADLY = """
import os, signal, sys
from gantrymq import ConsumeFrom, PushConsumer
home, topic = sys.argv[1:3]
def on_message(message):
    os.kill(os.getpid(), signal.SIGKILL if bytes(message.body) == b"13" else signal.SIGUSR1)
signal.signal(signal.SIGUSR1, lambda *_: print("works", flush=True))
PushConsumer("g-" + topic, [topic], on_message, home=home,
             consume_from=ConsumeFrom.FIRST_OFFSET).run()
"""


def test_a_death_that_groups_never_saw_is_an_attempt(
    serving: ServingBroker, unique_name: str
) -> None:
    """P9: the supervisor keeps what a dead consumer's memory says for the next `groups`."""
    topic, group = unique_name, "g-" + unique_name
    send(serving, topic, range(1), queue_id=0)
    child = start_program(DEADLY, serving.home, topic, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"works\n"
    sessions = serving.board.half(layout.BOARD_SESSION_COUNT)
    old = serving.pid_of(Role.GROUPS)
    os.kill(old, signal.SIGSTOP)
    send(serving, topic, range(13, 14), queue_id=0)
    with child:
        assert child.wait(timeout=PATIENCE_S) == -signal.SIGKILL
    poll_until(
        lambda: serving.board.half(layout.BOARD_SESSION_COUNT) < sessions, "its session is over"
    )
    os.kill(old, signal.SIGKILL)
    seen: list[bytes] = []
    with PushConsumer(
        group, [topic], lambda m: seen.append(bytes(m.body)), home=serving.home, max_attempts=1
    ):
        dead = dead_letters(serving, group, 1)
    assert dead.keys() == {13}
    assert not seen


def test_a_restart_of_the_broker_is_waited_for(tmp_path: Path, unique_name: str) -> None:
    """What runs is finished meanwhile, and does not come again."""
    topic, group = unique_name, "g-" + unique_name
    bodies: list[int] = []
    entered, go_on = threading.Event(), threading.Event()

    def listen(message: Message) -> None:
        body = int(bytes(message.body))
        bodies.append(body)  # as the other thread does: its last is anybody's
        if body == 5:
            entered.set()
            assert go_on.wait(PATIENCE_S)

    with ServingBroker(tmp_path / "home") as serving:
        serving.wait_until_ready()
        send(serving, topic, range(50), queue_id=0)
        with PushConsumer(
            group, [topic], listen, home=serving.home, consume_from=FIRST, concurrency=2
        ):
            poll_until(lambda: entered.is_set() and len(bodies) == 50, "one is left")
            epoch = serving.board.epoch
            serving.stop()
            go_on.set()
            serving.again().wait_until_ready(not_epoch=epoch)
            send(serving, topic, range(50, 80), queue_id=0)
            poll_until(lambda: len(bodies) >= 80, "the others came")
        assert Counter(bodies) == Counter(range(80))
        with PullConsumer(group, [topic], home=serving.home) as rest:
            assert len(rest.poll(timeout=0)) == 0
