"""What filtered consumers do: a topic of messages with properties, then what a filter takes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from bench.bodies import make_bodies, touch_columns
from bench.crew import BenchError, Outcome, Phase
from bench.sizes import BODIES
from gantrymq import ConsumeFrom, FilterExpression, FilterType, Message, Producer, PullConsumer

TOPIC: Final = "filtered"
#: SQL92 of three kinds; of 100 messages of `properties_of` 10, 24, 10 and 1 pass.
EXPRESSIONS: Final[Mapping[str, str]] = {
    "simple": "a > 5",
    "typical": "color IN ('red', 'green') AND a > 1 AND price < 700 AND vip IS NOT NULL",
    "hard": "(a BETWEEN 5.5 AND 6.5 OR price > 2000.5) AND NOT (city CONTAINS 'burg' OR"
    " city STARTSWITH 'New' OR ghost IS NOT NULL) AND color NOT IN ('black', 'white')"
    " AND (vip = TRUE OR vip <> 'never' OR NOT (price = a))",
    "rare": "price = 77",
}
_POLL_MESSAGES: Final = 16_384
_POLL_S: Final = 1.0
_SILENT_S: Final = 60.0
_CITIES: Final = ("Hamilton", "Kiel", "Bonn", "Quito", "Lima")
_COLORS: Final = ("red", "green", "blue", "grey", "brown")
RARE_EVERY: Final = 100
RARER_EVERY: Final = 10_000


def properties_of(number: int) -> dict[str, str]:
    """Properties of a message; what each expression is TRUE of repeats every 100 messages."""
    place = number % RARE_EVERY
    return {
        "a": "6" if place % 10 == 0 else str(place % 6),
        "price": "77" if place == 77 else str(100 + place * 13 % 900),
        "color": _COLORS[place % 5],
        "city": _CITIES[place * 7 % 5],
        "vip": "gold" if place % 2 else "none",
    }


def tag_of(number: int) -> str:
    """`rarer` once in 10,000 messages, `rare` once in 100, `common` else."""
    if number % RARER_EVERY == RARE_EVERY // 2:
        return "rarer"
    return "rare" if number % RARE_EVERY == 0 else "common"


class FilterFill:
    """Sends messages with properties and tags to each topic, and waits until all are in the log."""

    def __init__(self, home: str, *topics: str) -> None:
        self._producer = Producer(home=home)
        self._topics = topics or (TOPIC,)
        self._bodies = make_bodies()
        self._kinds = [properties_of(number) for number in range(RARE_EVERY)]

    def run(self, phase: Phase) -> Outcome:
        send, bodies, kinds = self._producer.send_oneway, self._bodies, self._kinds
        started = time.monotonic_ns()
        for number in range(phase.count):
            body, kind = bodies[number % BODIES], kinds[number % RARE_EVERY]
            for topic in self._topics:
                send(topic, body, tag=tag_of(number), properties=kind)
        self._producer.flush(timeout=_SILENT_S)
        return Outcome(started, time.monotonic_ns(), phase.count)

    def close(self) -> None:
        self._producer.close()


def crowd_of(count: int) -> dict[str, str]:
    """Twice as many groups and their filters, of which `count` are TRUE of each message."""
    prices = [properties_of(place)["price"] for place in range(RARE_EVERY)]
    found = {}
    for number in range(2 * count):
        own = [
            price for place, price in enumerate(prices) if (place - number) % (2 * count) < count
        ]
        found[f"crowd-{number}"] = f"price IN ({', '.join(map(repr, own))})"
    return found


class Crowd:
    """Registers groups with their filters, in each topic; a phase does nothing."""

    def __init__(self, home: str, filters: Mapping[str, str], topics: Sequence[str]) -> None:
        for group, text in filters.items():
            wanted = FilterExpression(text, FilterType.SQL92)
            PullConsumer(group, dict.fromkeys(topics, wanted), home=home).close()

    def run(self, phase: Phase) -> Outcome:
        now = time.monotonic_ns()
        return Outcome(now, now, phase.count)

    def close(self) -> None:
        """There is nothing to give back."""


class FilteredPolls:
    """Polls columns of what passes a filter, from the first message on, and touches each body."""

    def __init__(self, home: str, group: str, text: str, kind: str) -> None:
        wanted = FilterExpression(text, FilterType[kind])
        self._consumer = PullConsumer(
            group, {TOPIC: wanted}, home=home, consume_from=ConsumeFrom.FIRST_OFFSET
        )

    def run(self, phase: Phase) -> Outcome:
        """`phase.count` messages pass; a phase begins at the first message again."""
        for queue in self._consumer.assignment():
            self._consumer.seek(queue, "begin")
        count = checksum = 0
        started = heard = time.monotonic_ns()
        while count < phase.count:
            batch = self._consumer.poll(max_messages=_POLL_MESSAGES, timeout=_POLL_S)
            if len(batch):
                checksum += touch_columns(batch.bodies.buffer, batch.bodies.offsets)
                count += len(batch)
                heard = time.monotonic_ns()
            elif time.monotonic_ns() - heard > _SILENT_S * 1e9:
                raise BenchError(f"nothing came for {_SILENT_S:.0f} s, {count} before")
        return Outcome(started, time.monotonic_ns(), count, checksum)

    def close(self) -> None:
        self._consumer.close(commit=False)


class PythonLoop(FilteredPolls):
    """The typical expression in Python, in a loop over a consumer of all messages."""

    def __init__(self, home: str, group: str) -> None:
        super().__init__(home, group, "*", "TAG")

    def run(self, phase: Phase) -> Outcome:
        for queue in self._consumer.assignment():
            self._consumer.seek(queue, "begin")
        count = checksum = 0
        started = time.monotonic_ns()
        for message in self._consumer:
            if _typical(message):
                checksum += memoryview(message.body).nbytes
                count += 1
                if count == phase.count:
                    break
        return Outcome(started, time.monotonic_ns(), count, checksum)


def _typical(message: Message) -> bool:
    found = message.properties
    return (
        found.get("color") in ("red", "green")
        and int(found.get("a", 0)) > 1
        and int(found.get("price", 700)) < 700
        and "vip" in found
    )
