"""RocketMQ's grammar (filtering.md 3.2), by recursive descent with one token ahead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NoReturn

from gantrymq.shm.errors import FilterSyntaxError
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.opcodes import NAMES_MAX
from gantrymq.shm.sql92 import tree
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.sql92.rules import (
    as_condition,
    between,
    compare,
    equal,
    in_list,
    like,
    negate,
)
from gantrymq.shm.sql92.tokens import Kind, Token, Tokens
from gantrymq.shm.sql92.tree import Node, Order, Search, Width

#: Characters of a text, and how deep it may nest: both bound what a hostile one costs.
TEXT_MAX: Final = 65_536
DEPTH_MAX: Final = 100
#: Characters of a LIKE pattern: a part with `_` is looked for by masks with a bit for each, which
#: takes as long as the value has, times the masks' words (shm.opcodes.MASKS_MAX).
LIKE_MAX: Final = 1024
_LONG_DIGITS: Final = 20  # of a decimal that is above 2^63 - 1 whatever they are
_DOUBLE_LEAST: Final = 5e-324  # Java's Double.MIN_VALUE, 4.9E-324 (FL-30)
_COMPARISONS: Final = frozenset({">", ">=", "<", "<="})
_SEARCHES: Final = frozenset(search.value for search in Search)
_AFTER_NOT: Final = "CONTAINS, STARTSWITH, ENDSWITH, BETWEEN or IN"


def parse(text: str, dialect: Dialect = Dialect.SQL) -> Node:
    """The tree of a text. Raises FilterSyntaxError: position, token, and what was expected."""
    if len(text) > TEXT_MAX:
        raise FilterSyntaxError(
            f"the filter has {len(text)} characters, {TEXT_MAX} are allowed",
            position=TEXT_MAX, token="", expected="",
        )  # fmt: skip
    return _Parser(text, dialect).whole()


class _Parser:
    def __init__(self, text: str, dialect: Dialect) -> None:
        self._next = Tokens(text, dialect)
        self._sql = dialect is Dialect.SQL
        self._token = self._next()
        self._depth = 0

    def whole(self) -> Node:
        """FL-50: an expression that is a condition; FL-25: what follows may be ignored."""
        start = self._token
        found = self._checked(start, as_condition, self._or())
        if self._sql and self._token.kind is not Kind.END:
            self._refuse("AND, OR or the end of the expression")
        names = {node.name for node in tree.walk(found) if isinstance(node, tree.Property)}
        if len(names) > NAMES_MAX:
            self._fail(start, f"the filter names {len(names)} properties, {NAMES_MAX} are allowed")
        return found

    # ------------------------------------------------------------------------------------ levels

    def _or(self) -> Node:
        at, first = self._token, self._and()
        if not self._is("OR"):
            return first
        found = [self._checked(at, as_condition, first)]
        while self._take("OR"):
            at = self._token
            found.append(self._checked(at, as_condition, self._and()))
        return tree.Any(tuple(found))

    def _and(self) -> Node:
        at, first = self._token, self._equality()
        if not self._is("AND"):
            return first
        found = [self._checked(at, as_condition, first)]
        while self._take("AND"):
            at = self._token
            found.append(self._checked(at, as_condition, self._equality()))
        return tree.All(tuple(found))

    def _equality(self) -> Node:
        left, depth = self._comparison(), self._depth
        while self._is("=", "<>", "IS"):
            self._deepen()
            left = self._one_equality(left, self._advance())
        self._depth = depth
        return left

    def _one_equality(self, left: Node, operator: Token) -> Node:
        if operator.text == "IS":
            negated = self._take("NOT")
            self._expect("NULL")
            found: Node = tree.Equal(left, tree.Constant(None))
        else:
            negated = operator.text == "<>"
            found = self._checked(operator, equal, left, self._comparison())
        return tree.Not(found) if negated else found

    def _comparison(self) -> Node:
        starts_with_not = self._is("NOT")
        left, depth = self._unary(), self._depth
        if self._sql and starts_with_not and self._is_operator():
            self._refuse_not()
        while True:
            if self._token.kind is not Kind.WORD:
                break
            operator = self._token
            found = self._one_comparison(left, operator)
            if found is None:
                break
            left = found
            self._deepen()
        self._depth = depth
        return left

    def _one_comparison(self, left: Node, operator: Token) -> Node | None:
        """What stands behind `left`; None if nothing of this level does."""
        if operator.text in _COMPARISONS:
            self._advance()
            return self._checked(operator, compare, Order(operator.text), left, self._unary())
        negated = self._take("NOT")
        word = self._token.text if self._token.kind is Kind.WORD else ""
        if word in _SEARCHES:
            self._advance()
            return tree.Find(Search(word), left, self._string(), negated)
        if word == "BETWEEN":
            self._advance()
            low = self._unary()
            self._expect("AND")
            return self._checked(operator, between, left, low, self._unary(), negated)
        if word == "IN":
            self._advance()
            found = self._checked(operator, in_list, left, self._list())
            return tree.Not(found) if negated else found
        if word == "LIKE":
            self._advance()
            found = self._like(operator, left)
            return tree.Not(found) if negated else found
        if negated:
            self._refuse(f"{_AFTER_NOT}{' or LIKE' if self._sql else ''} behind NOT")
        return None

    def _like(self, operator: Token, left: Node) -> Node:
        pattern, escape = self._string(), ""
        if len(pattern) > LIKE_MAX:
            self._fail(operator, f"a pattern of {len(pattern)} characters, {LIKE_MAX} are allowed")
        if self._take("ESCAPE"):
            at = self._token
            escape = self._string()
            if len(escape) != 1:
                self._fail(at, "ESCAPE takes one character")
        return self._checked(operator, like, left, pattern, escape)

    def _unary(self) -> Node:
        depth = self._depth
        self._deepen()
        token = self._token
        if self._take("+"):
            found = self._unary()
        elif self._take("-"):
            found = negate(self._unary())
        elif self._take("NOT"):
            at = self._token
            found = tree.Not(self._checked(at, as_condition, self._unary()))
        elif self._take("("):
            found = self._or()
            self._expect(")")
        else:
            found = self._primary(token)
        self._depth = depth
        return found

    def _primary(self, token: Token) -> Node:
        if token.kind is Kind.STRING:
            found: Node = tree.Constant(token.text)
        elif token.kind is Kind.NAME:
            found = tree.Property(token.text)
        elif token.kind is Kind.DECIMAL:
            found = self._decimal(token)
        elif token.kind is Kind.FLOAT:
            found = self._float(token)
        elif token.kind is Kind.WORD and token.text in ("TRUE", "FALSE", "NULL"):
            found = tree.Constant({"TRUE": True, "FALSE": False, "NULL": None}[token.text])
        else:
            self._refuse("a property, a constant or '('")
        self._advance()
        return found

    # --------------------------------------------------------------------------------- constants

    def _decimal(self, token: Token) -> Node:
        digits = token.text.rstrip("lL")  # they begin with none that counts for nothing
        value = int(digits[:_LONG_DIGITS])
        if len(digits) >= _LONG_DIGITS or value > tree.LONG_MAX:
            self._fail(token, f"{token} is above {tree.LONG_MAX}: write it with .0 at its end")
        return tree.Number(value, Width.INT if value <= tree.INT_MAX else Width.LONG)

    def _float(self, token: Token) -> Node:
        value = float(token.text)
        zero = value == 0 and not any(
            digit in "123456789" for digit in token.text.upper().split("E")[0]
        )
        if zero and self._sql:
            return tree.Number(0.0, Width.DOUBLE)
        if math.isinf(value) or value < _DOUBLE_LEAST:
            hint = ": write 0" if zero else ""
            self._fail(token, f"{token} is outside of a double's range{hint}")
        return tree.Number(value, Width.DOUBLE)

    def _string(self) -> str:
        if self._token.kind is not Kind.STRING:
            self._refuse("a string in '...'")
        return self._advance().text

    def _list(self) -> list[Node]:
        """FL-50: strings; in `sql` numbers, too."""
        self._expect("(")
        found = [self._item()]
        while self._take(","):
            found.append(self._item())
        self._expect(")")
        return found

    def _item(self) -> Node:
        minus = self._sql and self._take("-")
        token = self._token
        if self._sql and token.kind in (Kind.DECIMAL, Kind.FLOAT):
            found = self._primary(token)
            return negate(found) if minus else found
        if token.kind is not Kind.STRING or minus:
            self._refuse("a number" if minus else "a string in '...'")
        return self._primary(token)

    # ------------------------------------------------------------------------------------ tokens

    def _is(self, *words: str) -> bool:
        return self._token.kind is Kind.WORD and self._token.text in words

    def _is_operator(self) -> bool:
        words = ("=", "<>", "IS", "LIKE", "BETWEEN", "IN", *_COMPARISONS, *_SEARCHES)
        return self._is(*words)

    def _advance(self) -> Token:
        token = self._token
        self._token = self._next()
        return token

    def _take(self, word: str) -> bool:
        found = self._is(word)
        if found:
            self._advance()
        return found

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._refuse(word)

    def _deepen(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(self._token, f"nested more than {DEPTH_MAX} deep")

    # ------------------------------------------------------------------------------------ errors

    def _checked(self, at: Token, rule: Callable[..., Node], *parts: object) -> Node:
        """A node by a rule that may refuse it."""
        try:
            return rule(*parts)
        except ValueError as error:
            require_ours(error)
            self._fail(at, str(error))

    def _refuse(self, expected: str) -> NoReturn:
        token = self._token
        raise FilterSyntaxError(
            f"position {token.at}: {token} where {expected} is expected",
            position=token.at, token=str(token), expected=expected,
        )  # fmt: skip

    def _refuse_not(self) -> NoReturn:
        token = self._token
        raise FilterSyntaxError(
            f"position {token.at}: {token} behind NOT: NOT binds tighter than any comparison, write"
            " NOT (a = 1)",
            position=token.at, token=str(token), expected="NOT ( ... )",
        )  # fmt: skip

    def _fail(self, token: Token, what: str) -> NoReturn:
        raise FilterSyntaxError(
            f"position {token.at}: {what}", position=token.at, token=str(token), expected=""
        )
