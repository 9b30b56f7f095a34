"""Orders: one part of a program sends, another reads what is tagged `paid`, in order per customer.

Shows: `send` with tag, keys and properties; one queue for all that belongs together; a consumer
that commits by itself what its loop has passed. Yours runs for itself
(`gantrymq serve`), and clients find it by GANTRYMQ_HOME.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict

from gantrymq import Broker, ConsumeFrom, Producer, PullConsumer

CUSTOMERS = ("ada", "bob", "eve")
QUEUES = 4  # of a topic that is created by its first message


def queue_of(customer: str) -> int:
    """The same customer, the same queue: so their orders stay in order."""
    return zlib.crc32(customer.encode()) % QUEUES


def send_orders(producer: Producer, count: int) -> int:
    """Send orders; returns how many of them are paid."""
    for number in range(count):
        customer = CUSTOMERS[number % len(CUSTOMERS)]
        producer.send(
            "orders",
            json.dumps({"order": number, "customer": customer}).encode(),
            tag="paid" if number % 2 else "open",
            keys=[str(number)],
            properties={"customer": customer},
            queue_id=queue_of(customer),
        )
    return count // 2


def book(consumer: PullConsumer, count: int) -> dict[str, list[int]]:
    """Take so many orders; what the loop has passed is committed."""
    booked: dict[str, list[int]] = defaultdict(list)
    for number, message in enumerate(consumer, start=1):
        order = json.loads(bytes(message.body))
        booked[order["customer"]].append(order["order"])
        if number == count:
            break
    return booked


with Broker.temporary() as broker, Producer(broker.home) as producer:
    paid = send_orders(producer, 60)
    with PullConsumer(
        "billing", {"orders": "paid"}, home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        booked = book(consumer, paid)
for customer, orders in sorted(booked.items()):
    print(customer, *orders)
