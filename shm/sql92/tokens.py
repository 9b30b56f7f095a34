"""A filter's text as tokens (filtering.md 3.1)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from gantrymq.shm.errors import FilterSyntaxError
from gantrymq.shm.sql92.dialect import Dialect

#: Characters of one token in an error, and of the rest of a text that can't be read.
SHOWN_MAX: Final = 40


def shorten(text: str, quote: str = "") -> str:
    """A piece of a filter for an error: if it is long its beginning, and how much there is."""
    if len(text) <= SHOWN_MAX:
        return f"{quote}{text}{quote}"
    return f"{quote}{text[:SHOWN_MAX]}...{quote} ({len(text)} characters)"


class Kind(Enum):
    """What a token is; operators and keywords are told by their text."""

    WORD = auto()  # operator, bracket, comma, or a keyword in capitals
    NAME = auto()
    STRING = auto()
    DECIMAL = auto()
    FLOAT = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """`text` is what was written, of a string without its quotes; `at` counts characters."""

    kind: Kind
    text: str
    at: int

    def __str__(self) -> str:
        if self.kind is Kind.END:
            return "the end"
        return shorten(self.text, "'" if self.kind is Kind.STRING else "")


_SEARCHES: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", *_SEARCHES)
)
_SQL_KEYWORDS: Final = _KEYWORDS | {"LIKE", "ESCAPE"}
# FL-22: a dot, an exponent or both make a float. Alternatives in the order of what is longest.
_PATTERN: Final = re.compile(
    r"""
    (?P<skip>   [ \t\r\n\f]+ | --[^\r\n]*(?:\r\n|\r|\n) | /\*.*?\*/ )
  | (?P<FLOAT>  [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)?
              | [0-9]+[eE][+-]?[0-9]+ )
  | (?P<DECIMAL>[1-9][0-9]*[lL]? | 0 )
  | (?P<NAME>   [A-Za-z_$][A-Za-z0-9_$]* )
  | (?P<STRING> '(?:''|[^'])*' )
  | (?P<WORD>   <> | >= | <= | [=><(),+-] )
  | (?P<unequal> != )
    """,
    re.VERBOSE | re.DOTALL,
)


class Tokens:
    """Reads a text token by token: what is not asked for is not read (FL-25)."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self._text = text
        self._sql = dialect is Dialect.SQL
        self._keywords = _SQL_KEYWORDS if self._sql else _KEYWORDS
        self._at = 0

    def __call__(self) -> Token:
        """The next token. Raises FilterSyntaxError at an illegal character."""
        while self._at < len(self._text):
            found = _PATTERN.match(self._text, self._at)
            if found is None or (found.lastgroup == "unequal" and not self._sql):
                raise self._illegal()
            at, self._at = self._at, found.end()
            if found.lastgroup != "skip":
                return self._token(found, at)
        return Token(Kind.END, "", len(self._text))

    def _token(self, found: re.Match[str], at: int) -> Token:
        text, group = found.group(), found.lastgroup
        if group == "unequal":
            return Token(Kind.WORD, "<>", at)
        if group == "STRING":
            return Token(Kind.STRING, text[1:-1].replace("''", "'"), at)
        if group == "NAME" and text.upper() in self._keywords:
            return Token(Kind.WORD, text.upper(), at)
        assert group is not None, "each alternative has a name"
        return Token(Kind[group], text, at)

    def _illegal(self) -> FilterSyntaxError:
        rest = self._text[self._at : self._at + SHOWN_MAX]
        if rest[0] == "'":
            what = "a string that does not end: it lacks its closing '"
        elif rest.startswith("/*"):
            what = "a comment that does not end: it lacks its */"
        else:
            what = f"{rest[0]!r} is no part of an expression"
        return FilterSyntaxError(
            f"position {self._at}: {what}", position=self._at, token=rest[0], expected=""
        )


NextToken = Callable[[], Token]
