"""Properties of many records as Arrow arrays, without a loop over them: all, or one by its name.

Nothing here imports numba or Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from gantrymq.clients.spark.cutting import content, cut, split, text
from gantrymq.shm import layout
from gantrymq.shm.record_columns import RecordColumns, gather

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PROPERTY_END: Final = 0x02
_KEY_END: Final = 0x01
_HIDDEN_KEY: Final = layout.TRAILER_KEY.decode()
_HIDDEN_WORD: Final = np.frombuffer(layout.TRAILER_KEY, "<u8")[0]
#: So many keys as bits of a number: the sum of 2^15 of them, more than a record has, still fits.
_BITS: Final = 48


def bytes_without_trailer(view: NDArray[np.uint8], records: RecordColumns) -> NDArray[np.int64]:
    """Bytes of each record's properties, less the checksum trailer (SF-22) where it ends them."""
    size = layout.TRAILER.size
    count = records.properties_bytes
    at = records.properties_at + count - size
    ends = np.flatnonzero(count >= size)
    framed = gather(view, at[ends], "<u8") == _HIDDEN_WORD
    framed &= (count[ends] == size) | (view[at[ends] - 1] == _PROPERTY_END)
    less = np.zeros(len(count), np.int64)
    less[ends[framed]] = size
    return count - less


def values_of(raw: Any, name: str) -> Any:  # noqa: ANN401 - pa.BinaryArray, pa.StringArray
    """One property's value per item as stored, null where it is not there; as `Properties` has it.

    Only places where the name stands as a key are looked at.
    """
    data, edges = content(raw)
    wanted = name.encode()
    mark = np.flatnonzero(data == _KEY_END)
    for back, byte in enumerate(reversed(wanted), start=1):
        mark = mark[mark >= back]
        mark = mark[data[mark - back] == byte]
    start = mark - len(wanted)
    record = np.searchsorted(edges, start, side="right") - 1
    begins = (start == edges[record]) | (data[start - 1] == _PROPERTY_END)
    is_key = begins & (mark < edges[record + 1])
    mark, record = mark[is_key], record[is_key]
    ends = np.append(np.flatnonzero(data == _PROPERTY_END), len(data))
    end = np.minimum(ends[np.searchsorted(ends, mark)], edges[record + 1])
    filled = mark + 1 < end
    mark, record, end = mark[filled], record[filled], end[filled]
    place = np.full(len(raw), -1, np.int64)
    place[record] = np.arange(len(record))  # the last one of a record wins
    values = text(cut(data, mark + 1, end - mark - 1))
    return values.take(pa.array(place, mask=place < 0))


@dataclass(frozen=True)
class Properties:
    """Properties of n records as RocketMQ reads them (SF-28), flat: `record` rises.

    `names` and `values` are string arrays of one length; `record` says whose they are, and
    `known[codes[i]]` is names[i]. The checksum trailer is left out.
    """

    count: int
    record: NDArray[np.int64]
    names: Any
    values: Any
    codes: NDArray[np.int32]
    known: list[str]

    @classmethod
    def parse(cls, raw: Any) -> Properties:  # noqa: ANN401 - pa.BinaryArray
        """Take the stored form apart; half entries drop out, the last of a key wins."""
        data, edges = content(raw)
        record, start, end = split(data, edges, _PROPERTY_END)
        mark = _first_marks(data, start, end)
        good = (mark > start) & (mark + 1 < end)
        if not good.all():
            record, start, mark, end = record[good], start[good], mark[good], end[good]
        names = text(cut(data, start, mark - start))
        values = text(cut(data, mark + 1, end - mark - 1))
        found = names.dictionary_encode()
        codes, known = found.indices.to_numpy(), found.dictionary.to_pylist()
        keep = _last_of_each(record, codes, len(known)) & (codes != _code(known, _HIDDEN_KEY))
        if not keep.all():
            kept = pa.array(keep)
            record, codes = record[keep], codes[keep]
            names, values = names.filter(kept), values.filter(kept)
        return cls(len(raw), record, names, values, codes, known)

    def values_of(self, name: str) -> Any:  # noqa: ANN401 - pa.StringArray
        """One property's value per record, null where it is not there."""
        wanted = np.flatnonzero(self.codes == _code(self.known, name))
        place = np.full(self.count, -1, np.int64)
        place[self.record[wanted]] = wanted
        return self.values.take(pa.array(place, mask=place < 0))

    def maps(self) -> Any:  # noqa: ANN401 - pa.MapArray
        """One map per record."""
        return pa.MapArray.from_arrays(
            list_offsets(self.record, self.count), self.names, self.values
        )


def _first_marks(
    data: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Where the key of each entry ends; the entry's start where it has no key."""
    marks = np.flatnonzero(data == _KEY_END)
    if len(marks) == len(start) and bool(((start <= marks) & (marks < end)).all()):
        return marks
    number = np.searchsorted(marks, start)
    found = np.append(marks, len(data))[number]
    return np.where(found < end, found, start)


def _last_of_each(
    record: NDArray[np.int64], codes: NDArray[np.int32], known: int
) -> NDArray[np.bool_]:
    """False for entries that a later one of the same record and key replaces."""
    keep = np.ones(len(codes), bool)
    if not len(codes) or (known <= _BITS and not _has_twice(record, codes)):
        return keep
    code = record * max(known, 1) + codes
    order = np.argsort(code, kind="stable")
    keep[order[:-1]] = code[order[1:]] != code[order[:-1]]
    return keep


def _has_twice(record: NDArray[np.int64], codes: NDArray[np.int32]) -> bool:
    """Whether a record has a key twice: a bit for each key, added and joined, differs then."""
    firsts = np.append(0, np.flatnonzero(record[1:] != record[:-1]) + 1)
    bits = np.int64(1) << codes.astype(np.int64)
    return bool((np.add.reduceat(bits, firsts) != np.bitwise_or.reduceat(bits, firsts)).any())


def _code(known: list[str], name: str) -> int:
    return known.index(name) if name in known else -1


def list_offsets(item: NDArray[np.int64], count: int) -> Any:  # noqa: ANN401 - pa.Int32Array
    """Where the list of each of `count` items begins, and the last one ends; `item` rises."""
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(item, minlength=count), out=offsets[1:])
    return pa.array(offsets)
