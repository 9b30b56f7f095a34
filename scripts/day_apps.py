"""Applications of the operator's day: `orders` sends, `billing` consumes. Both note what they know.

`orders` reads from standard input how many to send next, and answers with a line of JSON when all
of them are acknowledged. `billing` runs until SIGTERM. Neither is restarted during the day but by
the operator: that they go on after each fault is part of what is shown.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO

from gantrymq import BrokerGone, ConsumeFrom, DiskFull, Message, Producer, PullConsumer, Rejected
from gantrymq.cli.leave import complain

TOPIC, GROUP = "orders", "billing"
#: A pace at which a fault meets orders that are under way.
ORDERS_PER_S = 500
UNANSWERED_MAX = 100
#: Longer than any fault of the day lasts.
PATIENCE_S = 120.0
AGAIN_S = 0.1


class Orders:
    """Sends numbered orders; the file `notes` has a line for each that is acknowledged."""

    def __init__(self, producer: Producer, notes: IO[bytes]) -> None:
        self._producer = producer
        self._notes = notes
        self._waiting: deque[tuple[Message, object]] = deque()
        self.acknowledged = 0
        self.refused = 0

    def send(self, count: int) -> None:
        """The next `count` orders; returns when each is acknowledged."""
        first = self.acknowledged + 1
        start = time.monotonic()
        for done, number in enumerate(range(first, first + count)):
            time.sleep(max(0.0, start + done / ORDERS_PER_S - time.monotonic()))
            order = Message(TOPIC, b"order %07d" % number, tag="new", keys=(str(number),))
            self._waiting.append((order, self._producer.send_async(order, timeout=PATIENCE_S)))
            while len(self._waiting) > UNANSWERED_MAX:
                self._settle()
        while self._waiting:
            self._settle()

    def _settle(self) -> None:
        """The oldest that is unanswered; one that was refused is not stored, and sent again."""
        order, future = self._waiting.popleft()
        while True:
            try:
                future.result(PATIENCE_S)  # type: ignore[attr-defined] # a future
                break
            except (DiskFull, Rejected):
                self.refused += 1
                time.sleep(AGAIN_S)
                future = self._producer.send_async(order, timeout=PATIENCE_S)
        self._notes.write(bytes(order.body) + b"\n")
        self.acknowledged += 1


def orders(home: str, notes: str) -> None:
    """Send as many as each line of standard input says."""
    with (
        Path(notes).open("ab", buffering=0) as file,
        Producer(home, timeout=PATIENCE_S) as producer,
    ):
        application = Orders(producer, file)
        for line in sys.stdin:
            application.send(int(line))
            told = {"acknowledged": application.acknowledged, "refused": application.refused}
            print(json.dumps(told), flush=True)
            application.refused = 0


class Billing:
    """Notes each order as it comes (`got`), and when its commit is answered (`committed`)."""

    def __init__(self, consumer: PullConsumer, notes: IO[bytes]) -> None:
        self._consumer = consumer
        self._notes = notes
        self.keeps_running = True
        self._is_open = False

    def run(self) -> None:
        """Until SIGTERM; what is handed out by then is committed."""
        signal.signal(signal.SIGTERM, self._end)
        while self.keeps_running or self._is_open:
            for body in self._next():
                self._note(b"got", body)
                self._is_open = True
            if self._is_open:
                self._commit()

    def _next(self) -> list[bytes]:
        if not self.keeps_running:
            return []
        try:
            return [bytes(body) for body in self._consumer.poll(500, timeout=0.2).bodies]
        except BrokerGone:  # for all of the timeout; the next poll attaches again
            return []

    def _commit(self) -> None:
        try:
            self._consumer.commit()
        except DiskFull:  # still ours: once more with what comes next
            time.sleep(AGAIN_S)
            return
        except BrokerGone:  # nobody knows: what was not committed comes again
            self._note(b"unknown")
        else:
            self._note(b"committed")
        self._is_open = False

    def _note(self, *words: bytes) -> None:
        self._notes.write(b"\t".join([b"%d" % time.monotonic_ns(), *words]) + b"\n")

    def _end(self, *_: object) -> None:
        self.keeps_running = False


def billing(home: str, notes: str) -> None:
    """A member of the group, until SIGTERM."""
    with (
        Path(notes).open("ab", buffering=0) as file,
        PullConsumer(
            GROUP, [TOPIC], home=home, consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit=False
        ) as consumer,
    ):
        print("ready", flush=True)
        Billing(consumer, file).run()


def main(arguments: list[str]) -> int:
    """`orders HOME NOTES` or `billing HOME NOTES`."""
    os.umask(0o077)
    if arguments[:1] not in (["orders"], ["billing"]) or len(arguments) != 3:
        complain("day_apps.py (orders|billing) HOME NOTES")
        return 2
    (orders if arguments[0] == "orders" else billing)(arguments[1], arguments[2])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
