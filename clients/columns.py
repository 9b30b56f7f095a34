"""Columns of messages: memory that the fetch kernel fills, and byte strings that lie in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm.kernels import fetch, poll

Words = NDArray[np.int64]


class Columns:
    """Arrays with room for rows; the fetch kernel fills them, batches show parts of them.

    All are parts of `memory`: whoever holds a view of one holds a reference to it.
    """

    def __init__(self, rows: int, content_bytes: int) -> None:
        self.rows = rows
        self.spare = True  # may be used again once no batch shows it
        words = 2 * (rows + 1) + fetch.COLUMNS * rows
        hosts_at = 8 * words
        bodies_at = hosts_at + fetch.HOSTS_BYTES * rows
        properties_at = bodies_at + content_bytes
        self.memory = np.empty(properties_at + content_bytes, np.uint8)
        numbers = self.memory[:hosts_at].view(np.int64)
        self.body_offsets = numbers[: rows + 1]
        self.property_offsets = numbers[rows + 1 : 2 * (rows + 1)]
        self.body_offsets[0] = self.property_offsets[0] = 0
        self.numbers = numbers[2 * (rows + 1) :]
        self.hosts = self.memory[hosts_at:bodies_at]
        self.bodies = self.memory[bodies_at:properties_at]
        self.properties = self.memory[properties_at:]
        self.places = np.zeros(poll.COLUMN_WORDS, np.int64)
        self.address = self.places.ctypes.data
        self._note_places()

    def _note_places(self) -> None:
        """Where everything is, for kernels that take addresses."""
        self.places[poll.BODIES] = self.bodies.ctypes.data
        self.places[poll.BODY_ROOM] = self.bodies.size
        self.places[poll.BODY_OFFSETS] = self.body_offsets.ctypes.data
        self.places[poll.PROPERTIES] = self.properties.ctypes.data
        self.places[poll.PROPERTY_ROOM] = self.properties.size
        self.places[poll.PROPERTY_OFFSETS] = self.property_offsets.ctypes.data
        self.places[poll.NUMBERS] = self.numbers.ctypes.data
        self.places[poll.ROOM] = self.rows
        self.places[poll.HOSTS] = self.hosts.ctypes.data

    def grow(self, content_bytes: int) -> None:
        """Other, larger memory for bodies and properties, of which there are none yet."""
        self.spare = False
        self.bodies = np.empty(content_bytes, np.uint8)
        self.properties = np.empty(content_bytes, np.uint8)
        self._note_places()

    def column(self, number: int, count: int) -> Words:
        """The first `count` words of one column."""
        return self.numbers[number * self.rows : number * self.rows + count]


class ByteColumn(Sequence[memoryview]):
    """Byte strings one behind the other in `buffer`; item i is between offsets i and i + 1."""

    def __init__(self, buffer: NDArray[np.uint8], offsets: Words) -> None:
        self.buffer = buffer[offsets[0] : offsets[-1]] if len(offsets) else buffer[:0]
        self.offsets = offsets - offsets[0] if len(offsets) and offsets[0] else offsets

    def __len__(self) -> int:
        return max(0, len(self.offsets) - 1)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[memoryview]: ...
    def __getitem__(self, index: int | slice) -> memoryview | Sequence[memoryview]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.buffer.data[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[memoryview]:
        view = self.buffer.data
        for start, end in pairwise(self.offsets.tolist()):
            yield view[start:end]


class PlainBodies(ByteColumn):
    """Bodies some of which are stored compressed: each is unpacked when it is asked for.

    An item that is no compressed data raises Corrupt each time; the others are not touched by it.
    """

    def __init__(self, stored: ByteColumn, unpack: Callable[[int], bytes | None]) -> None:
        """`unpack` makes the body of a row, None where it is stored as it is."""
        self._stored = stored
        self._unpack = unpack

    def __len__(self) -> int:
        return len(self._stored)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[memoryview]: ...
    def __getitem__(self, index: int | slice) -> memoryview | Sequence[memoryview]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        stored = self._stored[index]
        plain = self._unpack(index % len(self))
        return stored if plain is None else memoryview(plain)

    def __iter__(self) -> Iterator[memoryview]:
        return map(self.__getitem__, range(len(self)))  # goes on behind a row that raises

    @cached_property
    def _joined(self) -> tuple[NDArray[np.uint8], Words]:
        bodies = list(self)
        offsets = np.zeros(len(bodies) + 1, np.int64)
        np.cumsum([len(body) for body in bodies], out=offsets[1:])
        return np.frombuffer(b"".join(bodies), np.uint8), offsets

    @property
    def buffer(self) -> NDArray[np.uint8]:  # type: ignore[override]
        """All bodies one behind the other; all are unpacked for it."""
        return self._joined[0]

    @property
    def offsets(self) -> Words:  # type: ignore[override]
        """As `buffer`."""
        return self._joined[1]
