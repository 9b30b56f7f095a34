"""The operations table of a broker's own log, and of a real RocketMQ's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gantrymq import Broker, ConsumeFrom, Producer, PullConsumer, PushConsumer
from gantrymq.shm.properties import DLQ_PREFIX, HALF_TOPIC, OP_TOPIC
from gantrymq.spark import operations
from tests.support.golden import GoldenStore, dump_lines
from tests.support.watchdog import poll_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gantrymq.clients.message import Message

pytestmark = pytest.mark.filterwarnings("ignore")  # Spark's own, about versions and sockets
ORDERS, PAYMENTS, GROUP = "ops-orders", "ops-payments", "ops-billing"
PATIENCE_S = 60.0


class Billing:
    """A listener: each message fails once, one always."""

    def __init__(self) -> None:
        self.done: set[bytes] = set()

    def __call__(self, message: Message) -> None:
        """Take it, or fail."""
        message.retry_after(0.05)
        if bytes(message.body) == b"bad" or message.delivery_attempt == 1:
            raise ValueError("no")
        self.done.add(bytes(message.body))


@pytest.fixture(scope="module")
def store() -> Iterator[Path]:
    """Of a broker that runs: one delayed and one recalled, four retries, one dead letter, one open
    transaction, one committed and one rolled back.
    """
    billing = Billing()
    first = ConsumeFrom.FIRST_OFFSET
    with Broker.temporary() as broker, Producer(broker.home, producer_group="bank") as producer:
        pushed = PushConsumer(
            GROUP, [ORDERS], billing, home=broker.home, consume_from=first, max_attempts=3
        )
        with pushed:
            producer.send(ORDERS, b"bad")
            producer.send(ORDERS, b"shaky")
            producer.send(ORDERS, b"later", delay=0.3)
            recalled = producer.send(ORDERS, b"recalled", delay=600.0)
            producer.recall_message(ORDERS, recalled.recall_handle or "")
            with producer.transaction() as transaction:
                producer.send(PAYMENTS, b"paid", transaction=transaction)
            refused = producer.begin_transaction()
            producer.send(PAYMENTS, b"refused", transaction=refused)
            refused.rollback()
            producer.send(PAYMENTS, b"open", transaction=producer.begin_transaction())
            with PullConsumer(
                "undertaker", [f"{DLQ_PREFIX}{GROUP}"], home=broker.home, consume_from=first
            ) as consumer:
                assert len(consumer.poll(timeout=PATIENCE_S)) == 1
            poll_until(lambda: billing.done == {b"shaky", b"later"}, "what came again")
        yield Path(broker.home) / "store"


def totals(rows: list[Any]) -> dict[str, dict[str, int]]:
    """Sums over the minutes."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        topic = found.setdefault(row["topic"], {})
        for name, value in row.asDict().items():
            if isinstance(value, int):
                topic[name] = topic.get(name, 0) + value
    return found


def test_each_topic_has_what_happened_to_it(spark: SparkSession, store: Path) -> None:
    rows = operations(spark, str(store)).collect()
    none = {"messages": 0, "bytes": 0, "delayed": 0, "retries": 0, "dead_letters": 0,
            "transactional": 0, "in_doubt": 0, "given_up": 0}  # fmt: skip
    assert totals(rows) == {
        ORDERS: none | {"messages": 3, "bytes": 13, "delayed": 2, "retries": 4, "dead_letters": 1},
        PAYMENTS: none | {"messages": 1, "bytes": 4, "transactional": 3, "in_doubt": 1},
    }
    assert max(row["max_delay_s"] or 0 for row in rows if row["topic"] == ORDERS) >= 0.3
    assert all(row["minute"].second == 0 for row in rows)
    assert all(row["per_second"] == row["messages"] / 60 for row in rows)


def test_halves_of_a_real_rocketmq(
    spark: SparkSession, golden: Callable[[str], GoldenStore]
) -> None:
    lines = dump_lines("tx", "record")
    named = {
        (line["queueId"], int(word))
        for line in lines
        if line["topic"] == OP_TOPIC
        for word in bytes.fromhex(line["bodyHex"]).decode().split(",")
        if word
    }
    halves = [line for line in lines if line["topic"] == HALF_TOPIC]
    open_ones = [one for one in halves if (one["queueId"], one["queueOffset"]) not in named]
    found = totals(operations(spark, str(golden("tx").store)).collect())
    assert sum(topic["transactional"] for topic in found.values()) == len(halves) > 0
    assert sum(topic["in_doubt"] for topic in found.values()) == len(open_ones)
