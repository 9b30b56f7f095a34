"""A real RocketMQ goes on with a store of ours, then we do: legs of `make interop`.

Both ends are tried clean and by SIGKILL. After RocketMQ, `store dump` says what its own dump says,
and its `config/` holds all that ours held, though it knows nothing of our checksum field. In the
end everything of both is there once, `store verify` is clean, RocketMQ accepts the outcome again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gantrymq import Broker, ConsumeFrom, Message, Producer, PullConsumer
from gantrymq.shm.configfile import parse_config
from gantrymq.shm.jsonsum import FIELD
from gantrymq.shm.ranges import read_ranges
from gantrymq.shm.storage import PosixStorage
from scripts.interop_checker import PATIENCE_S, Checker, Refused, wait_until
from scripts.interop_stores import CHECK, require_sound
from scripts.interop_table import Row

TOPIC: Final = "orders"
#: A topic with a level, and one that was deleted and made again: both are attributes of ours.
CAREFUL: Final = "careful"
AGAIN: Final = "again"
GROUP: Final = "keepers"
OURS: Final = 400
IN_FLIGHT: Final = 200
THEIRS: Final = 60
_CONFIG: Final = {
    "topics.json": "topicConfigTable",
    "subscriptionGroup.json": "subscriptionGroupTable",
    "consumerOffset.json": "offsetTable",
}


@dataclass(frozen=True)
class Leg:
    """Who is killed."""

    name: str
    we_are_killed: bool
    it_is_killed: bool

    @property
    def row(self) -> Row:
        """Its row of the table."""
        end = "is killed" if self.it_is_killed else "stops, keeps our config"
        return Row(self.name, f"extends, {end}, dump as ours; we go on; accepts that")


LEGS: Final = (
    Leg("ours, its, ours", False, False),
    Leg("ours killed, its, ours", True, False),
    Leg("ours, its killed, ours", False, True),
    Leg("ours killed, its killed, ours", True, True),
)


def run(leg: Leg, checker: Checker, log: Path) -> str:
    """One leg; what was there in the end. Raises Refused, GantryError."""
    bodies: list[bytes] = []
    settings = checker.settings_of_ours(checker.version)
    with (
        Broker.temporary(**settings) as broker,
        Producer(broker.home, timeout=PATIENCE_S) as producer,
    ):
        store = broker.home / "store"
        _make_topics(broker)
        _send(producer, bodies, OURS)
        producer.flush()
        with PullConsumer(
            GROUP, [TOPIC], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer:
            before = _consumed(consumer, OURS // 2)
        if leg.we_are_killed:
            _send(producer, bodies, IN_FLIGHT)
            broker.process.kill()
            broker.process.wait()
        else:
            broker.stop()
        kept = _config_of(store)
        if not leg.we_are_killed and kept.keys() != _CONFIG.keys():
            raise Refused(f"config/ of ours holds {sorted(kept)} only")
        checker.go_on(store, (THEIRS, TOPIC), log, killed=leg.it_is_killed)
        _require_kept(kept, _config_of(store), rewritten=not leg.it_is_killed)
        lines = checker.compare_dumps(store, log.with_suffix(".dump.log"))
        broker.start()
        _send(producer, bodies, OURS)
        producer.flush()
        theirs = [b"sent by serve %d" % number for number in range(THEIRS)]
        wanted = Counter([*bodies, *theirs])
        _require_all(broker, wanted, before)
        broker.stop()
        _require_kept(kept, _config_of(store), rewritten=False)
        said = _verified(store)
        CHECK.run(checker, store, log.with_suffix(".check.log"))
    return f"{lines} lines of dump; {said}"


def _make_topics(broker: Broker) -> None:
    _topic(broker, "create", CAREFUL, "--queues", "3", "--durability", "durable")
    _topic(broker, "create", AGAIN)
    with Producer(broker.home) as producer:
        producer.send(CAREFUL, b"careful")
        producer.send(AGAIN, b"before")
        _topic(broker, "delete", AGAIN)
    _topic(broker, "create", AGAIN)


def _topic(broker: Broker, *words: str) -> None:
    command = [sys.executable, "-m", "gantrymq", "topic", *words, "--home", str(broker.home)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _send(producer: Producer, bodies: list[bytes], count: int) -> None:
    for _ in range(count):
        bodies.append(b"%d " % len(bodies) * (1 + len(bodies) % 90))
        producer.send_async(Message(TOPIC, bodies[-1], tag="paid", keys=(f"k{len(bodies)}",)))


# ----------------------------------------------------------------------------------------- config


def _config_of(store: Path) -> dict[str, dict[str, Any]]:
    return {
        name: parse_config((store / "config" / name).read_text(encoding="utf-8"))
        for name in _CONFIG
        if (store / "config" / name).exists()
    }


def _require_kept(
    before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]], *, rewritten: bool
) -> None:
    """Each topic, group and offset of ours is still there as it was; others may have come."""
    for name, content in before.items():
        table = _CONFIG[name]
        if FIELD not in content:
            raise Refused(f"{name} of ours has no {FIELD}")
        if rewritten and FIELD in after[name]:
            raise Refused(f"{name} was not written by RocketMQ")
        for key, value in content[table].items():
            found = after[name][table].get(key)
            if not _holds(found, value, at_least=table == "offsetTable"):
                raise Refused(f"{name}: {key} was {json.dumps(value)}, is {json.dumps(found)}")


def _holds(found: Any, value: Any, *, at_least: bool) -> bool:  # noqa: ANN401 - JSON
    """Whether all of `value` is in `found`; offsets may have gone on, and fields been added."""
    if isinstance(value, dict):
        return isinstance(found, dict) and all(
            _holds(found.get(key), inner, at_least=at_least) for key, inner in value.items()
        )
    if at_least and isinstance(found, int):
        return bool(found >= value)
    return bool(found == value)


# ---------------------------------------------------------------------------------------- reading


def _require_all(broker: Broker, wanted: Counter[bytes], before: Counter[bytes]) -> None:
    """A new group gets everything once; the one that has begun, all that it has not committed."""
    with PullConsumer(
        "afterwards", [TOPIC], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        found = _consumed(consumer, wanted.total())
    if found != wanted:
        lost, more = (wanted - found).total(), (found - wanted).total()
        raise Refused(f"{lost} lost, {more} too many")
    with PullConsumer(GROUP, [TOPIC], home=broker.home) as consumer:
        rest = _consumed(consumer, wanted.total() - before.total())
    if rest + before != wanted:
        raise Refused(f"group {GROUP} did not go on where it had committed")


def _consumed(consumer: PullConsumer, count: int) -> Counter[bytes]:
    """Bodies of at least so many messages, committed."""
    found = read_bodies(consumer, count)
    consumer.commit()
    return found


def read_bodies(consumer: PullConsumer, count: int) -> Counter[bytes]:
    """Bodies of at least so many messages. Raises Refused."""
    found: Counter[bytes] = Counter()

    def read() -> bool:
        found.update(bytes(body) for body in consumer.poll(timeout=0.2).bodies)
        return found.total() >= count

    wait_until(read)
    return found


def _verified(store: Path) -> str:
    report = require_sound(store)
    ranges = read_ranges(PosixStorage(str(store)))
    if ranges is None or len(ranges.spans) != 2:
        raise Refused(f"ours, RocketMQ's, ours were expected: {ranges}")
    (_, first), (second, _) = ranges.spans
    return f"{report.records} records, RocketMQ's from {first} to {second}; verify clean"
