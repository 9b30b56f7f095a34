"""What was taken is delivered, also after a start with a smaller `max_message_size`."""

from __future__ import annotations

import json

import pytest

from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.shm.errors import MessageIllegal
from gantrymq.temporary import Broker
from tests.support.push import FIRST, PATIENCE_S, Seen
from tests.support.watchdog import poll_until

LARGE = b"x" * 500_000  # an agent's ring for messages of 4 KiB would not take it
FILES = {"mapped_file_size_commit_log": 1 << 22, "message_delay_level": "1s 1s 1s"}


def test_copies_are_made_of_messages_of_any_earlier_size() -> None:
    """Delayed ones, those of transactions, retries (LW-16): the setting is for what is sent."""
    seen = Seen(fail_first)
    with (
        Broker.temporary(**FILES) as broker,
        Producer(broker.home, producer_group="pay", timeout=PATIENCE_S) as producer,
    ):
        tx = producer.begin_transaction()
        producer.send("orders", LARGE + b"paid", transaction=tx)
        producer.send("orders", LARGE + b"later", delay_level=1)
        producer.send("orders", LARGE + b"plain")
        broker.stop()
        given = broker.home / "given.json"
        given.write_text(json.dumps(json.loads(given.read_text()) | {"max_message_size": 4096}))
        broker.start()
        tx.commit()
        with pytest.raises(MessageIllegal, match="max_message_size"):
            producer.send("orders", LARGE)
        with PushConsumer("work", ["orders"], seen, home=broker.home, consume_from=FIRST):
            poll_until(lambda: len(seen.messages) == 6, "all came twice", PATIENCE_S)
    came = [(one.delivery_attempt, bytes(one.body)[len(LARGE) :]) for one in seen.messages]
    assert sorted(came) == [(n, body) for n in (1, 2) for body in (b"later", b"paid", b"plain")]


def fail_first(message: Message) -> ConsumeResult:
    """Each message fails once."""
    return ConsumeResult.FAILURE if message.delivery_attempt == 1 else ConsumeResult.SUCCESS
