"""A group in the middle of its retries goes over to a RocketMQ and comes back: `make interop`.

Its failed messages are parked by level and by time, lie in its retry topic, are dead letters; one
timer is cancelled. The RocketMQ delivers the rest to a consumer of the same group, which fails some
once more; in the last legs a broker of ours goes on with what the RocketMQ has left, stopped or
killed. Every message has to come at each of its attempts once, and not early, whoever delivers it;
the log has to hold each attempt's record once.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gantrymq import (
    Broker,
    ConsumeFrom,
    ConsumeResult,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
)
from gantrymq.brokerd.dump import dump_objects
from gantrymq.shm.configfile import parse_config
from gantrymq.shm.properties import DLQ_PREFIX, RETRY_PREFIX
from scripts.interop_checker import Checker, Refused, wait_until
from scripts.interop_group import RocketMqGroup
from scripts.interop_handover import TIMER_LOG_BYTES, adopt, end_and_hand_over
from scripts.interop_stores import CHECK_SUMS, Trial
from scripts.interop_table import Row

TOPIC: Final = "jobs"
PLAIN: Final = "orders"
GROUP: Final = "workers"
OF_EACH: Final = 3
ATTEMPTS: Final = 3
#: The ladder begins at level 3 (RD-19): these are the delays of a first and a second failure.
LEVEL_TEXT: Final = "1s 5s 10s 20s 1h"
LADDER_MS: Final = {1: 10_000, 2: 20_000}
TIMED_S: Final = 12.0
LYING_S: Final = 1.0
FAR_S: Final = 3600.0
#: A RocketMQ is up so long: until all that is due has come, or while much still waits.
LONG_S: Final = 44.0
SHORT_S: Final = 10.0
#: Its group ends earlier, so that what it has acknowledged is saved.
_END_S: Final = 4.0
_UP: Final = re.compile(r"broker 127\.0\.0\.1:(\d+)")
_OPTIONS: Final = (
    *("-D", f"messageDelayLevel={LEVEL_TEXT}"),
    *("-D", f"mappedFileSizeTimerLog={TIMER_LOG_BYTES}"),
)
#: Kinds of messages -> how many of their deliveries fail.
_FAILURES: Final = {
    b"good": 0, b"ladder": 1, b"again": 2, b"timed": 1, b"lying": 1, b"far": 1, b"dying": 3,
    b"poison": 1, b"later": 0, b"unread": 0,
}  # fmt: skip
#: How long a failed one of these waits, by its own wish; it comes back, or is not seen to.
_WISHES: Final = {b"timed": TIMED_S, b"lying": LYING_S, b"far": FAR_S}
_LOST: Final = frozenset({b"far", b"poison"})


@dataclass
class Deliveries:
    """What came, at whom it came does not matter: (body, attempt), and when each may come."""

    seen: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    due_ms: dict[tuple[bytes, int], int] = field(default_factory=dict)
    early: list[tuple[bytes, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fails(self, body: bytes, attempt: int) -> bool:
        """Note a delivery; whether it is to fail."""
        kind, now_ms = body.split()[0], time.time_ns() // 1_000_000
        with self.lock:
            self.seen[body, attempt] += 1
            if now_ms < self.due_ms.get((body, attempt), 0):
                self.early.append((body, attempt))
            if attempt > _FAILURES[kind]:
                return False
            wait = _WISHES.get(kind)
            later = LADDER_MS.get(attempt, 0) if wait is None else int(1000 * wait)
            self.due_ms[body, attempt + 1] = now_ms + later
            return True


@dataclass(frozen=True)
class Leg:
    """What happens between our broker's end and the outcome."""

    name: str
    did: str
    killed: bool = False
    its_end: str = ""  # "", "stopped", "killed": then we go on

    @property
    def row(self) -> Row:
        """Its row of the table."""
        return Row(self.name, self.did)


LEGS: Final = (
    Leg("retries, handed over", "goes on with the group: each attempt once, none early"),
    Leg("retries, killed, handed over", "goes on with the group: each attempt once, none early",
        killed=True),
    Leg("retries, its, adopted", "serves the group amid its retries, stops; we go on: each once",
        its_end="stopped"),
    Leg("retries, its killed, adopted", "is killed amid deliveries; we go on: each once",
        killed=True, its_end="killed"),
)  # fmt: skip


def run(leg: Leg, checker: Checker, log: Path) -> str:
    """One leg; what was found in the end. Raises Refused, GantryError."""
    settings = checker.settings_of_ours(checker.version) | {"message_delay_level": LEVEL_TEXT}
    found = Deliveries()
    with Broker.temporary(**settings) as broker:
        store = broker.home / "store"
        _begin(broker, found)
        end_and_hand_over(broker, killed=leg.killed)
        killed = leg.its_end == "killed"
        stay = SHORT_S if leg.its_end else LONG_S
        seconds = 0.0 if killed else stay - _END_S
        with _group_at_rocketmq(log, _queues(store), found, seconds):
            checker.go_on(store, (5, PLAIN), log, killed=killed, stay=stay, options=_OPTIONS)
        if leg.its_end:
            adopt(broker)
            broker.start()
            _finish(broker, found)
            broker.stop()
        return _judge(store, found)


def parked(broker: Broker, folder: Path) -> Path:
    """A store that is stopped while all this waits, and not handed over."""
    _begin(broker, Deliveries())
    broker.stop()
    return broker.home / "store"


PARKED: Final = Trial("amid retries and timers", parked, (CHECK_SUMS,))


# ------------------------------------------------------------------------------------------ at ours


def _begin(broker: Broker, found: Deliveries) -> None:
    """First deliveries, some of which fail; then what nobody has read."""
    first = [kind for kind in _FAILURES if kind not in (b"later", b"unread")]
    with Producer(broker.home) as producer:
        producer.send(PLAIN, b"what the RocketMQ is sent goes here")
        for kind in first:
            for number in range(OF_EACH):
                producer.send(TOPIC, b"%s %d" % (kind, number))
        with _workers(broker, found):
            wait_until(lambda: len(found.seen) >= len(first) * OF_EACH)
        for number in range(OF_EACH):
            producer.send(TOPIC, b"unread %d" % number)
            body = b"later %d" % number
            found.due_ms[body, 1] = time.time_ns() // 1_000_000 + int(1000 * TIMED_S)
            producer.send(Message(TOPIC, body, delivery_timestamp=found.due_ms[body, 1]))
            handle = producer.send(TOPIC, b"cancelled %d" % number, delay=TIMED_S).recall_handle
            assert handle is not None, "a delayed message has a handle"
            producer.recall_message(TOPIC, handle)
    lying = 0
    with PullConsumer(
        "watcher", [RETRY_PREFIX + GROUP], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as watcher:

        def are_there() -> bool:
            nonlocal lying
            lying += len(watcher.poll(timeout=0.2))
            return lying >= OF_EACH

        wait_until(are_there)


@contextmanager
def _workers(broker: Broker, found: Deliveries) -> Iterator[None]:
    def listen(message: Message) -> ConsumeResult | None:
        body = bytes(message.body)
        if not found.fails(body, message.delivery_attempt or 1):
            return None
        kind = body.split()[0]
        if kind == b"poison":
            return ConsumeResult.DEAD_LETTER
        wait = _WISHES.get(kind)
        return ConsumeResult.FAILURE if wait is None else message.retry_after(wait)

    with PushConsumer(
        GROUP, [TOPIC], listen, home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET,
        max_attempts=ATTEMPTS,
    ):  # fmt: skip
        yield


def _finish(broker: Broker, found: Deliveries) -> None:
    """What the RocketMQ has left comes; then nothing more within a second."""
    with _workers(broker, found):
        wait_until(lambda: found.seen.keys() >= _wanted())
        time.sleep(1.0)


# -------------------------------------------------------------------------------------- at RocketMQ


@contextmanager
def _group_at_rocketmq(
    log: Path, queues: dict[str, int], found: Deliveries, seconds: float
) -> Iterator[None]:
    """Meanwhile a member of the group consumes for so long, once the broker is up."""
    over = threading.Event()
    trouble: list[Exception] = []

    def consume() -> None:
        try:
            port = _port(log, over)
            if port:
                _consume(port, queues, found, seconds)
        except (OSError, Refused, KeyError) as error:
            trouble.append(error)

    thread = threading.Thread(target=consume)
    if seconds:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if seconds:
            thread.join()
    if trouble:
        raise Refused(f"the group at RocketMQ: {trouble[0]!r}") from trouble[0]


def _queues(store: Path) -> dict[str, int]:
    """How many queues the topics of the group have."""
    file = store / "config" / "topics.json"
    topics = parse_config(file.read_text(encoding="utf-8"))["topicConfigTable"]
    return {name: topics[name]["readQueueNums"] for name in (TOPIC, RETRY_PREFIX + GROUP)}


def _port(log: Path, over: threading.Event) -> int:
    while not over.wait(0.1):
        said = _UP.search(log.read_text(errors="replace")) if log.exists() else None
        if said:
            return int(said[1])
    return 0


def _consume(port: int, queues: dict[str, int], found: Deliveries, seconds: float) -> None:
    group = RocketMqGroup(port, GROUP, queues)
    try:
        for record in group.messages(seconds):
            if found.fails(record.body, record.reconsume_times + 1):
                group.send_back(record)
    finally:
        group.close()


# ----------------------------------------------------------------------------------------- outcome


def _wanted() -> set[tuple[bytes, int]]:
    """Each message at each attempt that it has to have."""
    return {
        (b"%s %d" % (kind, number), attempt)
        for kind, failures in _FAILURES.items()
        for number in range(OF_EACH)
        for attempt in range(1, 2 if kind in _LOST else min(failures + 1, ATTEMPTS) + 1)
    }


def _judge(store: Path, found: Deliveries) -> str:
    """Raises Refused unless deliveries and log are as they have to be."""
    wanted = Counter(_wanted())
    if found.seen != wanted or found.early:
        lost, more = sorted(wanted - found.seen)[:3], sorted(found.seen - wanted)[:3]
        raise Refused(f"not delivered {lost}, too often {more}, early {found.early[:3]}")
    stored: Counter[tuple[str, bytes, int]] = Counter()
    dead: Counter[bytes] = Counter()
    for line in dump_objects(store):
        if line["kind"] != "record" or "bodyHex" not in line:
            continue
        body = bytes.fromhex(line["bodyHex"])
        if line["topic"] in (TOPIC, RETRY_PREFIX + GROUP):
            stored[line["topic"], body, line["reconsumeTimes"]] += 1
        elif line["topic"] == DLQ_PREFIX + GROUP:
            dead[body] += 1
    doubled = [what for what, count in stored.items() if count > 1]
    given_up = Counter(b"%s %d" % (k, n) for k in (b"dying", b"poison") for n in range(OF_EACH))
    if doubled or dead != given_up or len(stored) != len(wanted):
        raise Refused(
            f"stored twice {doubled[:3]}, dead letters {dict(dead)}, {len(stored)} records for"
            f" {len(wanted)} deliveries"
        )
    return f"{len(wanted)} deliveries, each of one record; {len(dead)} dead letters"
