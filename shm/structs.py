"""A table of fields that says where bytes are; everything else about a layout is derived from it.

One `Struct` gives plain integer offsets (what kernels freeze into machine code), a `struct` codec
for cold Python, a numpy dtype for whole columns, and the Markdown of docs/layout.md. It must import
neither numpy nor numba: `gantrymq status` reads the board with it.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gantrymq.shm.fromhandlers import require_ours

if TYPE_CHECKING:
    import numpy as np

_CODES = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}

#: Words that different processes write never share a line of so many bytes (processors prefetch
#: the adjacent cache line).
LINE_BYTES = 128


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its type is ``i1 u1 i2 u2 i4 u4 i8 u8`` or a number of raw bytes."""

    name: str
    type: str | int
    meaning: str
    writer: str = ""

    @property
    def size(self) -> int:
        """Bytes that the field takes."""
        return self.type if isinstance(self.type, int) else int(self.type[1:])

    @property
    def code(self) -> str:
        """Its letter for the standard library's `struct`."""
        return f"{self.type}s" if isinstance(self.type, int) else _CODES[self.type]


@dataclass(frozen=True, slots=True)
class Struct:
    """Fields one after the other, without implicit padding.

    `order` is ``<`` for words in shared memory, which must be aligned, and ``>`` for files in
    RocketMQ's formats (SF-1), which need not be.
    """

    name: str
    size: int
    fields: tuple[Field, ...]
    order: Literal["<", ">"] = "<"
    note: str = ""
    _offsets: dict[str, int] = field(init=False, repr=False, compare=False, hash=False)
    _codec: struct.Struct = field(init=False, repr=False, compare=False, hash=False)
    _zeros: list[int | bytes] = field(init=False, repr=False, compare=False, hash=False)
    _places: dict[str, int] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        offsets: dict[str, int] = {}
        at = 0
        for item in self.fields:
            if self.order == "<" and isinstance(item.type, str) and at % item.size:
                raise ValueError(f"{self.name}.{item.name} at {at} is not aligned to {item.size}")
            if item.name in offsets:
                raise ValueError(f"{self.name}.{item.name} occurs twice")
            offsets[item.name] = at
            at += item.size
        if at != self.size:
            raise ValueError(f"{self.name}: fields take {at} bytes, not {self.size}")
        object.__setattr__(self, "_offsets", offsets)
        zeros = [b"" if isinstance(item.type, int) else 0 for item in self.fields]
        object.__setattr__(self, "_zeros", zeros)
        object.__setattr__(self, "_places", {item.name: i for i, item in enumerate(self.fields)})
        codes = "".join(item.code for item in self.fields)
        object.__setattr__(self, "_codec", struct.Struct(self.order + codes))

    def offset(self, name: str) -> int:
        """Bytes from the start of the struct to a field."""
        return self._offsets[name]

    def pack(self, **values: int | bytes) -> bytes:
        """Bytes of one struct; fields that are not named are zero."""
        ordered = self._zeros.copy()
        for name, value in values.items():
            try:
                ordered[self._places[name]] = value
            except KeyError as error:
                require_ours(error)
                raise KeyError(f"{self.name} has no field {name}") from None
        return self._codec.pack(*ordered)

    def codec(self, *names: str) -> struct.Struct:
        """Packs these fields, in the struct's order, where `pack` is too slow; others are zero."""
        if [item.name for item in self.fields if item.name in names] != list(names):
            raise ValueError(f"{names} are no fields of {self.name} in their order")
        codes = (item.code if item.name in names else f"{item.size}x" for item in self.fields)
        return struct.Struct(self.order + "".join(codes))

    def unpack(self, buffer: Any, at: int = 0) -> dict[str, Any]:  # noqa: ANN401 - ints and bytes
        """Field values of the struct that starts at byte `at` of a buffer."""
        return dict(zip(self._offsets, self._codec.unpack_from(buffer, at), strict=True))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same layout for numpy, without alignment padding."""
        import numpy as np

        formats = [
            f"V{item.type}" if isinstance(item.type, int) else self.order + item.type
            for item in self.fields
        ]
        return np.dtype(
            {
                "names": list(self._offsets),
                "formats": formats,
                "offsets": list(self._offsets.values()),
                "itemsize": self.size,
            }
        )

    def markdown(self) -> str:
        """The table that docs/layout.md shows."""
        head = f"### {self.name}, {self.size} bytes, {_ENDIAN[self.order]}\n"
        note = f"\n{self.note}\n" if self.note else ""
        rows = "\n".join(
            f"| {self._offsets[item.name]} | {item.type} | {item.name}"
            f" | {item.meaning} | {item.writer} |"
            for item in self.fields
        )
        titles = "| offset | type | field | meaning | writer |\n|---|---|---|---|---|"
        return f"{head}{note}\n{titles}\n{rows}\n"


_ENDIAN = {"<": "little-endian", ">": "big-endian"}


def fingerprint(structs: tuple[Struct, ...], numbers: dict[str, int]) -> int:
    """63 bits that differ as soon as a table or a named number differs."""
    digest = hashlib.sha256()
    for item in structs:
        fields = [(f.name, f.type) for f in item.fields]
        digest.update(repr((item.name, item.order, item.size, fields)).encode())
    digest.update(repr(sorted(numbers.items())).encode())
    return int.from_bytes(digest.digest()[:8], "big") >> 1
