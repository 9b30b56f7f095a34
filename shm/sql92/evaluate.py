"""What a filter says of one message: the reference, in plain Python (filtering.md 3.3, 3.4).

Values at run time: str, bool, Number or None for unknown. Deep trees are bounded by the parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gantrymq.shm.sql92 import tree
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.sql92.numbers import (
    compare_numbers,
    order_doubles,
    read_double,
    read_integer,
    read_number,
)
from gantrymq.shm.sql92.searching import find_part
from gantrymq.shm.sql92.tree import Node, Number, Order, Search, Width

Value = str | bool | Number | None


class FilterFailed(Exception):
    """RocketMQ's evaluation would throw: no match (FL-15)."""


def evaluate(node: Node, properties: Mapping[str, str], dialect: Dialect) -> bool | None:
    """TRUE, FALSE or None for unknown. Raises FilterFailed, in dialect `rocketmq` only."""
    found = value_of(node, properties, dialect)
    assert found is None or isinstance(found, bool), "the parser let only conditions through"
    return found


def value_of(node: Node, properties: Mapping[str, str], dialect: Dialect) -> Value:
    """What any part of a filter is worth. Raises FilterFailed, in dialect `rocketmq` only."""
    return _Evaluation(properties, dialect is Dialect.SQL).value(node)


class _Evaluation:
    def __init__(self, properties: Mapping[str, str], lenient: bool) -> None:
        self._properties = properties
        self._lenient = lenient
        self._numbers: dict[tuple[str, Width | None], int | float | None] = {}

    def value(self, node: Node) -> Value:
        """What a node is worth; a condition's is bool or None."""
        match node:
            case tree.Constant(value):
                return value
            case tree.Number():
                return node
            case tree.Property(name):
                return self._properties.get(name) or None  # SF-28: an empty one is none
            case tree.All() | tree.Any():
                return self._junction(node)
            case tree.Equal(left, right):
                return self._equal(self.value(left), self.value(right))
            case tree.Compare(order, left, right):
                return self._compare(order, self.value(left), self.value(right))
            case tree.Find(text=""):
                return False  # FL-44: whatever the operand is, also if it failed
            case _:
                return _of_one(node, self.value(node.operand))

    def _junction(self, node: tree.All | tree.Any) -> bool | None:
        """FL-42: from left to right, until it is decided."""
        decisive = isinstance(node, tree.Any)
        unknown = False
        for operand in node.operands:
            found = self.value(operand)
            if found is decisive:
                return decisive
            unknown = unknown or found is None
        return None if unknown else not decisive

    # -------------------------------------------------------------------------------- comparisons

    def _equal(self, left: Value, right: Value) -> bool | None:
        if left is None:
            return True if right is None else None  # FL-40; both absent: FL-34
        if right is None:
            return False
        if isinstance(left, str) and isinstance(right, str):
            return left == right
        found = self._order(left, right)
        return found if found is None or isinstance(found, bool) else found == 0

    def _compare(self, order: Order, left: Value, right: Value) -> bool | None:
        if left is None or right is None:
            return None
        found = self._order(left, right)
        if found is None or isinstance(found, bool):
            return found
        return holds(order, found)

    def _order(self, left: str | bool | Number, right: str | bool | Number) -> int | bool | None:
        """-1, 0, 1; False for what can't be compared, None for unknown. Raises FilterFailed."""
        if isinstance(left, bool):
            return self._order_truth(left, right)
        if isinstance(left, str):
            if isinstance(right, bool):  # FL-33
                return _sign(_is_true(left), right)
            if isinstance(right, str):
                return self._order_texts(left, right)
            return self._order_read(left, right, 1)
        if isinstance(right, bool):
            return False
        if isinstance(right, str):
            return self._order_read(right, left, -1)
        return compare_numbers(left, right)

    def _order_truth(self, left: bool, right: str | bool | Number) -> int | bool | None:
        if isinstance(right, bool):
            return _sign(left, right)
        if isinstance(right, Number):
            return False
        if not self._lenient:
            raise FilterFailed  # FL-33
        return _sign(left, _is_true(right))

    def _order_texts(self, left: str, right: str) -> int | None:
        """FL-34: both as doubles."""
        ours, theirs = self._read(left, Width.DOUBLE), self._read(right, Width.DOUBLE)
        if ours is None or theirs is None:
            self._require_lenient()
            return None
        return order_doubles(float(ours), float(theirs))

    def _order_read(self, text: str, number: Number, sign: int) -> int | None:
        """A property against a number; `sign` -1 if the number is on the left."""
        value = self._read(text, None if self._lenient else number.width)
        if value is None:
            self._require_lenient()
            return None
        width = Width.DOUBLE if isinstance(value, float) else Width.LONG
        return sign * compare_numbers(Number(value, width), number)

    def _read(self, text: str, width: Width | None) -> int | float | None:
        """A text as a number of this width, or of any: once, however often it is compared."""
        key = (text, width)
        if key not in self._numbers:
            value = _number(text, width)
            # Java's Double.compare tells -0.0 from 0.0 (FL-32); as a number it is zero.
            is_zero = self._lenient and isinstance(value, float) and value == 0
            self._numbers[key] = 0.0 if is_zero else value
        return self._numbers[key]

    def _require_lenient(self) -> None:
        if not self._lenient:
            raise FilterFailed


def _number(text: str, width: Width | None) -> int | float | None:
    if width is None:
        return read_number(text)
    return read_double(text) if width is Width.DOUBLE else read_integer(text, width)


def _is_true(text: str) -> bool:
    """FL-33."""
    return len(text) == 4 and text.lower() == "true"


def _of_one(
    node: tree.Negate | tree.Cast | tree.Not | tree.Find | tree.In | tree.Like, value: Value
) -> bool | None:
    """What is asked of a single value; all but Find are unknown without one."""
    if isinstance(node, tree.Find):
        return _find(node, value)
    if value is None or isinstance(node, tree.Negate):  # numbers were negated by the parser
        return None
    if isinstance(node, tree.Not):
        return not value
    if isinstance(node, tree.In):
        return value in node.texts
    return isinstance(node, tree.Like) and is_like(str(value), node.pattern)  # a Cast: FL-43


_HOLDS: Final = {
    Order.GT: (False, False, True),
    Order.GE: (False, True, True),
    Order.LT: (True, False, False),
    Order.LE: (True, True, False),
}


def holds(order: Order, sign: int) -> bool:
    """Whether a comparison that came out as -1, 0 or 1 is what was asked for."""
    return _HOLDS[order][sign + 1]


def _sign(left: bool, right: bool) -> int:
    return left - right


def _find(node: tree.Find, value: Value) -> bool:
    """FL-44: false, negated or not, where there is nothing to look in."""
    if not isinstance(value, str):
        return False
    if node.search is Search.CONTAINS:
        found = node.text in value
    elif node.search is Search.STARTSWITH:
        found = value.startswith(node.text)
    else:
        found = value.endswith(node.text)
    return found is not node.negated


def is_like(text: str, pattern: tuple[tuple[str | None, ...], ...]) -> bool:
    """Whether parts stand in a text in this order: the first at its start, the last at its end.

    Each part is taken where it fits first: no backtracking, so no pattern takes long.
    """
    first, *middle = pattern
    if not middle:
        return len(text) == len(first) and _fits(text, 0, first)
    last = middle.pop()
    end = len(text) - len(last)
    if end < len(first) or not _fits(text, 0, first) or not _fits(text, end, last):
        return False
    at = len(first)
    for part in middle:
        at = find_part(text, at, end, part)
        if at < 0:
            return False
    return True


def _fits(text: str, at: int, part: tuple[str | None, ...]) -> bool:
    return all(want is None or text[at + place] == want for place, want in enumerate(part))
