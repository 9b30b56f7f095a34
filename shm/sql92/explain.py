"""A filter's tree for people: what each part says of a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gantrymq.shm.sql92 import tree
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.sql92.evaluate import FilterFailed, value_of
from gantrymq.shm.sql92.rules import show
from gantrymq.shm.sql92.tree import Node


@dataclass(frozen=True, slots=True)
class Part:
    """A node: how deep it stands, what it is, and what it is worth for the message, if any."""

    depth: int
    text: str
    value: str


def explain(
    node: Node, properties: Mapping[str, str] | None, dialect: Dialect, depth: int = 0
) -> Iterator[Part]:
    """The node and all below it, each evaluated by itself: also what an AND does not look at.

    `value` is empty without a message, and `fails` where RocketMQ's evaluation would.
    """
    yield Part(depth, _name(node), "" if properties is None else _worth(node, properties, dialect))
    for child in tree.children(node):
        yield from explain(child, properties, dialect, depth + 1)


def _worth(node: Node, properties: Mapping[str, str], dialect: Dialect) -> str:
    try:
        value = value_of(node, properties, dialect)
    except FilterFailed:
        return "fails"
    if value is None:
        return "unknown" if tree.is_condition(node) else "no value"
    if isinstance(value, tree.Number):
        return str(value.value)
    return str(value).upper() if isinstance(value, bool) else repr(value)


def _name(node: Node) -> str:
    if isinstance(node, tree.Number | tree.Property | tree.Constant):
        return show(node)
    match node:
        case tree.Equal(_, tree.Constant(None)):
            return "IS NULL"
        case tree.Compare(order):
            return order.value
        case tree.Find(search, _, text, negated):
            return f"{'NOT ' if negated else ''}{search.value} '{text}'"
        case tree.In(_, texts):
            return f"IN ({', '.join(repr(text) for text in sorted(texts))})"
        case _:
            return _PLAIN[type(node)]


_PLAIN: Final[dict[type, str]] = {
    tree.All: "AND",
    tree.Any: "OR",
    tree.Equal: "=",
    tree.Negate: "-",
    tree.Cast: "as a condition (a property is never TRUE)",
    tree.Not: "NOT",
    tree.Like: "LIKE",
}
