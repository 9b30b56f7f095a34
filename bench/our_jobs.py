"""What our clients do in their workers: only the public API, as an application uses it."""

from __future__ import annotations

import time
from array import array
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bench.bodies import due_of, make_bodies, timed_body, touch_columns
from bench.crew import BenchError, Outcome, Phase, Progress
from bench.measure import paced
from bench.ours import TOPIC
from bench.sizes import BATCH_MESSAGES, BODIES, IN_FLIGHT
from gantrymq import ConsumeFrom, Message, Producer, PullConsumer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from gantrymq.clients.message import Durability, SendReceipt
    from gantrymq.clients.receipts import ReceiptFuture

TAG: Final = "x"
_POLL_MESSAGES: Final = 16_384
_POLL_S: Final = 1.0
_SILENT_S: Final = 30.0
_CHUNKS_IN_FLIGHT: Final = 100
_BATCHES_IN_FLIGHT: Final = 100
_POSITION_DIGITS: Final = 16
"""An offset message id ends with the record's position in the log, in hexadecimal (SF)."""


class _ProducerJob:
    """What the producers share: one `Producer`, the cycle of bodies."""

    def __init__(self, home: str) -> None:
        self._producer = Producer(home=home)
        self._bodies = make_bodies()

    def close(self) -> None:
        self._producer.close()


class OnewaySends(_ProducerJob):
    """`send_oneway`, one by one."""

    def run(self, phase: Phase) -> Outcome:
        send, bodies = self._producer.send_oneway, self._bodies
        started = time.monotonic_ns()
        for _ in range(phase.count // BODIES):
            for body in bodies:
                send(TOPIC, body, tag=TAG)
        return Outcome(started, time.monotonic_ns(), phase.count)


class FillSends(OnewaySends):
    """The same, then one `send`; the outcome's checksum is where that last record starts."""

    def run(self, phase: Phase) -> Outcome:
        outcome = super().run(phase)
        receipt = self._producer.send(TOPIC, self._bodies[0], tag=TAG)
        return replace(outcome, checksum=int(receipt.offset_msg_id[-_POSITION_DIGITS:], 16))


class KeyedSends(_ProducerJob):
    """`send_oneway` of messages with a key of their own, beside the message id."""

    def run(self, phase: Phase) -> Outcome:
        send, bodies = self._producer.send_oneway, self._bodies
        started = time.monotonic_ns()
        for number in range(phase.count):
            send(TOPIC, bodies[number % BODIES], keys=(f"order-{number}",))
        self._producer.flush(_SILENT_S)
        return Outcome(started, time.monotonic_ns(), phase.count)


class AsyncSends(_ProducerJob):
    """`send_async`, one by one; every receipt is kept until its chunk's last one is there."""

    def run(self, phase: Phase) -> Outcome:
        send, bodies = self._producer.send_async, self._bodies
        waiting: deque[list[ReceiptFuture]] = deque()
        started = time.monotonic_ns()
        for _ in range(phase.count // BODIES):
            waiting.append([send(TOPIC, body, tag=TAG) for body in bodies])
            if len(waiting) == _CHUNKS_IN_FLIGHT:
                waiting.popleft()[-1].result(_SILENT_S)
        for chunk in waiting:
            chunk[-1].result(_SILENT_S)
        return Outcome(started, time.monotonic_ns(), phase.count)


class BatchSends(_ProducerJob):
    """`send_batch` of BATCH_MESSAGES messages, which are made anew for each batch."""

    def run(self, phase: Phase) -> Outcome:
        send, bodies = self._producer.send_batch, self._bodies[:BATCH_MESSAGES]
        started = time.monotonic_ns()
        for _ in range(phase.count // BATCH_MESSAGES):
            send([Message(TOPIC, body, tag=TAG) for body in bodies])
        return Outcome(started, time.monotonic_ns(), phase.count)


class BatchesInFlight(_ProducerJob):
    """`send_batch_async` of as many: receipts of a batch are taken when many are on their way."""

    def run(self, phase: Phase) -> Outcome:
        bodies = self._bodies[:BATCH_MESSAGES]
        waiting: deque[Future[Sequence[SendReceipt]]] = deque()
        started = time.monotonic_ns()
        for _ in range(phase.count // BATCH_MESSAGES):
            waiting.append(self._send(bodies))
            if len(waiting) == _BATCHES_IN_FLIGHT:
                waiting.popleft().result(_SILENT_S)
        for batch in waiting:
            batch.result(_SILENT_S)
        return Outcome(started, time.monotonic_ns(), phase.count)

    def _send(self, bodies: list[bytes]) -> Future[Sequence[SendReceipt]]:
        messages = [Message(TOPIC, body, tag=TAG) for body in bodies]
        return self._producer.send_batch_async(messages)


class BodiesInFlight(BatchesInFlight):
    """The same with the bodies as they are, since topic and tag are the same for all."""

    def _send(self, bodies: list[bytes]) -> Future[Sequence[SendReceipt]]:
        return self._producer.send_batch_async(TOPIC, bodies, tag=TAG)


class SyncSends(_ProducerJob):
    """`send`, one by one; the call is what is timed."""

    def __init__(self, home: str, durability: Durability) -> None:
        super().__init__(home)
        self._durability = durability

    def run(self, phase: Phase) -> Outcome:
        send, bodies, durability = self._producer.send, self._bodies, self._durability
        latencies = array("q")
        started = time.monotonic_ns()
        for index in range(phase.count):
            before = time.monotonic_ns()
            send(TOPIC, bodies[index % BODIES], tag=TAG, durability=durability)
            latencies.append(time.monotonic_ns() - before)
        return Outcome(started, time.monotonic_ns(), phase.count, latencies_ns=latencies)


class WindowedSends(_ProducerJob):
    """`send_async` of durable messages with IN_FLIGHT of them not yet acknowledged."""

    def run(self, phase: Phase) -> Outcome:
        latencies = array("q")
        window: deque[tuple[int, ReceiptFuture]] = deque()
        started = time.monotonic_ns()
        for index in range(phase.count + IN_FLIGHT):
            if index >= IN_FLIGHT:
                before, future = window.popleft()
                future.result(_SILENT_S)
                latencies.append(time.monotonic_ns() - before)
            if index < phase.count:
                body = self._bodies[index % BODIES]
                now = time.monotonic_ns()
                sent = self._producer.send_async(TOPIC, body, tag=TAG, durability="durable")
                window.append((now, sent))
        return Outcome(started, time.monotonic_ns(), phase.count, latencies_ns=latencies)


class PacedSends(_ProducerJob):
    """`send_oneway` on schedule; each body begins with its intended time."""

    def run(self, phase: Phase) -> Outcome:
        checksum = 0
        started = time.monotonic_ns()
        for due_ns in paced(phase):
            self._producer.send_oneway(TOPIC, timed_body(due_ns), tag=TAG)
            checksum += due_ns
        return Outcome(started, time.monotonic_ns(), phase.count, checksum)


class ColumnPolls:
    """Polls columns and touches every body in them; commits once, at the end of a phase."""

    def __init__(self, home: str, group: str) -> None:
        self._consumer = PullConsumer(
            group, [TOPIC], home=home, consume_from=ConsumeFrom.FIRST_OFFSET
        )

    def run(self, phase: Phase) -> Outcome:
        count = checksum = 0
        progress = Progress()
        started = heard = time.monotonic_ns()
        while count < phase.count:
            wanted = min(_POLL_MESSAGES, phase.count - count)
            batch = self._consumer.poll(max_messages=wanted, timeout=_POLL_S)
            if len(batch):
                checksum += touch_columns(batch.bodies.buffer, batch.bodies.offsets)
                count += len(batch)
                heard = time.monotonic_ns()
                progress.mark(heard, count)
            elif time.monotonic_ns() - heard > _SILENT_S * 1e9:
                raise BenchError(f"nothing came for {_SILENT_S:.0f} s, {count} before")
        self._consumer.commit()
        return Outcome(started, time.monotonic_ns(), count, checksum, marks=progress.marks)

    def close(self) -> None:
        self._consumer.close()


class PacedPolls(ColumnPolls):
    """Polls what has come and takes the time since each message was due."""

    def run(self, phase: Phase) -> Outcome:
        latencies = array("q")
        checksum = 0
        started = heard = time.monotonic_ns()
        while len(latencies) < phase.count:
            batch = self._consumer.poll(max_messages=_POLL_MESSAGES, timeout=_POLL_S)
            for body in batch.bodies:
                due_ns = due_of(body)
                latencies.append(time.monotonic_ns() - due_ns)
                checksum += due_ns
            if len(batch):
                heard = time.monotonic_ns()
            elif heard + _SILENT_S * 1e9 < time.monotonic_ns():
                raise BenchError(f"nothing came for {_SILENT_S:.0f} s, {len(latencies)} before")
        return Outcome(started, time.monotonic_ns(), len(latencies), checksum, latencies)
