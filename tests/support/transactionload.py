"""A load of transactions, committed and rolled back, and what the log must hold of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.transactions.resolution import TransactionResolution
from gantrymq.shm.properties import HALF_TOPIC, OP_TOPIC
from tests.support.stores import Stored
from tests.support.watchdog import PATIENCE_S

TOPIC = "settled"


class TransactionLoad:
    """Sends a few messages in transactions now and then; each body once."""

    def __init__(self, home: Path) -> None:
        self._producer = Producer(
            home, timeout=PATIENCE_S, producer_group="payers",
            transaction_checker=lambda message: TransactionResolution.UNKNOWN,
        )  # fmt: skip
        self.committed: list[bytes] = []
        self._count = 0

    def round(self) -> None:
        """Some transactions of one and two messages; every third is rolled back."""
        for number in range(6):
            transaction = self._producer.begin_transaction()
            bodies = []
            for _ in range(1 + number % 2):
                self._count += 1
                bodies.append(b"tx-%d" % self._count)
                self._producer.send(Message(TOPIC, bodies[-1]), transaction)
            if number % 3 == 2:
                transaction.rollback()
            else:
                transaction.commit()
                self.committed += bodies

    def require_decided(self, stored: list[Stored]) -> None:
        """Each committed message exactly once, of its half; each half named by op records once."""
        halves = {item.position for item in stored if item.record.topic == HALF_TOPIC}
        copies = [item.record for item in stored if item.record.topic == TOPIC]
        origins = [record.prepared_transaction_offset for record in copies]
        assert len(set(origins)) == len(origins), "one copy of each"
        assert set(origins) <= halves
        assert Counter(record.body for record in copies) == Counter(self.committed)
        named = [
            int(word)
            for item in stored
            if item.record.topic == OP_TOPIC
            for word in item.record.body.decode().split(",")
            if word
        ]
        assert sorted(named) == list(range(len(halves)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._producer.close()
