"""A store of a RocketMQ with inner batches: we go on with it, then RocketMQ, then we.

The store is a golden set of the version that it goes back to: RocketMQ's own clients have sent the
batches. Each of their messages has to come once, to a consumer of ours before and after and to
RocketMQ's in between, beside those that both brokers add to the topic.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gantrymq import Broker, ConsumeFrom, Message, Producer, PullConsumer
from scripts.interop_checker import PATIENCE_S, Checker, Refused
from scripts.interop_goes_on import read_bodies
from scripts.interop_handover import end_and_hand_over, hand_over
from scripts.interop_stores import CHECK, require_sound
from scripts.interop_table import Row
from tests.support.batchqueues import TOPIC, messages_of
from tests.support.golden import GoldenStore, unpack

PLAIN: Final = "orders"
#: In which store RocketMQ's clients have sent them.
SETS: Final = {"5.4.0": "batch", "5.3.3": "batch-533"}
OURS: Final = 60
THEIRS: Final = 20


@dataclass(frozen=True)
class Leg:
    """Who is killed."""

    name: str
    killed: bool

    @property
    def row(self) -> Row:
        """Its row of the table."""
        end = "is killed" if self.killed else "stops"
        return Row(self.name, f"consumes all of both, extends, {end}; so do we; accepts that")


LEGS: Final = (
    Leg("inner batches, ours, its, ours", killed=False),
    Leg("inner batches, both are killed", killed=True),
)


def run(leg: Leg, checker: Checker, log: Path) -> str:
    """One leg; what was there in the end. Raises Refused, GantryError."""
    folder = log.with_suffix(".golden")
    folder.mkdir()
    golden = unpack(SETS[checker.version], folder)
    checker = replace(checker, sizes=golden.settings)
    wanted = Counter(row["body"] for row in messages_of(golden.name))
    with Broker.temporary(**_settings(checker, golden)) as broker:
        store = broker.home / "store"
        broker.stop()
        shutil.rmtree(store)
        shutil.move(golden.store, store)
        broker.start()
        before = _read(broker, "first", wanted.total())
        if Counter(hashlib.sha256(body).hexdigest() for body in before.elements()) != wanted:
            raise Refused("our consumer got something else than was sent")
        sent = _send(broker)
        end_and_hand_over(broker, killed=leg.killed)
        CHECK.run(checker, store, log.with_suffix(".handed.log"))
        checker.go_on(store, (THEIRS, TOPIC), log, killed=leg.killed)
        broker.start()
        sent.update(b"sent by serve %d" % number for number in range(THEIRS))
        after = _read(broker, "second", before.total() + sent.total())
        if after != before + sent:
            lost, more = ((before + sent) - after).total(), (after - before - sent).total()
            raise Refused(f"{lost} of {(before + sent).total()} lost, {more} too many")
        broker.stop()
        require_sound(store)
        hand_over(broker)
        CHECK.run(checker, store, log.with_suffix(".check.log"))
    shutil.rmtree(folder)
    return f"{after.total()} messages of {TOPIC} once; verify clean"


def _settings(checker: Checker, golden: GoldenStore) -> dict[str, object]:
    ours = checker.settings_of_ours(checker.version)
    return {**ours, **golden.sizes, "board_queues_max": 8192}


def _send(broker: Broker) -> Counter[bytes]:
    """To the topic and to another one, so that a segment is rolled; the topic's bodies."""
    bodies = [b"ours %d " % number * (1 + number % 90) for number in range(OURS)]
    with Producer(broker.home, timeout=PATIENCE_S) as producer:
        for number, body in enumerate(bodies):
            producer.send(TOPIC, body, tag="paid", keys=(f"b{number}",))
            producer.send_batch([Message(PLAIN, body * 2, tag=f"t{i}") for i in range(3)])
    return Counter(bodies)


def _read(broker: Broker, group: str, count: int) -> Counter[bytes]:
    """What a new group gets of the topic. Raises Refused."""
    with PullConsumer(
        group, [TOPIC], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        return read_bodies(consumer, count)
