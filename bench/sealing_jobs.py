"""A load of large messages for a time, and whoever consumes it."""

from __future__ import annotations

import time
from typing import Final

from bench.crew import Outcome, Phase
from bench.sizes import KIB_BODY_BYTES
from gantrymq import ConsumeFrom, Producer, PullConsumer

_BATCH: Final = 100
_POLL_MESSAGES: Final = 4096


class LoadSends:
    """`send_oneway` as fast as it goes for so many seconds of a phase."""

    def __init__(self, home: str, topic: str) -> None:
        self._producer = Producer(home=home)
        self._topic = topic

    def run(self, phase: Phase) -> Outcome:
        send, topic, body = self._producer.send_oneway, self._topic, bytes(KIB_BODY_BYTES)
        started, count = time.monotonic_ns(), 0
        end = started + int(phase.seconds * 1e9)
        while time.monotonic_ns() < end:
            for _ in range(_BATCH):
                send(topic, body)
            count += _BATCH
        return Outcome(started, time.monotonic_ns(), count)

    def close(self) -> None:
        self._producer.close()


class LoadPolls:
    """Polls as long; what is left comes first in the next phase."""

    def __init__(self, home: str, topic: str) -> None:
        self._consumer = PullConsumer(
            "load", [topic], home=home, consume_from=ConsumeFrom.FIRST_OFFSET
        )

    def run(self, phase: Phase) -> Outcome:
        started, count = time.monotonic_ns(), 0
        end = started + int(phase.seconds * 1e9)
        while (left_ns := end - time.monotonic_ns()) > 0:
            count += len(self._consumer.poll(max_messages=_POLL_MESSAGES, timeout=left_ns / 1e9))
        return Outcome(started, time.monotonic_ns(), count)

    def close(self) -> None:
        self._consumer.close()
