"""What messages of the simulator's applications are sent with, and filters that tell them apart.

What a filter means is written down here a second time, in Python: the oracle asks no filter of the
product.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gantrymq.clients.subscription import FilterExpression, FilterType

#: A tag, properties, or none, and perhaps a message group.
Stamp = dict[str, Any]
_TAGS: Final = ("a", "b", None, "c")
_COLOURS: Final = ("red", None, "blue")
MESSAGE_GROUPS: Final = 3


def stamp_of(number: int, *, grouped: bool) -> Stamp:
    """That of a thread's message with a number."""
    tag, colour = _TAGS[number % len(_TAGS)], _COLOURS[number % len(_COLOURS)]
    properties = {"n": str(number % 7)} | ({"colour": colour} if colour else {})
    stamp: Stamp = {"properties": properties}
    if tag:
        stamp["tag"] = tag
    if grouped:
        stamp["message_group"] = f"g{number % MESSAGE_GROUPS}"
    return stamp


@dataclass(frozen=True, slots=True)
class Sieve:
    """A filter, and what it means."""

    expression: FilterExpression
    lets_through: Callable[[Stamp], bool]


def _sql(text: str) -> FilterExpression:
    return FilterExpression(text, FilterType.SQL92)


def _n(stamp: Stamp) -> int:
    return int(stamp["properties"]["n"])


def _colour(stamp: Stamp) -> str | None:
    colour: str | None = stamp["properties"].get("colour")
    return colour


SIEVES: Final = (
    Sieve(FilterExpression("a || c"), lambda stamp: stamp.get("tag") in ("a", "c")),
    Sieve(FilterExpression("b"), lambda stamp: stamp.get("tag") == "b"),
    Sieve(
        _sql("n BETWEEN 2 AND 4 OR colour = 'red'"),
        lambda stamp: 2 <= _n(stamp) <= 4 or _colour(stamp) == "red",
    ),
    Sieve(
        _sql("colour IS NULL AND TAGS <> 'b'"),  # of one without a tag nobody knows that
        lambda stamp: _colour(stamp) is None and stamp.get("tag") in ("a", "c"),
    ),
    Sieve(
        _sql("NOT (colour = 'blue') AND n > 0"),
        lambda stamp: _colour(stamp) == "red" and _n(stamp) > 0,
    ),
)


def sieves_for(topics: list[str], dice: random.Random) -> dict[str, Sieve]:
    """One for each topic."""
    return {topic: dice.choice(SIEVES) for topic in topics}
