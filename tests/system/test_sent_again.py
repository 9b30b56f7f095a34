"""Messages that were received, and dead letters, are sent again; what a time-out means."""

from __future__ import annotations

import inspect
import math
from collections import Counter

import pytest

from gantrymq import PullConsumer
from gantrymq.clients.message import Message, ReceivedMessage
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.temporary import Broker
from tests.support.push import FIRST, PATIENCE_S, Seen, send
from tests.support.trials import mends

ATTEMPTS = 2


@pytest.fixture(name="broker", scope="module")
def fast_levels(retrying_broker: Broker) -> Broker:
    return retrying_broker


def received(broker: Broker, topic: str) -> ReceivedMessage:
    with PullConsumer(f"look-{topic}", [topic], home=broker.home, consume_from=FIRST) as consumer:
        batch = consumer.poll(timeout=PATIENCE_S)
        assert len(batch)
        return batch[len(batch) - 1]


@mends("A12.1", "S170")
def test_a_dead_letter_tells_its_attempts_and_can_be_sent_again(broker: Broker, topic: str) -> None:
    """As a message, or by its parts: what the broker has added stays behind."""
    group = f"g-{topic}"

    def answer(_message: Message) -> None:
        raise ValueError("no")

    send(broker, topic, range(1), tag="paid", properties={"region": "eu"})
    seen = Seen(answer)
    with PushConsumer(
        group, [topic], seen, home=broker.home, consume_from=FIRST, max_attempts=ATTEMPTS
    ):
        letter = received(broker, f"%DLQ%{group}")
    assert letter.delivery_attempt == ATTEMPTS
    with PullConsumer(
        f"again-{group}", [f"%DLQ%{group}"], home=broker.home, consume_from=FIRST
    ) as consumer:
        assert consumer.poll(timeout=PATIENCE_S).delivery_attempts.tolist() == [ATTEMPTS]
    assert letter.properties["RETRY_TOPIC"] == topic
    with Producer(broker.home) as producer:
        producer.send(topic, letter.body, tag=letter.tag, properties=letter.properties)
        again = received(broker, topic)
        assert again.properties == {"region": "eu"}
        assert (again.tag, again.body) == ("paid", b"0")
        sent = [*producer.send_batch([letter]), producer.send(letter)]
        assert [receipt.message_queue.topic for receipt in sent] == [topic, topic]
        producer.send_oneway(letter)
        producer.flush()
    queues = [topic, f"%DLQ%{group}"]
    found: list[str] = []
    with PullConsumer(f"all-{group}", queues, home=broker.home, consume_from=FIRST) as consumer:
        while len(found) < 6:
            found += [message.topic for message in consumer.poll(timeout=PATIENCE_S)]
    assert Counter(found) == {topic: 5, f"%DLQ%{group}": 1}


@mends("A12.3")
def test_a_received_message_with_a_group_can_be_sent_again(broker: Broker, topic: str) -> None:
    """It goes to its group's queue; one without a group to any."""
    with Producer(broker.home) as producer:
        producer.send(topic, b"x", message_group="42", keys=["k"], properties={"a": "b"})
        message = received(broker, topic)
        assert message.message_group == "42"
        receipts = [producer.send(message), producer.send_async(message).result(PATIENCE_S)]
        receipts += producer.send_batch([message, message])
        producer.send_oneway(message)
        producer.flush()
        assert {receipt.message_queue.queue_id for receipt in receipts} == {message.queue_id}
    again = received(broker, topic)
    assert (again.message_group, again.keys, again.properties) == ("42", ("k",), {"a": "b"})
    assert again.message_id != message.message_id


@mends("A12.12")
def test_no_timeout_is_the_clients_own_and_infinity_is_for_ever(broker: Broker, topic: str) -> None:
    """Of producers and pull consumers alike."""
    with (
        Producer(broker.home, timeout=None) as producer,
        PullConsumer(f"g-{topic}", [topic], home=broker.home, timeout=0.05) as consumer,
    ):
        assert len(consumer.poll()) == len(consumer.poll(timeout=None)) == 0
        producer.send(topic, b"x", timeout=math.inf)
        producer.flush(math.inf)
        assert len(consumer.poll(timeout=math.inf)) == 1
    for kind in (Producer, PullConsumer):
        assert inspect.signature(kind).parameters["timeout"].default is None
        assert "math.inf" in (inspect.getdoc(kind) or "") + (inspect.getdoc(kind.__init__) or "")
