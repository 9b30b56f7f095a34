"""Load on a broker: one producer that sends in every way, and remembers what it was told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from gantrymq.clients.message import Message, SendReceipt
from gantrymq.clients.producer import Producer
from gantrymq.clients.receipts import ReceiptFuture
from gantrymq.shm import wire
from tests.support.stores import Stored, require_once, require_true, require_whole
from tests.support.watchdog import PATIENCE_S, poll_until

WRITTEN, DURABLE = "orders", "payments"
#: Messages of one way in a round.
_FEW = 8
#: The year 2199.
_FAR_MS = 7_230_000_000_000
#: Receipts that may be open at one time.
_OPEN_MAX = 200


class Load:
    """Rounds of oneway, async, sync and batch sends; every body is sent once.

    With `parks`, also of messages that are due in a time without end.
    """

    def __init__(self, home: Path, name: str = "load", *, parks: bool = False) -> None:
        self._parks = parks
        self.producer = Producer(home, timeout=PATIENCE_S)
        self.name = name
        self.bodies: list[bytes] = []
        self.batches: list[list[bytes]] = []
        self.receipts: list[tuple[SendReceipt, bytes]] = []
        self._open: list[tuple[ReceiptFuture, bytes]] = []
        session = self.producer._link.session
        session.request(wire.CreateTopic(DURABLE, 2, "durable"))

    def body(self) -> bytes:
        """A body that no other message has."""
        number = len(self.bodies)
        self.bodies.append(f"{self.name}-{number}-".encode().ljust(20 + 37 * (number % 9), b"."))
        return self.bodies[-1]

    def round(self) -> None:
        """A few messages in every way. Raises what the producer raises."""
        producer = self.producer
        for _ in range(_FEW):
            producer.send_oneway(WRITTEN, self.body(), tag="oneway")
        for topic in (WRITTEN, DURABLE):
            for _ in range(_FEW):
                body = self.body()
                self._open.append((producer.send_async(topic, body, tag="async"), body))
            self._send_batch(topic)
        for topic in (WRITTEN, DURABLE):
            body = self.body()
            receipt = producer.send(topic, body, keys=["k"], properties={"way": "sync"})
            self.receipts.append((receipt, body))
        if self._parks:
            self._park()
        if len(self._open) > _OPEN_MAX:
            self._collect()

    def _park(self) -> None:
        """Messages for later, by levels and times, natively and by Python's way."""
        producer = self.producer
        for number in range(_FEW):
            producer.send_oneway(WRITTEN, self.body(), tag="oneway", delay=86_400.5 + number)
            body = self.body()
            later = producer.send_async(DURABLE, body, tag="async", delivery_timestamp=_FAR_MS)
            self._open.append((later, body))
        for topic in (WRITTEN, DURABLE):
            body = self.body()
            receipt = producer.send(topic, body, keys=["k"], delay_level=17 + len(self.bodies) % 3)
            self.receipts.append((receipt, body))

    def _send_batch(self, topic: str) -> None:
        batch = [self.body() for _ in range(_FEW)]
        self.batches.append(batch)
        receipts = self.producer.send_batch([Message(topic, body) for body in batch])
        self.receipts += zip(receipts, batch, strict=True)

    def _collect(self) -> None:
        self.receipts += [(future.result(PATIENCE_S), body) for future, body in self._open]
        self._open.clear()

    def run_until(self, condition: Callable[[], bool], what: str) -> None:
        """Go on until the condition holds; it must within some thousand rounds."""
        for _ in range(20_000):
            self.round()
            if condition():
                return
        raise AssertionError(f"20,000 rounds, and still not: {what}")

    def finish(self) -> None:
        """Wait for every receipt and for the log."""
        self.producer.flush(PATIENCE_S)
        self._collect()

    def require_kept(self, everything: list[Stored]) -> None:
        """All that was sent is there once, every receipt is true, batches are whole."""
        ours = self.producer._link.identity[0]
        records = [item for item in everything if item.producer == ours]
        require_once(self.bodies, records)
        require_true(self.receipts, records)
        require_whole(self.batches, everything)

    def close(self) -> None:
        """End the session."""
        self.producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.producer._link.end()


class BackgroundLoad:
    """A load in a thread of its own; an error of it is raised by `stop`."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=load.name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self.load.round()
        except BaseException as error:
            self._error = error

    @property
    def count(self) -> int:
        """Messages handed over so far; raises the load's error."""
        if self._error is not None:
            raise self._error
        return len(self.load.bodies)

    def wait_for(self, goal: int) -> None:
        """Until so many messages are handed over."""
        poll_until(lambda: self.count >= goal, f"{goal} messages are handed over")

    def stop(self) -> None:
        """End after this round. Raises what a send raised."""
        self._over.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive(), "the load hangs"
        if self._error is not None:
            raise self._error
