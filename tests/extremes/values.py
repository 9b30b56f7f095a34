"""Values of any type at random: sound, at their ends, or of no such type."""

from __future__ import annotations

import random
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec

from tests.support.extremes import NUMBERS, ODD, TEXTS, bounds_of, plain, sound
from tests.support.packed import NESTED, NOT_TEXT

_encode = msgspec.msgpack.Encoder().encode
_TEXTS = [text for text in TEXTS if len(text) < 600]


def value_of(kind: object, dice: random.Random) -> object:
    """A value of a type, more often than not one that it allows."""
    if dice.random() < 0.05:
        return dice.choice(ODD)
    bare, origin, inside = _known(kind)
    if origin in _PARTS:
        return _PARTS[origin](inside, dice)
    simple = _SIMPLE.get(bare)
    return simple(kind, dice) if simple else dice.choice(ODD)


@cache
def _known(kind: object) -> tuple[object, object, tuple[object, ...]]:
    bare = plain(kind)
    return bare, typing.get_origin(bare), typing.get_args(bare)


@cache
def _ends(kind: object) -> list[int]:
    return sorted(bounds_of(kind))


def _number(kind: object, dice: random.Random) -> int:
    way = dice.randrange(4)
    if way == 0:
        return dice.choice(NUMBERS)
    ends = _ends(kind)
    if way == 1 and ends:
        return dice.choice(ends)
    if way == 2:
        return dice.randrange(64)
    return dice.getrandbits(dice.randrange(1, 64)) - dice.randrange(2)


def _text(_kind: object, dice: random.Random) -> str:
    if dice.random() < 0.5:
        return dice.choice(_TEXTS)
    return "".join(map(chr, (dice.randrange(1, 0xD7FF) for _ in range(dice.randrange(20)))))


def _bytes(_kind: object, dice: random.Random) -> bytes:
    return dice.randbytes(dice.choice((0, 1, 9, 10, 11, 64, 65)))


def _flag(_kind: object, dice: random.Random) -> bool:
    return dice.random() < 0.5


def _several(dice: random.Random) -> range:
    return range(dice.choice((0, 1, 1, 2, 3, 40)))


def _list(inside: tuple[object, ...], dice: random.Random) -> list[object]:
    return [value_of(inside[0], dice) for _ in _several(dice)]


def _tuple(inside: tuple[object, ...], dice: random.Random) -> list[object]:
    items = [item for item in inside if item is not ...]
    return [value_of(item, dice) for item in items]


def _dict(inside: tuple[object, ...], dice: random.Random) -> dict[object, object]:
    found: dict[object, object] = {}
    for _ in _several(dice):
        key = value_of(inside[0], dice)
        if not isinstance(key, list | dict):
            found[key] = value_of(inside[1], dice)
    return found


_SIMPLE: dict[object, Callable[[object, random.Random], object]] = {
    int: _number,
    str: _text,
    bytes: _bytes,
    bool: _flag,
}
_PARTS: dict[object, Callable[[tuple[object, ...], random.Random], object]] = {
    list: _list,
    tuple: _tuple,
    dict: _dict,
}


#: How often a request is such that nobody can be answered, which ends its session: so rarely that
#: most sessions are heard to their end.
FATAL = 0.001
#: Requests that are not answered: what is amiss in one ends its session.
UNANSWERED = ("Enlist", "Unknown")
#: Looking them up means evaluating annotations.
_fields = cache(msgspec.structs.fields)
_least = cache(sound)


def packed(kind: type[msgspec.Struct], base: Mapping[str, object], dice: random.Random) -> bytes:
    """A struct of a kind: one or a few of its fields are anything, the others as in `base`."""
    fields, fatal = _fields(kind), dice.random() < FATAL
    values: dict[str, Any] = {
        field.encode_name: base[field.name] if field.name in base else _least(field.type)
        for field in fields
    }
    can_refuse = "serial" in values and kind.__name__ not in UNANSWERED
    if can_refuse or fatal:
        for field in dice.sample(fields, min(len(fields), dice.choice((0, 1, 1, 2, len(fields))))):
            if fatal or field.name != "serial":
                values[field.encode_name] = value_of(field.type, dice)
    config = kind.__struct_config__
    if config.array_like:
        rows = [config.tag, *values.values()]
        return _encode(rows[: len(rows) - (fatal and dice.random() < 0.5)])
    if fatal and dice.random() < 0.5:
        values.pop(dice.choice(list(values)))
    return _encode({config.tag_field: config.tag, **values})


def spoiled(body: bytes, dice: random.Random) -> bytes:
    """What is no request any more: cut, mixed up, or noise."""
    way = dice.randrange(5)
    if way == 0:
        return body[: dice.randrange(len(body) + 1)]
    if way == 1:
        at = dice.randrange(len(body) + 1)
        return body[:at] + dice.randbytes(dice.randrange(1, 9)) + body[at + 1 :]
    if way == 2:
        return dice.randbytes(dice.randrange(200))
    return body[: dice.randrange(8)] + (NESTED if way == 3 else NOT_TEXT)
