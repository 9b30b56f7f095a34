"""Many records of one segment at once: one numpy array per field, without a loop over records.

For readers of sealed segments (Spark, sidecars): 88 bytes per record are gathered as wide items, so
that a head costs some 20 ns. Nothing here imports numba.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.properties import LOST_TAG

if TYPE_CHECKING:
    from numpy.typing import NDArray

_V6_EXTRA: Final = layout.HOST_BYTES_V6 - layout.HOST_BYTES_V4
_FIXED: Final = ("body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag")
_WORD: Final = 8
#: Keeps the low n bytes of a little-endian word.
_MASKS: Final = np.array([(1 << (8 * n)) - 1 for n in range(_WORD + 1)], np.uint64)
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_TRAILER_KEY: Final = np.frombuffer(layout.TRAILER_KEY, "<u8")[0]
_LOST: Final = f"TAGS\x01{LOST_TAG}\x02".encode()
_TEN_POWERS: Final = 10 ** np.arange(10, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Fields of n records. All `_at` are byte offsets into the segment's view, times are Unix ms.

    `intact` is False where lengths do not add up, the magic is unknown or the stored position is
    another one; all lengths of such a record are 0, its other fields are as found.
    """

    at: NDArray[np.int64]
    size: NDArray[np.int64]
    intact: NDArray[np.bool_]
    body_crc: NDArray[np.int64]
    queue_id: NDArray[np.int64]
    queue_offset: NDArray[np.int64]
    physical_offset: NDArray[np.int64]
    sys_flag: NDArray[np.int64]
    born_timestamp: NDArray[np.int64]
    store_timestamp: NDArray[np.int64]
    store_host_at: NDArray[np.int64]
    reconsume_times: NDArray[np.int64]
    body_at: NDArray[np.int64]
    body_bytes: NDArray[np.int64]
    topic_at: NDArray[np.int64]
    topic_bytes: NDArray[np.int64]
    properties_at: NDArray[np.int64]
    properties_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.at)

    def where(self, mask: NDArray[np.bool_]) -> RecordColumns:
        """The records for which `mask` holds, in the same order."""
        return RecordColumns(*(getattr(self, field.name)[mask] for field in fields(self)))


def find_lost(
    view: NDArray[np.uint8], at: NDArray[np.int64], size: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Which records only stand for lost ones (ADR 0014), by where their properties lie."""
    found = np.flatnonzero(size >= len(_LOST))
    for place in reversed(range(len(_LOST))):  # hardly anybody else's tag ends so
        found = found[view[at[found] + place] == _LOST[place]]
    return found


def gather(view: NDArray[np.uint8], at: NDArray[np.int64], dtype: Any) -> NDArray[Any]:  # noqa: ANN401
    """Items of a dtype that start at any bytes of a view; each must lie inside it."""
    kind = np.dtype(dtype)
    if not len(at):
        return np.empty(0, kind)
    # Opaque items are copied by memcpy; a structured gather goes field by field, ten times slower.
    count = len(view) - kind.itemsize + 1
    windows: NDArray[np.void] = np.ndarray(
        (count,), f"V{kind.itemsize}", buffer=view.data, strides=(1,)
    )
    return windows[at].view(kind)


def read_records(
    view: NDArray[np.uint8], at: NDArray[np.int64], size: NDArray[np.int64], base: int
) -> RecordColumns:
    """Columns of the records that take `size` bytes each from the bytes `at` of a segment's view.

    Sizes come from a sidecar or a walk and are at least RECORD_BYTES_MIN; `base` is the position
    of the view's first byte.
    """
    heads = gather(view, at, layout.RECORD.dtype)
    column = {name: heads[name].astype(np.int64) for name in _FIXED}
    extra_born = _v6_extra(column["sys_flag"], layout.SYS_BORN_V6)
    extra = extra_born + _v6_extra(column["sys_flag"], layout.SYS_STORE_V6)
    room = size >= layout.RECORD_BYTES_MIN + extra  # damaged flags reach beyond nothing
    extra_born, extra = extra_born * room, extra * room
    tail = _behind_hosts(view, at, heads, extra_born, extra)
    wide = heads["magic"] == layout.RECORD_MAGIC_V2
    intact = (
        room
        & (wide | (heads["magic"] == layout.RECORD_MAGIC_V1))
        & (heads["total_size"] == size)
        & (column["physical_offset"] == base + at)
    )
    spans = _spans(view, at + layout.RECORD_HEAD_BYTES + extra, at + size, tail.pop("body"), wide)
    intact &= spans.pop("adds_up").astype(bool)
    for name in ("body_bytes", "topic_bytes", "properties_bytes"):
        spans[name] = spans[name] * intact
    return RecordColumns(
        at=at,
        size=size,
        intact=intact,
        born_timestamp=heads["born_timestamp"].astype(np.int64),
        store_host_at=at + layout.RECORD_STORE_HOST + extra_born,
        **column,
        **tail,
        **spans,
    )


def _v6_extra(flags: NDArray[np.int64], bit: int) -> NDArray[np.int64]:
    return np.where(flags & bit, _V6_EXTRA, 0)


def _behind_hosts(
    view: NDArray[np.uint8],
    at: NDArray[np.int64],
    heads: NDArray[np.void],
    extra_born: NDArray[np.int64],
    extra: NDArray[np.int64],
) -> dict[str, NDArray[np.int64]]:
    """Fields whose place depends on the lengths of the hosts (SF-16)."""
    names = {
        "store_timestamp": ("store_timestamp", extra_born),
        "reconsume_times": ("reconsume_times", extra),
        "body": ("body_length", extra),
    }
    if not extra.any():
        return {key: heads[name].astype(np.int64) for key, (name, _) in names.items()}
    kinds: Any = layout.RECORD.dtype.fields
    return {
        key: gather(view, at + layout.RECORD.offset(name) + shift, kinds[name][0]).astype(np.int64)
        for key, (name, shift) in names.items()
    }


def _spans(
    view: NDArray[np.uint8],
    body_at: NDArray[np.int64],
    end: NDArray[np.int64],
    body_bytes: NDArray[np.int64],
    wide: NDArray[np.bool_],
) -> dict[str, NDArray[np.int64]]:
    """Where body, topic and properties are; `adds_up` is 1 where they fill the record exactly."""
    # Each length is believed only as far as the next length field still lies inside the record.
    good = (body_bytes >= 0) & (body_bytes <= end - body_at - 3 - wide)
    topic_field = np.where(good, body_at + body_bytes, body_at)
    high, low = view[topic_field].astype(np.int64), view[topic_field + 1].astype(np.int64)
    topic_bytes = np.where(wide, (high << 8) | low, high)
    topic_at = topic_field + 1 + wide
    good &= (topic_bytes <= np.where(wide, 0x7FFF, 0x7F)) & (topic_bytes <= end - topic_at - 2)
    count_field = np.where(good, topic_at + topic_bytes, topic_field)
    properties_bytes = gather(view, count_field, ">i2").astype(np.int64)
    good &= (properties_bytes >= 0) & (count_field + 2 + properties_bytes == end)
    return {
        "adds_up": good.astype(np.int64),
        "body_at": body_at,
        "body_bytes": body_bytes,
        "topic_at": topic_at,
        "topic_bytes": topic_bytes,
        "properties_at": count_field + 2,
        "properties_bytes": properties_bytes,
    }


# ----------------------------------------------------------------------------------------- topics


def number_topics(
    view: NDArray[np.uint8], columns: RecordColumns
) -> tuple[NDArray[np.uint16], list[str]]:
    """For each record a number, and the topic's name per number; a damaged record has topic "".

    Raises ValueError with more than 65,536 topics.
    """
    return number_names(view, columns.topic_at, columns.topic_bytes)


def number_names(
    view: NDArray[np.uint8], at: NDArray[np.int64], count: NDArray[np.int64]
) -> tuple[NDArray[np.uint16], list[str]]:
    """For each string of `count` bytes at `at` a number, and the string per number.

    Raises ValueError with more than 65,536 different ones.
    """
    if not len(at):
        return np.empty(0, np.uint16), []
    words = [_words(view, at + k, count - k) for k in range(0, int(count.max()), _WORD)]
    digest = count.astype(np.uint64) * _ODD
    for word in words:
        digest = (digest ^ word) * _ODD
        digest ^= digest >> np.uint64(29)
    _, first, numbers = np.unique(digest, return_index=True, return_inverse=True)
    if not all(np.array_equal(word, word[first][numbers]) for word in (*words, count)):
        # Two names with one digest: a dictionary of the bytes decides.
        known: dict[bytes, int] = {}
        raw = [bytes(view[a : a + n]) for a, n in zip(at.tolist(), count.tolist(), strict=True)]
        numbers = np.array([known.setdefault(name, len(known)) for name in raw])
        first = np.unique(numbers, return_index=True)[1]
    if len(first) > 1 << 16:
        raise ValueError(f"{len(first)} topics in one segment")
    return numbers.astype(np.uint16), [_text(view, at[i], count[i]) for i in first]


def _text(view: NDArray[np.uint8], at: int, count: int) -> str:
    return bytes(view[at : at + count]).decode(errors="replace")


def _words(
    view: NDArray[np.uint8], at: NDArray[np.int64], count: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Up to 8 bytes of each string as one number, zeroes behind its end."""
    start = np.minimum(at, len(view) - _WORD)
    shift = np.minimum(8 * (at - start), 63).astype(np.uint64)
    keep = _MASKS[np.clip(count, 0, _WORD)]
    return np.asarray((gather(view, start, "<u8") >> shift) & keep, np.uint64)


# ---------------------------------------------------------------------------------------- checksums


def check_bodies(view: NDArray[np.uint8], columns: RecordColumns) -> NDArray[np.bool_]:
    """Per record whether it is intact and its body has the stored CRC (SF-5).

    As in RocketMQ an empty body has nothing to check, whatever its CRC field holds.
    """
    found = _crcs(view, columns.body_at, columns.body_bytes)
    same = (found == columns.body_crc) | (columns.body_bytes == 0)
    return np.asarray(columns.intact & same, np.bool_)


def check_trailers(
    view: NDArray[np.uint8], columns: RecordColumns
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Per record whether it has a checksum trailer, and whether that holds (SF-22, SF-23)."""
    trailer_at = columns.at + columns.size - layout.TRAILER.size
    candidate = columns.intact & (columns.properties_bytes >= layout.TRAILER.size)
    trailer = gather(view, trailer_at[candidate], layout.TRAILER.dtype)
    digits = trailer["digits"].copy().view(np.uint8).reshape(-1, 10).astype(np.int64) - ord("0")
    framed = (trailer["key"].copy().view("<u8") == _TRAILER_KEY) & (trailer["separator"] == 1)
    framed &= (trailer["end"] == 2) & ((digits >= 0) & (digits <= 9)).all(axis=1)
    present = np.zeros(len(columns), bool)
    present[candidate] = framed
    holds = np.zeros(len(columns), bool)
    covered = (columns.size - layout.TRAILER.size)[present]
    holds[present] = _crcs(view, columns.at[present], covered) == (digits @ _TEN_POWERS)[framed]
    return present, holds


def _crcs(
    view: NDArray[np.uint8], at: NDArray[np.int64], count: NDArray[np.int64]
) -> NDArray[np.int64]:
    data, crc = view.data, zlib.crc32
    ends = (at + count).tolist()
    found = [crc(data[start:end]) for start, end in zip(at.tolist(), ends, strict=True)]
    return np.array(found, np.int64) & 0x7FFFFFFF
