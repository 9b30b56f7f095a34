"""A load of messages that are due in a moment, and what the log must hold of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

from gantrymq.clients.producer import Producer
from gantrymq.shm.properties import TIMER_TOPIC
from tests.support.stores import Stored
from tests.support.watchdog import PATIENCE_S

TOPIC = "soon"


class SoonLoad:
    """Sends a few messages now and then; each body once."""

    def __init__(self, home: Path) -> None:
        self._producer = Producer(home, timeout=PATIENCE_S)
        self.bodies: list[bytes] = []

    def round(self) -> None:
        """Some that wait for a moment."""
        for number in range(8):
            self.bodies.append(b"soon-%d" % len(self.bodies))
            self._producer.send_oneway(TOPIC, self.bodies[-1], delay=0.005 * (1 + number % 5))
        self._producer.flush(PATIENCE_S)

    def delivered(self, stored: list[Stored]) -> Counter[bytes]:
        """How often the log has each body in its topic; a copy names a parked record."""
        parked = {item.position for item in stored if item.record.topic == TIMER_TOPIC}
        copies = [item.record for item in stored if item.record.topic == TOPIC]
        origins = [record.origin for record in copies]
        assert len(set(origins)) == len(origins), "one copy of each"
        assert set(origins) <= parked
        return Counter(record.body for record in copies)

    def require_delivered(self, stored: list[Stored]) -> None:
        """Each message exactly once."""
        assert self.delivered(stored) == Counter(self.bodies)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._producer.close()
