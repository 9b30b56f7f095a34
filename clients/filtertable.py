"""A subscription's filter as the fetching kernel takes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm.bitmapnote import Covered
from gantrymq.shm.filter import Filter, SqlFilter, TagFilter
from gantrymq.shm.kernels import fetch, tags
from gantrymq.shm.opcodes import CODE_WORDS
from gantrymq.shm.properties import parse_properties
from gantrymq.shm.sql92 import tree
from gantrymq.shm.sql92.program import compile_program

_NO_BITS = np.zeros(0, np.int64)
# Nanoseconds of Python, about: to be asked, for an instruction, for a byte, and for a byte that a
# pattern of LIKE with `_` is looked for in.
_ASKED_WORK: Final = 20_000
_INSTRUCTION_WORK: Final = 1_000
_BYTE_WORK: Final = 10
_LIKE_WORK: Final = 100


class FilterTable(ABC):
    """`kind` is a word of fetch.FILTER; `words` and `texts` are what goes with it."""

    def __init__(self, kind: int, words: NDArray[np.int64], texts: NDArray[np.uint8]) -> None:
        self.kind = kind
        self.words = words
        self.texts = texts
        self.addresses = (words.ctypes.data, texts.ctypes.data)
        self.bits = _NO_BITS

    @property
    def bits_address(self) -> int:
        """As fetch.BITS."""
        return self.bits.ctypes.data if self.bits.size else 0

    def learn_bits(self, covered: Covered | None) -> None:
        """Which bits of extensions are this filter's, and from where on; None: none are known."""
        if covered is None:
            self.bits = _NO_BITS
            return
        head = (covered.start, covered.bits // 8, len(covered.positions))
        self.bits = np.array([*head, *covered.positions], np.int64)

    @classmethod
    def of(cls, chosen: Filter) -> FilterTable:
        """The table of a filter."""
        return _SqlTable(chosen) if isinstance(chosen, SqlFilter) else _TagTable(chosen)

    @abstractmethod
    def matches(self, stored: bytes) -> bool:
        """What the kernel has ASKED of a record, by its properties as stored."""

    def work_of(self, size: int) -> int:
        """What `matches` takes for so many bytes, beside a kernel's work (fetch.SPENT)."""
        return size


class _TagTable(FilterTable):
    def __init__(self, chosen: TagFilter) -> None:
        ordered = chosen.ordered()
        ends = np.cumsum([len(text) for _, text in ordered], dtype=np.int64)
        table = np.zeros((len(ordered), tags.TAG_WORDS), np.int64)
        table[:, tags.TAG_HASH] = [code for code, _ in ordered]
        table[:, tags.TAG_END] = ends
        table[1:, tags.TAG_AT] = ends[:-1]
        texts = np.frombuffer(b"".join(text for _, text in ordered), np.uint8)
        kind = fetch.TAGS if chosen.selective else fetch.EVERYTHING
        super().__init__(kind, table.reshape(-1), texts)
        self._chosen = chosen

    def matches(self, stored: bytes) -> bool:
        return self._chosen.matches(parse_properties(stored).get("TAGS"))


class _SqlTable(FilterTable):
    def __init__(self, chosen: SqlFilter) -> None:
        program = compile_program(chosen.node, chosen.dialect)
        super().__init__(fetch.SQL, program.words, program.pool)
        self._chosen = chosen
        self._work = _ASKED_WORK + _INSTRUCTION_WORK * program.words.size // CODE_WORDS
        likes = sum(isinstance(node, tree.Like) for node in tree.walk(chosen.node))
        self._byte_work = _BYTE_WORK + _LIKE_WORK * likes

    def matches(self, stored: bytes) -> bool:
        return self._chosen.matches(parse_properties(stored)) is True

    def work_of(self, size: int) -> int:
        return self._work + self._byte_work * size
