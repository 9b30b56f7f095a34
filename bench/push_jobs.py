"""What push consumers do in their workers: all goes well, or every tenth message never does."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from bench.bodies import make_bodies
from bench.crew import BenchError, Outcome, Phase
from bench.our_jobs import TAG
from bench.ours import TOPIC
from bench.sizes import BODIES
from gantrymq import ConsumeFrom, ConsumeResult, Producer, PushConsumer

if TYPE_CHECKING:
    from gantrymq import Message

_SILENT_S: Final = 120.0
FAILS: Final = "fails"
"""Tag of messages that fail each time."""
ATTEMPTS: Final = 3


def failing_of(phase: Phase) -> int:
    """How many messages of a phase fail: one in `per_second`, none if that is 0."""
    return phase.count // phase.per_second if phase.per_second else 0


class FailingSends:
    """`send_oneway`, some with the tag FAILS."""

    def __init__(self, home: str) -> None:
        self._producer = Producer(home=home)
        self._bodies = make_bodies()

    def run(self, phase: Phase) -> Outcome:
        send, every = self._producer.send_oneway, phase.per_second or phase.count + 1
        started = time.monotonic_ns()
        for index in range(phase.count):
            tag = FAILS if index % every == every - 1 else TAG
            send(TOPIC, self._bodies[index % BODIES], tag=tag)
        return Outcome(started, time.monotonic_ns(), phase.count)

    def close(self) -> None:
        self._producer.close()


class Pushed:
    """A push consumer; a phase ends when each message has succeeded or was tried ATTEMPTS times."""

    def __init__(self, home: str) -> None:
        self._calls = 0
        self._wanted = 0
        self._all = threading.Event()
        self._consumer = PushConsumer(
            "pushed", [TOPIC], self._listen, home=home, concurrency=1, max_attempts=ATTEMPTS,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        )  # fmt: skip
        self._consumer.start()

    def _listen(self, message: Message) -> ConsumeResult | None:
        self._calls += 1
        if self._calls >= self._wanted > 0:
            self._all.set()
        return ConsumeResult.FAILURE if message.tag == FAILS else None

    def run(self, phase: Phase) -> Outcome:
        started = time.monotonic_ns()
        # What comes before this line counts as well: the producer may have begun.
        self._wanted += phase.count + (ATTEMPTS - 1) * failing_of(phase)
        while self._calls < self._wanted:  # the phase before may have set it after its end
            if not self._all.wait(_SILENT_S):
                raise BenchError(f"{self._calls} of {self._wanted} calls of the listener")
            self._all.clear()
        return Outcome(started, time.monotonic_ns(), phase.count)

    def close(self) -> None:
        self._consumer.stop()
