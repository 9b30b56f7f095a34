"""A filter's tree as a program (shm/opcodes.py): words and a pool of bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm.opcodes import (
    AND_STEP,
    CAST,
    CODE,
    CODE_WORDS,
    COMPARE,
    CONTAINS,
    DOUBLE,
    END,
    ENDSWITH,
    EQUAL,
    EXOTIC,
    FIND,
    FIND_BITS,
    GE,
    GT,
    IN,
    INT,
    LE,
    LENIENT,
    LIKE,
    LITERAL,
    LOAD,
    LONG,
    LT,
    MASKS_MAX,
    NAME_COUNT,
    NAMES,
    NEGATE,
    NEGATED,
    NOT,
    NULL,
    OPS,
    OR_STEP,
    PART_WORDS,
    PLAIN,
    PUSH,
    STACK_MAX,
    STARTSWITH,
    TRUTH,
    WILD,
    WILD_BEYOND,
)
from gantrymq.shm.sql92 import searching, tree
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.sql92.tree import Order, Search, Width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gantrymq.shm.sql92.tree import Node

_ORDERS: Final = {Order.GT: GT, Order.GE: GE, Order.LT: LT, Order.LE: LE}
_SEARCHES: Final = {
    Search.CONTAINS: CONTAINS,
    Search.STARTSWITH: STARTSWITH,
    Search.ENDSWITH: ENDSWITH,
}
_WIDTHS: Final = {Width.INT: INT, Width.LONG: LONG, Width.DOUBLE: DOUBLE}

_PLAIN: Final[dict[type, int]] = {
    tree.Negate: NEGATE,
    tree.Cast: CAST,
    tree.Not: NOT,
    tree.Equal: EQUAL,
}

_PUSHES: Final = (PUSH, LOAD)
_TAKES: Final = (EQUAL, COMPARE, AND_STEP, OR_STEP)
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Program:
    """`words` int64 and `pool` uint8, as the kernel takes them."""

    words: NDArray[np.int64]
    pool: NDArray[np.uint8]
    names: tuple[str, ...]

    def listing(self) -> list[str]:
        """A line per instruction, for people."""
        found = []
        for number, at in enumerate(range(CODE, self.words.size, CODE_WORDS)):
            op, *operands = self.words[at : at + CODE_WORDS].tolist()
            found.append(f"{number:4} {self._show(op, operands)}".rstrip())
            if op == END:
                break
        return found

    def _show(self, op: int, operands: list[int]) -> str:
        first, second, third = operands
        if op == LOAD:
            return f"LOAD     {self.names[first]}"
        if op == PUSH:
            return f"PUSH     {self._constant(first, second, third)}"
        if op == COMPARE:
            return f"COMPARE  {[order.value for order in _ORDERS][first]}"
        if op == FIND:
            name = [search.value for search in _SEARCHES][first & 3]
            return (
                f"FIND     {'NOT ' if first & NEGATED else ''}{name} {self._text(second, third)!r}"
            )
        if op in (IN, LIKE):
            width = PART_WORDS if op == LIKE else 2
            rows = self.words[first : first + width * second].reshape(-1, width).tolist()
            return f"{OPS[op]:8} {', '.join(repr(self._text(*row[:2])) for row in rows[:8])}" + (
                ", ..." if second > 8 else ""
            )
        if op in (AND_STEP, OR_STEP):
            return f"{OPS[op]:8} else to {(first - CODE) // CODE_WORDS}"
        return OPS[op]

    def _text(self, at: int, size: int) -> str:
        return self.pool[at : at + size].tobytes().decode()

    def _constant(self, kind: int, low: int, high: int) -> str:
        if kind == LITERAL:
            return repr(self._text(low, high))
        if kind == DOUBLE:
            return str(struct.unpack("<d", struct.pack("<q", low))[0])
        return {NULL: "NULL", TRUTH: str(bool(low)).upper()}.get(kind, str(low))


def compile_program(node: Node, dialect: Dialect) -> Program:
    """The program of a tree."""
    return _Compiler(dialect).program(node)


class _Compiler:
    def __init__(self, dialect: Dialect) -> None:
        self._lenient = dialect is Dialect.SQL
        self._code: list[int] = []
        self._names: dict[str, int] = {}
        self._pool = bytearray()
        self._rows: list[int] = []  # (place, bytes) of strings, behind the code
        self._tables: list[tuple[int, int]] = []  # instructions that mean rows, by index of both
        self._exotic = False
        self._deep = self._deepest = 0

    def program(self, node: Node) -> Program:
        self._add(node)
        self._emit(END)
        assert self._deepest <= STACK_MAX, "the parser bounds how deep a text nests"
        rows_at = CODE + len(self._code)
        for place, row in self._tables:
            self._code[place] = rows_at + row
        names_at = rows_at + len(self._rows)
        for name in self._names:
            self._rows += self._keep(name)
        head = [0] * CODE
        head[LENIENT], head[NAMES] = self._lenient, names_at
        head[NAME_COUNT], head[EXOTIC] = len(self._names), self._exotic
        words = np.array([*head, *self._code, *self._rows], np.int64)
        # Words of the pool may be loaded whole, also its last one.
        pool = np.frombuffer(bytes(self._pool) + bytes(8), np.uint8)
        return Program(words, pool, tuple(self._names))

    def _emit(self, op: int, first: int = 0, second: int = 0, third: int = 0) -> int:
        """Add an instruction; the index of its first operand."""
        self._code += (op, first, second, third)
        self._deep += (op in _PUSHES) - (op in _TAKES)
        self._deepest = max(self._deepest, self._deep)
        return len(self._code) - CODE_WORDS + 1

    def _keep(self, text: str) -> tuple[int, int]:
        data = text.encode("utf-8", "surrogatepass")
        self._exotic = self._exotic or _REPLACEMENT in text
        return self._keep_bytes(data), len(data)

    def _keep_bytes(self, data: bytes) -> int:
        self._pool += data
        return len(self._pool) - len(data)

    def _add(self, node: Node) -> None:
        match node:
            case tree.Constant(value):
                self._add_constant(value)
            case tree.Number(value, width):
                kind = _WIDTHS[width]
                word = _bits(float(value)) if kind == DOUBLE else int(value)
                self._emit(PUSH, kind, word)
            case tree.Property(name):
                self._emit(LOAD, self._names.setdefault(name, len(self._names)))
            case tree.All(operands) | tree.Any(operands):
                self._add_junction(isinstance(node, tree.Any), operands)
            case tree.Find(text=""):
                self._emit(PUSH, TRUTH, 0)  # FL-44: the operand is not looked at
            case _:
                for child in tree.children(node):
                    self._add(child)
                self._add_operator(node)

    def _add_constant(self, value: str | bool | None) -> None:
        if isinstance(value, str):
            self._emit(PUSH, LITERAL, *self._keep(value))
        elif value is None:
            self._emit(PUSH, NULL)
        else:
            self._emit(PUSH, TRUTH, int(value))

    def _add_operator(self, node: Node) -> None:
        match node:
            case tree.Compare(order):
                self._emit(COMPARE, _ORDERS[order])
            case tree.Find(search, _, text, negated):
                bits = _SEARCHES[search] | (NEGATED if negated else 0)
                row = self._keep(text)
                if search is Search.CONTAINS:
                    bits |= self._keep_bytes(searching.fallbacks(_utf8(text))) << FIND_BITS
                self._emit(FIND, bits, *row)
            case tree.In(_, texts):
                data = sorted(texts, key=lambda text: (len(_utf8(text)), _utf8(text)))
                self._emit_rows(IN, [self._keep(text) for text in data], 0)
            case tree.Like(_, pattern):
                self._add_like(pattern)
            case _:
                self._emit(_PLAIN[type(node)])

    def _add_like(self, pattern: tuple[tuple[str | None, ...], ...]) -> None:
        """Each part's bytes, then as many of its mask: 1 stands for any character.

        Those between the first and the last are searched, by tables; empty ones are everywhere.
        """
        kind = _kind_of(pattern)
        rows = []
        for number, part in enumerate(pattern):
            between = 0 < number < len(pattern) - 1
            if between and not part:
                continue
            place, size = self._keep("".join("_" if want is None else want for want in part))
            for want in part:
                self._pool += b"\1" if want is None else bytes(len(_utf8(want)))
            rows.append((place, size, *self._search(part, between and kind != WILD_BEYOND)))
        self._emit_rows(LIKE, rows, kind)

    def _search(self, part: tuple[str | None, ...], searched: bool) -> tuple[int, int]:
        """Where a part's table is, and the words of its masks."""
        if not searched:
            return 0, 0
        if None not in part:
            return self._keep_bytes(searching.fallbacks(_utf8("".join(map(str, part))))), 0
        words = searching.mask_words(part)
        assert words <= MASKS_MAX, "the parser bounds how long a pattern is"
        return self._keep_bytes(searching.masks(part)), words

    def _emit_rows(self, op: int, rows: Sequence[tuple[int, ...]], third: int) -> None:
        place = self._emit(op, 0, len(rows), third)
        self._tables.append((place, len(self._rows)))
        for row in rows:
            self._rows += row

    def _add_junction(self, is_any: bool, operands: tuple[Node, ...]) -> None:
        self._emit(PUSH, TRUTH, int(not is_any))
        steps = []
        for operand in operands:
            self._add(operand)
            steps.append(self._emit(OR_STEP if is_any else AND_STEP))
        for step in steps:
            self._code[step] = CODE + len(self._code)


def _kind_of(pattern: tuple[tuple[str | None, ...], ...]) -> int:
    """LIKE's third operand: PLAIN, WILD or WILD_BEYOND."""
    characters = [want for part in pattern for want in part]
    if None not in characters:
        return PLAIN
    return WILD if all(want is None or want.isascii() for want in characters) else WILD_BEYOND


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _bits(value: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits
