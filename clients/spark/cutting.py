"""Strings and bodies cut from a mapped segment as Arrow arrays, without a loop over them.

By Arrow's own `take`: an array over the whole span, whose every second item is wanted. Nothing here
imports numba or Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bytes = Any  # pa.BinaryArray; pyarrow ships no types


def cut(
    data: NDArray[np.uint8],
    at: NDArray[np.int64],
    count: NDArray[np.int64],
    missing: NDArray[np.bool_] | None = None,
) -> Bytes:
    """Copy `count` bytes from each of the rising places `at`, which may touch but not overlap.

    Items are null where `missing`. The places must lie within 2 GiB of each other.
    """
    if not len(at):
        return pa.array([], pa.binary())
    low = int(at[0])
    edges = np.zeros(2 * len(at) + 1, np.int32)
    edges[1::2] = at - low
    edges[2::2] = at + count - low
    span = data[low : low + int(edges[-1])]
    spread = pa.Array.from_buffers(
        pa.binary(), 2 * len(at), [None, pa.py_buffer(edges), pa.py_buffer(span)]
    )
    return spread.take(pa.array(np.arange(1, 2 * len(at), 2, dtype=np.int32), mask=missing))


def content(items: Bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of an array's items one behind the other, and n + 1 offsets into them."""
    if not len(items):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, data = items.buffers()
    edges = np.frombuffer(offsets, np.int32, len(items) + 1, 4 * items.offset).astype(np.int64)
    if data is None or not data.size:
        return np.empty(0, np.uint8), edges
    return np.frombuffer(data, np.uint8)[edges[0] : edges[-1]], edges - edges[0]


def text(items: Bytes) -> Any:  # noqa: ANN401 - pa.StringArray
    """Bytes as strings; what is no UTF-8 is replaced as Java does it, by U+FFFD."""
    try:
        return items.cast(pa.string())
    except pa.ArrowInvalid:
        raw: list[bytes | None] = items.to_pylist()
        words = [None if item is None else item.decode(errors="replace") for item in raw]
        return pa.array(words, pa.string())


def pick(names: list[str] | tuple[str, ...], numbers: NDArray[Any]) -> Any:  # noqa: ANN401
    """Strings by number; "" becomes null."""
    dictionary = pa.array([name or None for name in names], pa.string())
    return dictionary.take(pa.array(numbers.astype(np.int32)))


def split(
    data: NDArray[np.uint8], edges: NDArray[np.int64], separator: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut each item at a byte: item number, first byte and end of every part, also empty ones.

    A part behind the last separator of an item counts only if it has bytes.
    """
    marks = np.flatnonzero(data == separator)
    per_item = np.diff(np.searchsorted(marks, edges))
    last = edges[:-1].copy()
    filled = per_item > 0
    last[filled] = marks[np.cumsum(per_item)[filled] - 1] + 1
    open_end = last < edges[1:]
    item = np.repeat(np.arange(len(per_item)), per_item)
    if open_end.any():
        item = np.append(item, np.flatnonzero(open_end))
        ends = np.append(marks, edges[1:][open_end])
        # By item: an open end may be where the next item's first separator is.
        order = np.argsort(item, kind="stable")
        item, ends = item[order], ends[order]
    else:
        ends = marks
    starts = np.empty(len(ends), np.int64)
    starts[1:] = ends[:-1] + 1
    is_first = np.ones(len(item), bool)
    is_first[1:] = item[1:] != item[:-1]
    starts[is_first] = edges[item[is_first]]
    return item, starts, ends
