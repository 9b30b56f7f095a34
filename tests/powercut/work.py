"""A broker at work with all that it does, and applications that tell what they were told.

`python -m tests.powercut.work HOME TOLD SEED PROFILE` runs under strace. Each line of the file TOLD
is a JSON list that names an event from an application's view, written right after it:

    ["durable", body]        a receipt of durability "durable"; also of a half or a delayed message
    ["intent", kind, body, due_ms, topic]   before the send: "now", "later" (due), "far", "half"
    ["decided", body, "commit" | "rollback"]   the transaction's end was answered
    ["got", group, body]     a listener returned SUCCESS, or a pull loop has the message
    ["ready"]                the broker is ready
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gantrymq.brokerd import epoch, retention
from gantrymq.brokerd.__main__ import main as serve_home
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.home import store_of
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.shm import jit, wire
from gantrymq.shm.lognames import segment_name
from gantrymq.workers.groups import ledger
from tests.powercut.settings import (
    AUDIT,
    BILLING,
    DLQ_EVERY,
    FAILS_EVERY,
    FAR_MS,
    MAX_ATTEMPTS,
    PLAIN,
    PRODUCERS,
    RETRY_S,
    SAFE,
    settings_of,
)  # fmt: skip
from tests.powercut.waiting import wait_until_ready

#: A loaded machine takes its time until a segment is sealed and old.
PATIENCE_S = 5.0
_KINDS = (*["now"] * 9, *["level", "later", "half", "batch"] * 3, "far")
_ENDS = (*["commit", "rollback"] * 5, "leave")


class Told:
    """The file; one write a line, so that strace sees when each was known."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, *event: object) -> None:
        os.write(self._descriptor, json.dumps(event).encode() + b"\n")


def serve(home: Path, profile: str, log: Path) -> int:
    """A fork that is the broker, with files so small that all is full soon; its number."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        run_broker(home, profile)
    finally:
        os._exit(1)


def run_broker(home: Path, profile: str) -> None:
    """The broker's own program, hurried."""
    retention.PACE.first = retention.PACE.between = 300_000_000
    retention.PACE.look = retention.PACE.grace = 100_000_000
    retention.PACE.patience = 300_000_000
    vars(retention)["_HOUR_MS"] = 1  # so that `file_reserved_time` counts milliseconds
    vars(ledger)["COMPACT_BYTES"] = 2_000
    vars(epoch)["boot_id"] = lambda: "00000000-0000-4000-8000-000000000000"  # before the cut
    sys.argv = ["brokerd", "--home", str(home)]
    for name, value in settings_of(profile).items():
        sys.argv += ["--set", f"{name}={value}"]
    os._exit(serve_home())


def fate(body: str, attempt: int) -> str:
    """What the listener does with a message: by its content, so that any life does the same."""
    number = int(body.split("-")[1])
    if number % DLQ_EVERY == 0:
        return "fails"
    return "fails" if number % FAILS_EVERY == 0 and attempt < 2 else "succeeds"


class Work:
    """Applications of all kinds in one process."""

    def __init__(self, home: Path, told: Told, seed: int) -> None:
        self.home = home
        self.told = told
        self.dice = random.Random(seed)
        self.calm = threading.Event()  # nothing more is sent
        self.stop = threading.Event()
        self._number = 0
        self._lock = threading.Lock()

    def body(self) -> str:
        with self._lock:
            self._number += 1
            text = f"m-{self._number}-"
            return text + "." * self.dice.choice([0, 10, 100, 900])

    def run(self, seconds: float) -> None:
        """Work for so long."""
        with Producer(self.home) as producer:
            for name, level in ((SAFE, "durable"), (PLAIN, "written")):
                producer._link.session.request(wire.CreateTopic(name, 2, level))
        jobs = [self.listen, self.pull, *[self.send] * PRODUCERS]
        threads = [threading.Thread(target=self._quietly, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self.calm.set()
        first, until = store_of(self.home) / segment_name(0), time.monotonic() + PATIENCE_S
        while first.exists() and time.monotonic() < until:  # until retention has removed something
            time.sleep(0.05)
        self.stop.set()

    def _quietly(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            if not self.stop.is_set():
                self.told("error", repr(error))

    def send(self) -> None:
        """Sends of all kinds."""
        with Producer(self.home, durability="durable", producer_group="bank") as producer:
            while not self.calm.is_set():
                getattr(self, f"_send_{self.dice.choice(_KINDS)}")(producer)

    def _send_now(self, producer: Producer) -> None:
        pending = []
        for _ in range(self.dice.randint(1, 12)):
            body = self.body()
            topic = self.dice.choice([SAFE, SAFE, PLAIN])
            self.told("intent", "now", body, 0, topic)
            keys = [body[:8]]
            pending.append((body, producer.send_async(topic, body.encode(), keys=keys)))
        for body, future in pending:
            future.result()
            self.told("durable", body)

    def _send_batch(self, producer: Producer) -> None:
        bodies = [self.body() for _ in range(self.dice.randint(2, 5))]
        for body in bodies:
            self.told("intent", "now", body, 0, SAFE)
        producer.send_batch([Message(SAFE, body.encode()) for body in bodies])
        for body in bodies:
            self.told("durable", body)

    def _send_later(self, producer: Producer) -> None:
        body, delay = self.body(), self.dice.choice([0.05, 0.3, 0.9, 1.5])
        self.told("intent", "later", body, int(time.time() * 1000) + int(delay * 1000), SAFE)
        producer.send(SAFE, body.encode(), delay=delay)
        self.told("durable", body)

    def _send_level(self, producer: Producer) -> None:
        body = self.body()
        self.told("intent", "later", body, int(time.time() * 1000) + 1000, SAFE)
        producer.send(SAFE, body.encode(), delay_level=1)
        self.told("durable", body)

    def _send_far(self, producer: Producer) -> None:
        body = self.body()
        self.told("intent", "far", body, FAR_MS, SAFE)
        producer.send(SAFE, body.encode(), delivery_timestamp=FAR_MS)
        self.told("durable", body)

    def _send_half(self, producer: Producer) -> None:
        bodies = [self.body() for _ in range(self.dice.randint(1, 3))]
        transaction = producer.begin_transaction()
        for body in bodies:
            self.told("intent", "half", body, 0, SAFE)
            producer.send(SAFE, body.encode(), transaction=transaction)
            self.told("durable", body)
        end = self.dice.choice(_ENDS)
        for body in bodies if end != "leave" else ():
            self.told("deciding", body, end)
        if end == "commit":
            transaction.commit()
        elif end == "rollback":
            transaction.rollback()
        for body in bodies if end != "leave" else ():
            self.told("decided", body, end)

    def listen(self) -> None:
        """A push consumer of which some messages fail for a while, and some for ever."""
        consumer = PushConsumer(
            BILLING, [SAFE], self._heard, home=self.home, max_attempts=MAX_ATTEMPTS,
            consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=4,
        )  # fmt: skip
        consumer.start()
        self.stop.wait()

    def _heard(self, message: Message) -> ConsumeResult:
        return heard(message, self.told)

    def pull(self) -> None:
        """A pull consumer that commits now and then."""
        first = ConsumeFrom.FIRST_OFFSET
        topics = [SAFE, PLAIN]
        with PullConsumer(AUDIT, topics, home=self.home, consume_from=first) as consumer:
            while not self.stop.is_set():
                batch = consumer.poll(max_messages=20, timeout=0.2)
                for body in batch.bodies:
                    self.told("got", AUDIT, bytes(body).decode())
                if self.dice.random() < 0.3:
                    consumer.commit()


def heard(message: Message, told: Callable[..., None]) -> ConsumeResult:
    """The listener, in every life."""
    body = bytes(message.body).decode()
    if fate(body, message.delivery_attempt or 1) == "fails":
        message.retry_after(RETRY_S)
        return ConsumeResult.FAILURE
    told("got", BILLING, body)
    return ConsumeResult.SUCCESS


def main() -> None:
    """See the module."""
    home, told_path = map(Path, sys.argv[1:3])
    seed, profile, seconds = int(sys.argv[3]), sys.argv[4], float(sys.argv[5])
    told = Told(told_path)
    jit.warm()
    pid = serve(home, profile, told_path.with_name("broker.log"))
    wait_until_ready(home, lambda: os.waitpid(pid, os.WNOHANG)[0] == 0)
    told("ready")
    Work(home, told, seed).run(seconds)
    told("end")
    os.killpg(pid, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
