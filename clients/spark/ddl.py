"""Option `schema`: that its text is a list of fields in Spark's DDL, of types that JSON has.

Spark reads the text inside of its own `body struct<...>` and tells of what it finds wrong there,
not of the option; and it takes types whose values are made of binary parts for structs of these.
"""

from __future__ import annotations

import re
from typing import Final

from gantrymq.shm.errors import SettingIllegal

#: Words of Spark's for types that JSON has values of; all others are refused.
_TYPES: Final = frozenset(
    (
        "BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG",
        "FLOAT", "REAL", "DOUBLE", "DECIMAL", "DEC", "NUMERIC", "STRING", "BINARY",
        "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "ARRAY", "MAP", "STRUCT",
    )
)  # fmt: skip
#: What lies between tokens, and a token: a name in backquotes, a text, a word, or a sign.
_BLANK: Final = r"(?:\s|--[^\n]*|/\*.*?\*/)*"
_TOKEN: Final = re.compile(
    _BLANK
    + r"""(`(?:[^`]|``)*`|[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
    + r"|[0-9A-Za-z_]+|\S|$)",
    re.DOTALL,
)
_END: Final = ""
_FORM: Final = "give fields as 'id INT NOT NULL, total DOUBLE'"


def check_fields(text: str) -> None:
    """Raises SettingIllegal, naming the option and the field or the place."""
    _Parser(text).fields("body", _END)


class _Parser:
    """The tokens of a text, which are taken one after the other."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = _TOKEN.findall(text)
        self._tokens += [_END] * (self._tokens[-1:] != [_END])
        self._at = 0

    def fields(self, path: str, end: str) -> None:
        """Fields up to a token behind them, no two of one name."""
        names = set[str]()
        while True:
            name = self._name()
            field = f"{path}.{name}"
            if name in names:
                raise _refused(f"{field} is there twice")
            names.add(name)
            self._accept(":")
            self._type(field)
            self._accept_all("NOT NULL")
            self._comment()
            if not self._accept(","):
                return self._expect(end, "a comma" if end == _END else f"a comma or {end!r}")

    def _name(self) -> str:
        token = self._tokens[self._at]
        if token[:1] == "`" and len(token) > 1:
            self._at += 1
            return token[1:-1].replace("``", "`")
        wanted = "a name (in backquotes if it has other signs than a-z, 0-9 and _)"
        if token.isdigit():
            raise self._amid(wanted)
        return self._word(wanted)

    def _type(self, path: str) -> None:
        word = self._word(f"a type for {path}").upper()
        if word not in _TYPES:
            raise _refused(f"{path} is {word}, which JSON does not have")
        if word in ("ARRAY", "MAP", "STRUCT"):
            self._parts(word, path)
        elif word == "STRING":
            self._collation()
        elif word.startswith(("DEC", "NUM", "TIMESTAMP")):
            self._numbers()
            for more in ("WITHOUT TIME ZONE", "WITH LOCAL TIME ZONE"):
                self._accept_all(more)

    def _numbers(self) -> None:
        if self._accept("("):
            self._number()
            while self._accept(","):
                self._number()
            self._expect(")", "')'")

    def _number(self) -> None:
        if not re.fullmatch("[0-9]+", self._tokens[self._at]):
            raise self._amid("a number")
        self._at += 1

    def _parts(self, word: str, path: str) -> None:
        self._expect("<", f"'<' behind {word}")
        if word == "STRUCT":
            if not self._accept(">"):
                self.fields(path, ">")
            return
        self._type(path)
        if word == "MAP":
            self._expect(",", "a comma and the type of a map's values")
            self._type(path)
        self._expect(">", "'>'")

    def _collation(self) -> None:
        if self._accept("COLLATE"):
            self._name()
            while self._accept("."):
                self._name()

    def _comment(self) -> None:
        if not self._accept("COMMENT"):
            return
        if not self._is_text:
            raise self._amid("a text in quotes")
        while self._is_text:
            self._at += 1

    @property
    def _is_text(self) -> bool:
        return self._tokens[self._at][-1:] in ("'", '"') and len(self._tokens[self._at]) > 1

    def _word(self, wanted: str) -> str:
        token = self._tokens[self._at]
        if not re.fullmatch("[0-9A-Za-z_]+", token):
            raise self._amid(wanted)
        self._at += 1
        return token

    def _accept_all(self, words: str) -> None:
        wanted = words.split()
        if [token.upper() for token in self._tokens[self._at :][: len(wanted)]] == wanted:
            self._at += len(wanted)

    def _accept(self, token: str) -> bool:
        found = self._tokens[self._at].upper() == token
        self._at += found
        return found

    def _expect(self, token: str, wanted: str) -> None:
        if not self._accept(token):
            raise self._amid(wanted)

    def _amid(self, wanted: str) -> SettingIllegal:
        token = self._tokens[self._at]
        found = "its end" if token == _END else repr(token)
        return _refused(f"{wanted} is wanted in place of {found}: {_FORM}")


def _refused(what: str) -> SettingIllegal:
    return SettingIllegal(f"option 'schema': {what}", name="schema")
