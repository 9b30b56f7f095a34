"""msgpack as a fuzzer writes it: of the right shape with wrong values, cut, mixed up, or noise."""

from __future__ import annotations

import typing

import msgspec
from hypothesis import strategies as st

#: What a number may be on the wire, with those that agents are tempted to compute with.
NUMBERS = st.one_of(
    st.integers(-3, 40),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([2**31, 2**63, 2**64 - 1]),
)
_ATOMS = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.floats(), st.text(max_size=40), st.binary(max_size=40)
)
ANYTHING = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
_encode = msgspec.msgpack.Encoder().encode


def values_of(kind: object) -> st.SearchStrategy[object]:
    """Values of a field's type, and now and then anything else."""
    return st.one_of(_rightly(kind), _rightly(kind), _rightly(kind), ANYTHING)


def _rightly(kind: object) -> st.SearchStrategy[object]:
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    simple: dict[object, st.SearchStrategy[object]] = {
        int: NUMBERS,
        str: st.text(max_size=300),
        bytes: st.binary(max_size=20),
        bool: st.booleans(),
    }
    if kind in simple:
        return simple[kind]
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return st.lists(_rightly(inside[0]), max_size=30)
    if origin is tuple:
        return st.lists(_rightly(inside[0]), max_size=6)
    if origin is dict:
        return st.dictionaries(_rightly(inside[0]), _rightly(inside[1]), max_size=30)
    return ANYTHING


def structures(kind: type[msgspec.Struct]) -> st.SearchStrategy[bytes]:
    """Packed structs of a kind: each field right or wrong, some missing, some too many."""
    fields = msgspec.structs.fields(kind)
    config = kind.__struct_config__
    parts = st.tuples(*(values_of(field.type) for field in fields))
    if config.array_like:
        whole = st.tuples(parts, st.lists(ANYTHING, max_size=2), st.integers(0, len(fields)))
        return whole.map(lambda x: _encode([config.tag, *x[0][: len(x[0]) - x[2] // 2], *x[1]]))
    names = [field.encode_name for field in fields]
    whole_map = st.tuples(parts, st.sets(st.sampled_from([*names, ""]), max_size=1), ANYTHING)

    def packed(drawn: tuple[tuple[object, ...], set[str], object]) -> bytes:
        given = dict(zip(names, drawn[0], strict=True))
        left = {name: value for name, value in given.items() if name not in drawn[1]}
        return _encode(
            {config.tag_field: config.tag, **left, **({"": drawn[2]} if drawn[1] else {})}
        )

    return whole_map.map(packed)


def spoiled(good: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """The same with a byte changed, cut off, longer, or as it is."""

    def spoil(drawn: tuple[bytes, int, int, int]) -> bytes:
        data, how, at, value = drawn
        at %= len(data) or 1
        return (data, data[:at] + bytes([value]) + data[at + 1 :], data[:at], data + b"\xc0")[how]

    how = st.tuples(good, st.integers(0, 3), st.integers(0, 1 << 20), st.integers(0, 255))
    return how.map(spoil)


#: What no decoder of ours may be ended by: text that is no UTF-8, values nested without end.
NESTED = b"\x91" * 30_000 + b"\xc0"
NOT_TEXT = b"\xa2\xff\xfe"
