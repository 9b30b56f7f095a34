"""A push consumer: a listener in threads, failures that come again, and a dead letter.

Shows: what a listener answers; `retry_after` instead of RocketMQ's ladder of delays; a message that
nobody can book, which ends in the group's dead-letter queue with its reason. Yours runs for itself
(`gantrymq serve`) and ends with `consumer.run()` at SIGTERM.
"""

from __future__ import annotations

import logging
import threading

from gantrymq import (
    Broker,
    ConsumeFrom,
    ConsumeResult,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
)

#: Says what listeners raise, with tracebacks, and dead letters; here the letter is shown below.
logging.getLogger("gantrymq.listener").setLevel(logging.CRITICAL)
booked: list[str] = []
all_booked = threading.Event()


def on_order(message: Message) -> ConsumeResult | None:
    """Book an order; None is SUCCESS, an exception is FAILURE."""
    order = bytes(message.body).decode()
    if order == "nonsense":
        raise ValueError("no order at all")
    if order == "busy" and message.delivery_attempt == 1:
        return message.retry_after(0.1)  # the bank said: later
    booked.append(f"{order} at attempt {message.delivery_attempt}")
    if len(booked) == 3:
        all_booked.set()
    return ConsumeResult.SUCCESS


with Broker.temporary(message_delay_level="1s 1s 1s") as broker:
    with Producer(broker.home) as producer:
        for order in ("tea", "busy", "nonsense", "cake"):
            producer.send("orders", order.encode())
    with PushConsumer(
        "billing",
        ["orders"],
        on_order,
        home=broker.home,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        concurrency=2,
        max_attempts=2,
    ):
        all_booked.wait(timeout=60)
        with PullConsumer(
            "undertaker", ["%DLQ%billing"], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as dead:
            letter = dead.poll(timeout=60)[0]
for line in sorted(booked):
    print(line)
print("dead:", bytes(letter.body).decode(), "-", letter.properties["DLQ_REASON"])
