"""Push consumers of a real broker: who gets what, failures, deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.clients.push.options import PushOptions
from gantrymq.shm import limits
from gantrymq.shm.errors import GroupIllegal
from gantrymq.temporary import Broker
from tests.support.forked import start_program
from tests.support.push import FIRST, PATIENCE_S, Seen, dead_letters, hold, left_over, send
from tests.support.trials import mends
from tests.support.watchdog import poll_until


@pytest.fixture(name="broker", scope="module")
def fast_levels(retrying_broker: Broker) -> Broker:
    return retrying_broker


@pytest.mark.parametrize("concurrency", [1, 4])
def test_every_message_comes_once_and_is_acknowledged(
    broker: Broker, topic: str, concurrency: int
) -> None:
    send(broker, topic, range(3000))
    seen = Seen()
    group = "g-" + topic
    with PushConsumer(
        group, [topic], seen, home=broker.home, consume_from=FIRST, concurrency=concurrency
    ) as consumer:
        seen.wait_for(3000)
        assert len(consumer.assignment()) == 4 + 8
    assert Counter(seen.bodies) == Counter(range(3000))
    assert {m.delivery_attempt for m in seen.messages} == {1}
    assert consumer.lost_acks == 0
    assert left_over(broker, group, topic) == 0


def test_messages_come_as_they_are_sent_and_by_tags(broker: Broker, topic: str) -> None:
    """FL-4; what tags keep away is acknowledged as well."""
    seen = Seen()
    group = "g-" + topic
    send(broker, topic, range(3), tag="open")
    with PushConsumer(group, {topic: "paid || lost"}, seen, home=broker.home, consume_from=FIRST):
        send(broker, topic, range(3, 10), tag="paid")
        send(broker, topic, range(10, 1500), tag="open")
        send(broker, topic, range(1500, 1510), tag="lost")
        seen.wait_for(17)
    assert sorted(seen.bodies) == [*range(3, 10), *range(1500, 1510)]
    assert left_over(broker, group, topic) == 0


def test_one_slow_message_holds_nobody_up(broker: Broker, topic: str) -> None:
    """Chunks are relieved of what they have not begun, and what they have done is acknowledged."""
    go_on = threading.Event()
    send(broker, topic, range(200), queue_id=0)
    seen = Seen(lambda m: hold(m, b"100", go_on))
    group = "g-" + topic
    with PushConsumer(group, [topic], seen, home=broker.home, consume_from=FIRST, concurrency=2):
        try:
            seen.wait_for(200)
        finally:
            go_on.set()
    assert Counter(seen.bodies) == Counter(range(200))
    assert left_over(broker, group, topic) == 0


@pytest.mark.parametrize("assignment", ["sticky", "average"])
def test_two_members_share_and_take_over(broker: Broker, topic: str, assignment: str) -> None:
    """CQ-46: by the average strategy, each member has queues that lie beside each other."""
    group = "g-" + topic
    one, two = Seen(), Seen()
    terms: PushOptions = {"assignment": assignment, "consume_from": FIRST}
    with PushConsumer(group, [topic], one, home=broker.home, **terms) as first:
        send(broker, topic, range(400))
        one.wait_for(400)
        with PushConsumer(group, [topic], two, home=broker.home, **terms) as second:
            poll_until(lambda: len(second.assignment()) == 6, "queues are shared")
            own = [queue.queue_id for queue in second.assignment() if queue.topic == topic]
            assert own in ([0, 1], [2, 3]) if assignment == "average" else len(own) == 2
            assert not set(first.assignment()) & set(second.assignment())
            send(broker, topic, range(400, 800))
            poll_until(lambda: len(one.bodies) + len(two.bodies) == 800, "all came")
        poll_until(lambda: len(first.assignment()) == 12, "the queues came back")
        send(broker, topic, range(800, 900))
        poll_until(lambda: len(one.bodies) + len(two.bodies) == 900, "all came")
    assert two.bodies
    assert Counter(one.bodies + two.bodies) == Counter(range(900))


def test_members_that_subscribe_differently_are_refused(broker: Broker, topic: str) -> None:
    group = "g-" + topic
    send(broker, topic, range(1))
    with PushConsumer(group, {topic: "a || b"}, Seen(), home=broker.home):
        with PushConsumer(group, {topic: "b||a"}, Seen(), home=broker.home):
            pass
        with pytest.raises(GroupIllegal, match=group):
            PushConsumer(group, {topic: "a"}, Seen(), home=broker.home).start()
        theirs = rf"a \|\| b \(max_attempts 17\); this one wants {topic}: a \|\| b \("
        for terms, ours in (({"max_attempts": 3}, "max_att"), ({"orderly": True}, "orderly, ")):
            with pytest.raises(GroupIllegal, match=theirs + ours):
                PushConsumer(group, {topic: "b || a"}, Seen(), home=broker.home, **terms).start()


def test_what_fails_goes_to_the_dead_letter_queue_with_its_reason(
    broker: Broker, topic: str
) -> None:
    """RD-16, RD-18, RD-20, RD-42: no retries are left, so it is sent back once."""
    group = "g-" + topic
    send(broker, topic, range(30), tag="x", properties={"mine": "1"})

    def answer(message: Message) -> ConsumeResult | None:
        body = int(bytes(message.body))
        if body == 7:
            raise ValueError("seven")
        return {8: ConsumeResult.FAILURE, 9: ConsumeResult.DEAD_LETTER}.get(body)

    seen = Seen(answer)
    with PushConsumer(group, [topic], seen, home=broker.home, consume_from=FIRST, max_attempts=1):
        seen.wait_for(30)
    dead = dead_letters(broker, group, 3)
    assert dead.keys() == {7, 8, 9}
    assert all(found["RETRY_TOPIC"] == topic for found in dead.values())
    assert dead[7]["DLQ_REASON"] == "ValueError: seven"
    assert (dead[7]["TAGS"], dead[7]["mine"]) == ("x", "1")
    with PullConsumer(
        "look-" + topic, [f"%DLQ%{group}"], home=broker.home, consume_from=FIRST
    ) as looking:
        shown = looking.poll(timeout=PATIENCE_S)[0].properties
    assert shown["mine"] == "1"
    assert "__CRC32#" not in shown, "what it is told of by, and no sum of the store's"
    assert Counter(seen.bodies) == Counter(range(30))
    assert left_over(broker, group, topic) == 0


class Untold(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Odd:
    """A listener's answer that looks odd."""

    def __repr__(self) -> str:
        return "\udce9"


@mends("S167")
@pytest.mark.parametrize("terms", [{}, {"orderly": True}], ids=["plain", "orderly"])
def test_a_failure_may_say_anything(broker: Broker, topic: str, terms: dict[str, Any]) -> None:
    """Its consumer goes on: also where an error has no text, or one that is no Unicode."""
    group = "g-" + topic
    send(broker, topic, range(8))

    def answer(message: Message) -> Any:  # noqa: ANN401
        match int(bytes(message.body)):
            case 2:
                raise Untold
            case 3:
                raise OSError("cannot import " + os.fsdecode(b"caf\xe9.csv"))
            case 4:
                return Odd()
        return None

    seen = Seen(answer)
    with PushConsumer(
        group, [topic], seen, home=broker.home, consume_from=FIRST, max_attempts=1, **terms
    ) as consumer:
        dead = dead_letters(broker, group, 3)
        seen.wait_for(8)
        assert consumer.is_running
    reasons = {body: found["DLQ_REASON"] for body, found in dead.items()}
    assert reasons == {
        2: "Untold: it has no text that can be shown",
        3: "OSError: cannot import caf\\udce9.csv",
        4: "the listener answered \\udce9 (Odd), which is no ConsumeResult",
    }


def test_a_failed_message_comes_again_with_its_own_topic(broker: Broker, topic: str) -> None:
    """RD-40, RD-22, LW-36; `retry_after` instead of the ladder."""
    group = "g-" + topic
    send(broker, topic, range(20), properties={"mine": "1"})

    def answer(message: Message) -> ConsumeResult | None:
        if int(bytes(message.body)) == 3 and message.delivery_attempt == 1:
            return message.retry_after(0.05)
        return ConsumeResult.FAILURE if int(bytes(message.body)) == 4 else None

    seen = Seen(answer)
    with PushConsumer(group, [topic], seen, home=broker.home, consume_from=FIRST, max_attempts=3):
        seen.wait_for(23)
        dead = dead_letters(broker, group, 1)
    assert Counter(seen.bodies) == Counter([*range(20), 3, 4, 4])
    attempts: dict[int, list[int | None]] = defaultdict(list)
    for body, message in zip(seen.bodies, seen.messages, strict=True):
        attempts[body].append(message.delivery_attempt)
        assert (message.topic, message.properties) == (topic, {"mine": "1"})
    assert (attempts[3], attempts[4]) == ([1, 2], [1, 2, 3])
    assert dead.keys() == {4}


def test_ordered_messages_keep_their_order_and_block_their_queue_only(
    broker: Broker, topic: str
) -> None:
    """RD-45: the pause is `retry_after`; in the end the message goes to the dead-letter queue."""
    group = "g-" + topic
    for queue in range(4):
        send(broker, topic, range(100 * queue, 100 * queue + 30), queue_id=queue)

    def answer(message: Message) -> ConsumeResult | None:
        if int(bytes(message.body)) == 105:
            return message.retry_after(0.02)
        if int(bytes(message.body)) == 210 and (message.delivery_attempt or 0) < 3:
            message.retry_after(0.02)
            raise RuntimeError("not yet")
        return None

    seen = Seen(answer)
    with PushConsumer(
        group, [topic], seen, home=broker.home, consume_from=FIRST, orderly=True, max_attempts=4
    ):
        seen.wait_for(120 + 3 + 2)
        dead = dead_letters(broker, group, 1)
    assert dead.keys() == {105}
    per_queue: dict[int, list[int]] = defaultdict(list)
    for body in seen.bodies:
        per_queue[body // 100].append(body)
    for queue, bodies in per_queue.items():
        assert bodies == sorted(bodies), queue
    assert Counter(seen.bodies)[105] == 4
    assert [m.delivery_attempt for m in seen.messages if bytes(m.body) == b"210"] == [1, 2, 3]
    assert left_over(broker, group, topic) == 0


DEADLY = """
import os, signal, sys
from gantrymq import ConsumeFrom, PushConsumer
home, topic, out = sys.argv[1:4]
def on_message(message):
    if bytes(message.body) == b"13":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(out, "ab") as file:
        file.write(bytes(message.body) + b"\\n")
consumer = PushConsumer("g-" + topic, [topic], on_message, home=home, max_attempts=3,
                        consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=4)
print("ready", flush=True)
consumer.run()
"""


def consumer_process(broker: Broker, topic: str, out: Path) -> subprocess.Popen[bytes]:
    return start_program(DEADLY, broker.home, topic, out, stdout=subprocess.DEVNULL)


def test_a_message_that_kills_its_consumers_is_a_dead_letter_in_the_end(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Its neighbours are delivered; the last consumer ends by SIGTERM."""
    out = tmp_path / "seen"
    send(broker, topic, range(40), queue_id=0)
    for _ in range(3):
        assert consumer_process(broker, topic, out).wait(timeout=PATIENCE_S) == -signal.SIGKILL
    last = consumer_process(broker, topic, out)
    try:
        dead = dead_letters(broker, "g-" + topic, 1)
        assert dead.keys() == {13}
        wanted = set(range(40)) - {13}
        poll_until(lambda: set(map(int, out.read_text().split())) == wanted, "the others came")
    finally:
        last.send_signal(signal.SIGTERM)
        assert last.wait(timeout=PATIENCE_S) == 0
    assert left_over(broker, "g-" + topic, topic) == 0


def test_queues_beyond_the_progress_table_fail_and_come_again_as_others_do(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only two of its twelve queues have words in the arena: the others are told in requests."""
    monkeypatch.setattr(limits, "PROGRESS_MAX", 2)
    send(broker, topic, range(400))
    group = "g-" + topic
    seen = Seen(lambda m: ConsumeResult.FAILURE if int(bytes(m.body)) % 10 == 0 else None)
    with PushConsumer(
        group, [topic], seen, home=broker.home, consume_from=FIRST, max_attempts=2
    ) as consumer:
        seen.wait_for(440)
        assert len(consumer.assignment()) == 4 + 8
        assert sorted(dead_letters(broker, group, 40)) == list(range(0, 400, 10))
    assert Counter(seen.bodies) == {n: 2 if n % 10 == 0 else 1 for n in range(400)}
    assert consumer.lost_acks == 0
    assert left_over(broker, group, topic) == 0
    assert left_over(broker, group, "%RETRY%" + group) == 0
