"""What clients do with delayed messages: park them far ahead, or for a schedule that comes soon."""

from __future__ import annotations

import time
from array import array
from typing import Final

from bench.bodies import due_of, make_bodies, timed_body
from bench.crew import BenchError, Outcome, Phase
from bench.our_jobs import TAG
from bench.ours import TOPIC
from bench.sizes import BODIES
from gantrymq import ConsumeFrom, Producer, PullConsumer

SILENT_S: Final = 60.0
_POLL_MESSAGES: Final = 16_384
_MS: Final = 1_000_000
#: Nobody waits for these; they are spread over so many milliseconds.
FAR_MS: Final = 24 * 3_600_000
SPREAD_MS: Final = 6 * 3_600_000
_STEP_MS: Final = 7_919
"""Prime to the spread, so that neighbours in the log are due in different minutes."""
LEVEL_1_MS: Final = 1_000


class PlainSends:
    """`send_oneway` until all is in the log: what parking is compared with."""

    def __init__(self, home: str) -> None:
        self._producer = Producer(home=home)
        self._bodies = make_bodies()

    def run(self, phase: Phase) -> Outcome:
        send = self._producer.send_oneway
        started = time.monotonic_ns()
        for _ in range(phase.count // BODIES):
            for body in self._bodies:
                send(TOPIC, body, tag=TAG)
        self._producer.flush(SILENT_S)
        return Outcome(started, time.monotonic_ns(), phase.count)

    def close(self) -> None:
        self._producer.close()


class FarParks(PlainSends):
    """The same with delivery times from a day on, in no order."""

    def run(self, phase: Phase) -> Outcome:
        send = self._producer.send_oneway
        first, step = time.time_ns() // _MS + FAR_MS, 0
        started = time.monotonic_ns()
        for _ in range(phase.count // BODIES):
            for body in self._bodies:
                step = (step + _STEP_MS) % SPREAD_MS
                send(TOPIC, body, tag=TAG, delivery_timestamp=first + step)
        self._producer.flush(SILENT_S)
        return Outcome(started, time.monotonic_ns(), phase.count)


class ScheduledParks(PlainSends):
    """Parks what is due from `lead_s` from now on, so many per second; 0: all at the same time.

    Bodies begin with the wall-clock time (ns) at which they are due.
    """

    def __init__(self, home: str, lead_s: float) -> None:
        super().__init__(home)
        self._lead_ms = int(lead_s * 1000)

    def run(self, phase: Phase) -> Outcome:
        send = self._producer.send_oneway
        first_ms = time.time_ns() // _MS + self._lead_ms
        started, checksum = time.monotonic_ns(), 0
        for index in range(phase.count):
            due_ms = first_ms + (index * 1000 // phase.per_second if phase.per_second else 0)
            send(TOPIC, timed_body(due_ms * _MS), tag=TAG, delivery_timestamp=due_ms)
            checksum += due_ms * _MS
        self._producer.flush(SILENT_S)
        if time.time_ns() // _MS >= first_ms:
            raise BenchError("parking took longer than the lead: give it more")
        return Outcome(started, time.monotonic_ns(), phase.count, checksum)


class LevelSends(PlainSends):
    """Sends at level 1 on schedule; bodies begin with the time at which they are due."""

    def run(self, phase: Phase) -> Outcome:
        send = self._producer.send_oneway
        started, checksum = time.monotonic_ns(), 0
        next_ns = time.monotonic_ns()
        for _ in range(phase.count):
            left_ns = next_ns - time.monotonic_ns()
            if left_ns > 0:
                time.sleep(left_ns / 1e9)
            next_ns += 1_000_000_000 // phase.per_second
            due_ns = (time.time_ns() // _MS + LEVEL_1_MS) * _MS
            send(TOPIC, timed_body(due_ns), tag=TAG, delay_level=1)
            checksum += due_ns
        self._producer.flush(SILENT_S)
        return Outcome(started, time.monotonic_ns(), phase.count, checksum)


class DuePolls:
    """Polls what has come; lateness by the wall clock, and how many came before their time."""

    def __init__(self, home: str) -> None:
        self._consumer = PullConsumer(
            "due", [TOPIC], home=home, consume_from=ConsumeFrom.FIRST_OFFSET
        )

    def run(self, phase: Phase) -> Outcome:
        latencies = array("q")
        checksum = early = 0
        started = heard = time.monotonic_ns()
        while len(latencies) < phase.count:
            batch = self._consumer.poll(max_messages=_POLL_MESSAGES, timeout=1.0)
            now_ns = time.time_ns()
            for body in batch.bodies:
                due_ns = due_of(body)
                early += now_ns < due_ns
                latencies.append(now_ns - due_ns)
                checksum += due_ns
            if len(batch):
                heard = time.monotonic_ns()
            elif heard + SILENT_S * 1e9 < time.monotonic_ns():
                raise BenchError(f"nothing came for {SILENT_S:.0f} s, {len(latencies)} before")
        marks = array("q", [early, 0])
        ended = time.monotonic_ns()
        return Outcome(started, ended, len(latencies), checksum, latencies, marks=marks)

    def close(self) -> None:
        self._consumer.close()
