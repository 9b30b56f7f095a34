"""What clients do where many are attached, where the log is long, and where it goes on and on."""

from __future__ import annotations

import itertools
import time
from typing import Final

from bench.bodies import make_bodies, touch_columns
from bench.crew import BenchError, Outcome, Phase, Progress
from bench.our_jobs import TAG
from bench.ours import TOPIC
from bench.sizes import BODIES, KIB_BODY_BYTES
from gantrymq import ConsumeFrom, Producer, PullConsumer

_POLL_MESSAGES: Final = 16_384
_SILENT_S: Final = 60.0
_IDLE_TOPIC: Final = "idle"
_FILL_TOPIC: Final = "fill"
_FILL_BODY_BYTES: Final = 256 << 10
_LAST: Final = b"the last body of a phase"


class ManySends:
    """`send_oneway` from many producers of one process, a cycle of bodies from each in turn."""

    def __init__(self, home: str, busy: int) -> None:
        self._producers = [Producer(home=home) for _ in range(busy)]
        self._bodies = make_bodies()

    def run(self, phase: Phase) -> Outcome:
        turns = itertools.cycle(producer.send_oneway for producer in self._producers)
        started = time.monotonic_ns()
        for _ in range(phase.count // BODIES):
            send = next(turns)
            for body in self._bodies:
                send(TOPIC, body, tag=TAG)
        return Outcome(started, time.monotonic_ns(), phase.count)

    def close(self) -> None:
        for producer in self._producers:
            producer.close()


class Bystanders:
    """Sessions that are attached and do nothing: producers and consumers by halves."""

    def __init__(self, home: str, count: int) -> None:
        self._clients: list[Producer | PullConsumer] = []
        for number in range(count):
            if number % 2:
                group = f"bystander-{number}"
                self._clients.append(PullConsumer(group, [_IDLE_TOPIC], home=home))
            else:
                self._clients.append(Producer(home=home))

    def run(self, phase: Phase) -> Outcome:
        now = time.monotonic_ns()
        return Outcome(now, now, 0)

    def close(self) -> None:
        for client in self._clients:
            client.close()


class LongSends:
    """Fills the log with bodies of 256 KiB, `count` of them; the last one is waited for."""

    def __init__(self, home: str) -> None:
        self._producer = Producer(home=home)
        self._body = bytes(make_bodies(_FILL_BODY_BYTES // BODIES)[0]) * BODIES

    def run(self, phase: Phase) -> Outcome:
        started = time.monotonic_ns()
        for _ in range(phase.count):
            self._producer.send_oneway(_FILL_TOPIC, self._body)
        self._producer.send(_FILL_TOPIC, self._body)
        return Outcome(started, time.monotonic_ns(), phase.count + 1)

    def close(self) -> None:
        self._producer.close()


def fills(size: int) -> int:
    """Return how many bodies of LongSends are `size` bytes."""
    return size // _FILL_BODY_BYTES


class SustainedSends:
    """`send_oneway` of 1 KiB for a time, then a last body, to a topic of one queue."""

    def __init__(self, home: str) -> None:
        self._producer = Producer(home=home)
        self._bodies = make_bodies(KIB_BODY_BYTES)

    def run(self, phase: Phase) -> Outcome:
        send = self._producer.send_oneway
        count = 0
        started = time.monotonic_ns()
        end_ns = started + int(phase.seconds * 1e9)
        while time.monotonic_ns() < end_ns:
            for body in self._bodies:
                send(TOPIC, body, tag=TAG)
            count += BODIES
        send(TOPIC, _LAST, tag=TAG)
        checksum = sum(body[0] + body[-1] for body in self._bodies) * (count // BODIES)
        return Outcome(started, time.monotonic_ns(), count + 1, checksum + _LAST[0] + _LAST[-1])

    def close(self) -> None:
        self._producer.close()


class SustainedPolls:
    """Polls columns and touches every body, up to the last one of the phase."""

    def __init__(self, home: str) -> None:
        self._consumer = PullConsumer(
            "sustained", [TOPIC], home=home, consume_from=ConsumeFrom.FIRST_OFFSET
        )

    def run(self, phase: Phase) -> Outcome:
        count = checksum = 0
        progress = Progress()
        started = heard = time.monotonic_ns()
        while True:
            batch = self._consumer.poll(max_messages=_POLL_MESSAGES, timeout=1.0)
            now = time.monotonic_ns()
            if len(batch):
                checksum += touch_columns(batch.bodies.buffer, batch.bodies.offsets)
                count += len(batch)
                heard = now
                progress.mark(now, count)
                if bytes(batch.bodies[len(batch) - 1]) == _LAST:
                    break
            elif now - heard > _SILENT_S * 1e9:
                raise BenchError(f"nothing came for {_SILENT_S:.0f} s, {count} before")
        self._consumer.commit()
        return Outcome(started, time.monotonic_ns(), count, checksum, marks=progress.marks)

    def close(self) -> None:
        self._consumer.close()


class IdleProducer:
    """Is attached, and sleeps."""

    def __init__(self, home: str) -> None:
        self._producer = Producer(home=home)
        self._producer.send(TOPIC, b"first")

    def run(self, phase: Phase) -> Outcome:
        started = time.monotonic_ns()
        time.sleep(phase.seconds)
        return Outcome(started, time.monotonic_ns(), 0)

    def close(self) -> None:
        self._producer.close()


class IdleConsumer:
    """Waits in `poll` for what does not come."""

    def __init__(self, home: str, group: str) -> None:
        self._consumer = PullConsumer(group, [TOPIC], home=home)

    def run(self, phase: Phase) -> Outcome:
        started = time.monotonic_ns()
        self._consumer.poll(timeout=phase.seconds)
        return Outcome(started, time.monotonic_ns(), 0)

    def close(self) -> None:
        self._consumer.close()
