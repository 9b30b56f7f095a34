"""A topic that is deleted and created again, as applications see it (CQ-36, CQ-109, LW-72)."""

from __future__ import annotations

import shutil

import pytest

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.control import look_at
from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.shm import wire
from gantrymq.shm.errors import MessageIllegal
from gantrymq.temporary import Broker
from tests.support.stores import require_sound

PATIENCE_S = 30.0


def request(broker: Broker, frame: wire.Frame) -> None:
    with look_at(broker.home) as control:
        control.request(frame, wire.Frame)


def seen(broker: Broker, group: str, count: int) -> list[bytes]:
    """What a group that begins at the front reads, until there are so many."""
    found: list[bytes] = []
    with PullConsumer(
        group, ["orders"], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        while len(found) < count:
            batch = consumer.poll(timeout=PATIENCE_S)
            assert len(batch), f"{len(found)} of {count} came"
            found += [bytes(body) for body in batch.bodies]
        assert not len(consumer.poll(timeout=0.0))
    return sorted(found)


def test_a_topic_created_again_shows_nothing_of_the_old_one() -> None:
    """Offsets go on, old groups see the new messages, also after restarts and a rebuild."""
    with Broker.temporary() as broker, Producer(broker.home, timeout=PATIENCE_S) as producer:
        request(broker, wire.CreateTopic("orders", 2, "written"))
        before = [producer.send("orders", b"old-%d" % number) for number in range(10)]
        assert len(seen(broker, "early", 10)) == 10
        request(broker, wire.DeleteTopic("orders"))
        with pytest.raises(MessageIllegal, match="does not exist any more"):
            producer.send("orders", b"to nowhere")
        request(broker, wire.CreateTopic("orders", 2, "durable"))
        new = [b"new-%d" % number for number in range(10)]
        after = [producer.send("orders", body) for body in new]
        for queue in range(2):
            offsets = [r.queue_offset for r in before + after if r.message_queue.queue_id == queue]
            assert offsets == list(range(len(offsets)))
        assert seen(broker, "early", 10) == new
        assert seen(broker, "late", 10) == new
        broker.stop()
        broker.start()
        assert seen(broker, "later", 10) == new
        broker.stop()
        shutil.rmtree(store_of(broker.home) / "consumequeue")
        (store_of(broker.home) / "gantry" / "queues.json").unlink()
        broker.start()
        assert seen(broker, "latest", 10) == new
        broker.stop()
        assert len(require_sound(store_of(broker.home))) == 20
