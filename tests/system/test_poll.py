"""The poll's kernel and what it leaves to Python give the same: everything once and in order."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gantrymq.clients.assigned import Assigned
from gantrymq.clients.batch import MessageBatch
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.producer import Producer
from gantrymq.shm import layout
from gantrymq.shm.kernels import poll
from gantrymq.temporary import Broker
from tests.support.small_stores import small_broker
from tests.support.tree import ROOT
from tests.support.watchdog import poll_until

FIRST = ConsumeFrom.FIRST_OFFSET
PATIENCE_S = 30.0
MESSAGES = 1200

_CONSUMER = """
import sys
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.shm.jit import JIT_OFF

assert JIT_OFF
home, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
first = ConsumeFrom.FIRST_OFFSET
with PullConsumer("g-" + topic, [topic], home=home, consume_from=first) as consumer:
    found = []
    while len(found) < count:
        batch = consumer.poll(100, timeout=30.0)
        assert len(batch), found
        found += [int(bytes(body)) for body in batch.bodies]
    assert len(consumer.poll(timeout=0.05)) == 0
    consumer.commit()
print(*sorted(found))
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Segments of 64 KiB, and 50 units in a queue file."""
    with small_broker() as running:
        yield running


def fill(broker: Broker, topic: str, bodies: list[bytes]) -> None:
    with Producer(home=broker.home) as producer:
        for number, body in enumerate(bodies):
            producer.send_oneway(topic, body, tag=("a", "b", "c")[number % 3])
        producer.flush(timeout=PATIENCE_S)


def shown(consumer: PullConsumer, count: int) -> None:
    """Wait until the queues show so many messages."""
    session = consumer._live().session

    def there() -> bool:
        places = [session.board.queue_at(a.number) for a in assigned(consumer)]
        words = [session.board.word(at + layout.QUEUE_MAX_OFFSET) for at in places]
        return sum(words) >= count

    poll_until(there, "all messages are shown")


def assigned(consumer: PullConsumer) -> list[Assigned]:
    return list(consumer._member.assigned.values())


def by_queue(batches: list[MessageBatch]) -> dict[MessageQueue, list[tuple[int, bytes]]]:
    found: dict[MessageQueue, list[tuple[int, bytes]]] = {}
    for batch in batches:
        rows = zip(batch.queues, batch.queue_offsets.tolist(), batch.bodies, strict=True)
        for queue, offset, body in rows:
            found.setdefault(queue, []).append((offset, bytes(body)))
    return found


@pytest.mark.parametrize("tags", ["*", "a || c"])
def test_over_files_and_segments_all_come_once_and_in_order(
    broker: Broker, unique_name: str, seed: int, tags: str
) -> None:
    dice = random.Random(seed)
    bodies = [b"%06d" % n * dice.choice((1, 5, 60)) for n in range(MESSAGES)]
    fill(broker, unique_name, bodies)
    wanted = [b for n, b in enumerate(bodies) if tags == "*" or n % 3 != 1]
    with PullConsumer(
        "g-" + unique_name, {unique_name: tags}, home=broker.home, consume_from=FIRST
    ) as consumer:
        batches, count = [], 0
        while count < len(wanted):
            most = dice.choice((1, 2, 7, 40, 256, 257, 5000))
            batch = consumer.poll(most, timeout=PATIENCE_S)
            assert 0 < len(batch) <= most
            batches.append(batch)
            count += len(batch)
        shown(consumer, MESSAGES)
        assert len(consumer.poll(timeout=0)) == 0
        for row in assigned(consumer):
            words = consumer._live().session.board.queue(row.number)
            assert row.position == words["max_offset"]
            slot = layout.PROGRESS.unpack(consumer._live().session.arena, row.words[poll.SLOT])
            assert (slot["lease"], slot["queue"]) == (row.lease, row.number)
            assert slot["committed"] == slot["started"] == row.position
    found = by_queue(batches)
    assert sorted(body for items in found.values() for _, body in items) == sorted(wanted)
    for items in found.values():
        offsets = [offset for offset, _ in items]
        assert offsets == sorted(set(offsets))


def test_one_poll_takes_all_that_is_there_up_to_its_limit(broker: Broker, unique_name: str) -> None:
    fill(broker, unique_name, [b"%d" % n for n in range(1000)])
    with PullConsumer(
        "g-" + unique_name, [unique_name], home=broker.home, consume_from=FIRST
    ) as consumer:
        shown(consumer, 1000)
        assert [len(consumer.poll(most, timeout=0)) for most in (1, 256, 300, 5000, 10)] == [
            1, 256, 300, 443, 0,
        ]  # fmt: skip


def test_queues_have_shares_of_a_poll(broker: Broker, unique_name: str) -> None:
    fill(broker, unique_name, [b"%d" % n for n in range(400)])
    with PullConsumer(
        "g-" + unique_name, [unique_name], home=broker.home, consume_from=FIRST
    ) as consumer:
        shown(consumer, 400)
        consumer.poll(40, timeout=0)
        batch = consumer.poll(40, timeout=0)
        counts = [batch.queues.count(queue) for queue in consumer.assignment()]
        assert counts == [10, 10, 10, 10]


def test_large_messages_among_small_ones(unique_name: str) -> None:
    sizes = [10, 300_000, 10, 1 << 20, 200_000, 200_000, 4_000_000, 5]
    with Broker.temporary() as broker:
        bodies = [bytes([n]) * size for n, size in enumerate(sizes)]
        fill(broker, unique_name, bodies)
        with PullConsumer(
            "g-" + unique_name, [unique_name], home=broker.home, consume_from=FIRST
        ) as consumer:
            batches: list[MessageBatch] = []
            while sum(map(len, batches)) < len(sizes):
                batches.append(consumer.poll(timeout=PATIENCE_S))
                assert len(batches[-1])
            found = by_queue(batches)
            assert sorted(b for items in found.values() for _, b in items) == sorted(bodies)


def test_what_a_poll_returned_is_passed_by_the_next_one_in_words(
    broker: Broker, unique_name: str
) -> None:
    fill(broker, unique_name, [b"x"])
    with PullConsumer(
        "g-" + unique_name, [unique_name], home=broker.home, consume_from=FIRST
    ) as consumer:
        (message,) = consumer.poll(timeout=PATIENCE_S)
        (row,) = [a for a in assigned(consumer) if a.queue.queue_id == message.queue_id]
        arena, at = consumer._live().session.arena, row.words[poll.SLOT]
        words = layout.PROGRESS.unpack(arena, at)
        assert (words["committed"], words["started"]) == (0, 1)
        consumer.poll(timeout=0)
        words = layout.PROGRESS.unpack(arena, at)
        assert (words["committed"], words["started"]) == (1, 1)


def test_a_consumer_works_with_the_jit_off(broker: Broker, unique_name: str) -> None:
    fill(broker, unique_name, [b"%d" % n for n in range(150)])
    done = subprocess.run(
        [sys.executable, "-c", _CONSUMER, str(broker.home), unique_name, "150"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(map(int, done.stdout.split())) == list(range(150))
