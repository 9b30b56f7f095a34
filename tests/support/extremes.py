"""Requests at the ends of their types, made from the types themselves: none can be forgotten.

`requests_of` takes a request's struct, and what makes a sound request of it, and gives one request
for each field and each value that such a field could have at worst.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any

import msgspec

from gantrymq.shm.structs import Field

#: Numbers that somebody may compute with, store in a field of fixed width, or loop over.
_POWERS = (7, 8, 15, 16, 31, 32, 48, 53, 62, 63)
NUMBERS = sorted(
    {0, 1, -1, (1 << 64) - 1}
    | {(1 << power) + step for power in _POWERS for step in (-1, 0, 1) if power + step < 64}
    | {-(1 << power) - step for power in (15, 31, 63) for step in (-1, 0)}
)
#: What is no whole number, for a decoder that is not strict.
ODD: list[Any] = [None, math.nan, math.inf, -0.0, True, "7", b"7", [], {}]
TEXTS = ["", "\0", "\x01\x02", "%", "../x", "a" * 255, "a" * 256, "\U0001f600" * 2000, "a" * 14_000]
LONG = 3000

_encode = msgspec.msgpack.Encoder().encode


def plain(kind: object) -> object:
    """A type without its range; of several the first."""
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in (UnionType, typing.Union):
        return plain(next(arm for arm in typing.get_args(kind) if arm is not NoneType))
    return kind


def sound(kind: object) -> object:
    """The least value of a type."""
    kind = plain(kind)
    inside = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return [sound(item) for item in inside]
    simple: dict[object, object] = {int: 0, str: "", bytes: b"", bool: False}
    if kind in simple:
        return simple[kind]
    return {} if typing.get_origin(kind) is dict else []


def bounds_of(kind: object) -> set[int]:
    """Where a number's range ends, and what lies just outside."""
    found: set[int] = set()
    if typing.get_origin(kind) is typing.Annotated:
        for meta in kind.__metadata__:  # type: ignore[attr-defined]
            ends = [end for end in (meta.ge, meta.le) if end is not None]
            found |= {int(end) + step for end in ends for step in (-1, 0, 1)}
    return {number for number in found if -(1 << 63) <= number < 1 << 64}


def extremes(kind: object, base: object) -> Iterator[object]:
    """Values of a type at its ends, and some that are none of it."""
    bare, inside = plain(kind), typing.get_args(plain(kind))
    origin = typing.get_origin(bare)
    if bare is int:
        yield from sorted({*NUMBERS, *bounds_of(kind)})
    elif bare is str:
        yield from TEXTS
    elif bare is bytes:
        yield from (text.encode() for text in TEXTS)
    elif origin in _PARTS:
        yield from _PARTS[origin](inside, base)
    yield from ODD


def _tuples(inside: tuple[object, ...], base: object) -> Iterator[object]:
    whole = list(base) if isinstance(base, list | tuple) else [sound(item) for item in inside]
    for number, item in enumerate(inside):
        for value in extremes(item, whole[number]):
            yield [*whole[:number], value, *whole[number + 1 :]]


def _lists(inside: tuple[object, ...], base: object) -> Iterator[object]:
    item = inside[0]
    first = base[0] if isinstance(base, list) and base else sound(item)
    yield []
    yield [first] * 2
    yield [first] * 512
    yield [first] * LONG
    for value in extremes(item, first):
        yield [value]
        yield [first, value]


def _dicts(inside: tuple[object, ...], base: object) -> Iterator[object]:
    known = base if isinstance(base, dict) and base else {sound(inside[0]): sound(inside[1])}
    ((key, value),) = list(known.items())[:1]
    yield {}
    yield dict.fromkeys(range(LONG), value)
    for odd in extremes(inside[0], key):
        if not isinstance(odd, list | dict):  # no key
            yield {odd: value}
    for odd in extremes(inside[1], value):
        yield {key: odd}


_PARTS: dict[object, Callable[[tuple[object, ...], object], Iterator[object]]] = {
    tuple: _tuples,
    list: _lists,
    dict: _dicts,
}


def requests_of(
    kind: type[msgspec.Struct], base: Callable[[], Mapping[str, object]]
) -> Iterator[bytes]:
    """A request for each field and extreme; the other fields as in `base`, or the least.

    `base` is called for each: what one request names may be done with when the next one comes.
    """
    fields = msgspec.structs.fields(kind)

    def values() -> list[object]:
        return _values(kind, base())

    for number, field in enumerate(fields):
        for value in extremes(field.type, values()[number]):
            others = values()
            yield _packed(kind, [*others[:number], value, *others[number + 1 :]])
    yield _packed(kind, values()[: len(fields) // 2])


def sound_request(kind: type[msgspec.Struct], base: Mapping[str, object]) -> bytes:
    """A request whose fields are as in `base`, or the least."""
    return _packed(kind, _values(kind, base))


def _values(kind: type[msgspec.Struct], base: Mapping[str, object]) -> list[object]:
    fields = msgspec.structs.fields(kind)
    return [base.get(field.name, sound(field.type)) for field in fields]


def _packed(kind: type[msgspec.Struct], values: list[Any]) -> bytes:
    config = kind.__struct_config__
    if config.array_like:
        return _encode([config.tag, *values])
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    given = dict(zip(names, values, strict=False))
    return _encode({config.tag_field: config.tag, **given})


def kinds_of(union: object) -> tuple[type[msgspec.Struct], ...]:
    """The structs of a union, or the only one."""
    return typing.get_args(union) or (typing.cast("type[msgspec.Struct]", union),)


def words_of(field: Field) -> Iterator[bytes]:
    """Bytes at the ends of a word of shared memory, each once."""
    mask = (1 << 8 * field.size) - 1
    for number in dict.fromkeys(number & mask for number in NUMBERS):
        yield number.to_bytes(field.size, "little")
