"""What a filter says, as a tree of what can be evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

#: A 32-bit integer, a longer one, a float: the constant's type rules how a property is read.
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1


class Order(Enum):
    """How two values are to stand to each other."""

    GT = ">"
    GE = ">="
    LT = "<"
    LE = "<="


class Search(Enum):
    """What a string is looked for in."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


class Width(Enum):
    """Types of numbers as Java has them."""

    INT = "int"
    LONG = "long"
    DOUBLE = "double"


@dataclass(frozen=True, slots=True)
class Constant:
    """A string, TRUE, FALSE or NULL."""

    value: str | bool | None


@dataclass(frozen=True, slots=True)
class Number:
    """A numeric constant; `plain` if it stands there without a minus (FL-24)."""

    value: int | float
    width: Width
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Property:
    """A message's property by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Negate:
    """-x, where x is no constant: unknown for a string, so for each property."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Cast:
    """A property as a condition: never true (FL-43)."""

    operand: Property


@dataclass(frozen=True, slots=True)
class Not:
    """Logical not."""

    operand: Node


@dataclass(frozen=True, slots=True)
class All:
    """AND of two or more."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Any:
    """OR of two or more."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Equal:
    """left = right; <> is its Not, IS NULL is equality with NULL."""

    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Compare:
    """left > right and the like."""

    order: Order
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Find:
    """[NOT] CONTAINS, STARTSWITH, ENDSWITH: false, not unknown, without a value (FL-44)."""

    search: Search
    operand: Node
    text: str
    negated: bool


@dataclass(frozen=True, slots=True)
class In:
    """Exactly one of these strings."""

    operand: Property
    texts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Like:
    """% and _ of SQL: parts between the %, each a sequence of characters or None for any one."""

    operand: Property
    pattern: tuple[tuple[str | None, ...], ...]


Node = (
    Constant | Number | Property | Negate | Cast | Not | All | Any | Equal | Compare | Find | In
    | Like
)  # fmt: skip
#: Nodes whose value is TRUE, FALSE or unknown.
CONDITIONS: Final = (Cast, Not, All, Any, Equal, Compare, Find, In, Like)


def is_condition(node: Node) -> bool:
    """Whether a node's value is TRUE, FALSE or unknown (FL-50)."""
    return isinstance(node, CONDITIONS) or (
        isinstance(node, Constant) and not isinstance(node.value, str)
    )


def children(node: Node) -> tuple[Node, ...]:
    """The nodes that a node is made of, in the order of evaluation."""
    if isinstance(node, All | Any):
        return node.operands
    if isinstance(node, Equal | Compare):
        return (node.left, node.right)
    if isinstance(node, Negate | Cast | Not | Find | In | Like):
        return (node.operand,)
    return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    for child in children(node):
        yield from walk(child)
