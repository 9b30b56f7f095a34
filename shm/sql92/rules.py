"""What may be compared with what, decided before any message is seen (filtering.md 3.5)."""

from __future__ import annotations

from collections.abc import Sequence

from gantrymq.shm.sql92 import tree
from gantrymq.shm.sql92.numbers import compare_numbers
from gantrymq.shm.sql92.tokens import shorten
from gantrymq.shm.sql92.tree import Constant, Node, Number, Order, Property, is_condition


def as_condition(node: Node) -> Node:
    """A node as TRUE, FALSE or unknown; a property becomes a Cast. Raises ValueError."""
    if isinstance(node, Property):
        return tree.Cast(node)
    if not is_condition(node):
        raise ValueError(f"{_brief(node)} is no condition: compare it with something")
    return node


def equal(left: Node, right: Node) -> Node:
    """Left = right. Raises ValueError."""
    for node in (left, right):
        if isinstance(node, Constant) and node.value is None:
            raise ValueError("nothing equals NULL: write IS NULL or IS NOT NULL")
    truth = isinstance(left, Constant) and isinstance(left.value, bool)
    plain = isinstance(right, Number) and right.plain
    if truth and (plain or (isinstance(right, Constant) and isinstance(right.value, str))):
        raise ValueError(f"{_brief(left)} can't be compared with {_brief(right)}")
    return tree.Equal(left, right)


def compare(order: Order, left: Node, right: Node) -> Node:
    """Left > right and the like. Raises ValueError."""
    for node in (left, right):
        if isinstance(node, Constant) or is_condition(node):
            raise ValueError(
                f"{_brief(node)} has no order: only numbers and properties are ordered"
            )
    return tree.Compare(order, left, right)


def between(value: Node, low: Node, high: Node, negated: bool) -> Node:
    """Value [NOT] BETWEEN low AND high (FL-51). Raises ValueError."""
    if negated:
        return tree.Any((compare(Order.LT, value, low), compare(Order.GT, value, high)))
    found = tree.All((compare(Order.GE, value, low), compare(Order.LE, value, high)))
    constant = isinstance(low, Number) and isinstance(high, Number) and low.plain and high.plain
    if constant and compare_numbers(low, high) > 0:  # type: ignore[arg-type]
        raise ValueError(
            f"nothing is between {_brief(low)} and {_brief(high)}: the lower one first"
        )
    return found


def in_list(value: Node, items: Sequence[Node]) -> Node:
    """Value IN (...): strings exactly, numbers as by =. Raises ValueError."""
    if not isinstance(value, Property):
        raise ValueError(f"{_brief(value)} IN (...): only a property can be in a list")
    texts = frozenset(
        item.value for item in items if isinstance(item, Constant) and isinstance(item.value, str)
    )
    found: list[Node] = [tree.In(value, texts)] if texts else []
    found += [tree.Equal(value, item) for item in dict.fromkeys(items) if isinstance(item, Number)]
    return found[0] if len(found) == 1 else tree.Any(tuple(found))


def like(value: Node, pattern: str, escape: str) -> Node:
    """Value LIKE pattern. Raises ValueError."""
    if not isinstance(value, Property):
        raise ValueError(f"{_brief(value)} LIKE ...: only a property can be")
    parts: list[tuple[str | None, ...]] = []
    part: list[str | None] = []
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            literal = next(characters, None)
            if literal is None:
                raise ValueError(f"the pattern ends in its ESCAPE character {escape}")
            part.append(literal)
        elif character == "%":
            parts.append(tuple(part))
            part = []
        else:
            part.append(None if character == "_" else character)
    return tree.Like(value, (*parts, tuple(part)))


def negate(node: Node) -> Node:
    """-node."""
    if isinstance(node, Number):
        return Number(0 - node.value, node.width, plain=False)  # 0.0 stays it, and is not -0.0
    return tree.Negate(node)


def show(node: Node) -> str:
    """A node for people."""
    if isinstance(node, Number):
        return str(node.value)
    if isinstance(node, Property):
        return node.name
    if isinstance(node, Constant):
        if node.value is None:
            return "NULL"
        return f"'{node.value}'" if isinstance(node.value, str) else str(node.value).upper()
    return "a condition" if is_condition(node) else "this"


def _brief(node: Node) -> str:
    """A node in an error, however long its text is."""
    return shorten(show(node))
