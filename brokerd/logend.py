"""What lies behind the log's end: nothing, left-overs, or a sign that the end is damage."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.brokerd.epoch import ABORT_NAME
from gantrymq.brokerd.logscan import OURS, THEIRS
from gantrymq.brokerd.producers import has_our_host
from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.kernels import scan
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.record import RECORD_MAGICS
from gantrymq.shm.storage import map_still

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.ranges import Ranges
    from gantrymq.shm.storage import Storage

_WINDOW_BYTES: Final = 1 << 20


def judge_behind(
    storage: Storage, segment_bytes: int, end: int, store_ms: int, ranges: Ranges,
    *, is_clean: bool,
) -> None:  # fmt: skip
    """Refuse a record behind the log's end, for a log whose durable position nobody knows (LW-4).

    `store_ms`: when its last record was stored. Left-overs do not count, for RocketMQ does not
    clear what it cuts off (SF-93): records stored earlier, and ours behind a torn one. `is_clean`:
    it ends where we have stopped cleanly and left nothing behind, so that any record there is of
    another life, or of another store. Raises Corrupt.
    """
    # A torn record of ours at the very end may have a true body.
    first = end + ranges.is_open
    for view, base, at in _places_behind(storage, segment_bytes, first):
        row = _read(view, base, at, THEIRS)
        if row is None or (row[scan.STORE_MS] < store_ms and not is_clean):
            continue
        if ranges.is_open or is_clean or not _is_ours(view, base, row):
            raise damaged(end, segment_bytes, f"a record follows at {base + at}")
    if not ranges.is_open and not storage.exists(ABORT_NAME):
        _judge_clean_end(storage, segment_bytes, end, store_ms, ranges)


def judge_segments(
    storage: Storage, bases: list[int], end: int, store_ms: int, batch_bytes: int | None
) -> None:
    """Refuse whole segments behind the end of our own log that its last life cannot have written.

    `store_ms`: when the last record was stored; none of ours is earlier than one before it. Only a
    segment's first record is asked: what follows may be the body of a torn one. `batch_bytes`: so
    many a killed writer may have been at; None after a power cut, of which any may be left. Raises
    Corrupt.
    """
    for base in bases[bisect_left(bases, end) :]:
        with closing(storage.open(segment_name(base))) as file:
            view = file.still_view()
            row = _read(view, base, 0, THEIRS)
            if row is not None and row[scan.STORE_MS] < store_ms:
                raise _not_ours(base, "its first record was stored before the log's last one")
            if batch_bytes is None:
                continue
            first = min(len(view), max(0, end + batch_bytes - base))
            if any(view[start:stop].any() for start, stop in file.extents(first, len(view))):
                raise _not_ours(base, f"the broker was killed when it had appended up to {end}")


def _not_ours(base: int, why: str) -> Corrupt:
    name = segment_name(base)
    return Corrupt(
        f"{name} does not belong to this log: {why}; move it out of commitlog/, or bring back the"
        " files that belong before it; nothing has been changed",
        path=name,
        position=base,
    )


def _judge_clean_end(
    storage: Storage, segment_bytes: int, end: int, store_ms: int, ranges: Ranges
) -> None:
    """Another broker that was stopped cleanly has left no torn record; we may have."""
    base = end // segment_bytes * segment_bytes
    if not storage.exists(segment_name(base)):
        return
    view = map_still(storage, segment_name(base))
    if _reaches_out(view, end - base, end):
        raise damaged(end, segment_bytes, "a record begins there that ends behind the file's end")
    row = _read(view, base, end - base, scan.CHECK_PLACE)
    if row is None or row[scan.STORE_MS] < store_ms:
        return
    if end > ranges.end or not has_our_host(view, row.reshape(1, -1))[0]:
        raise damaged(end, segment_bytes, "the broker that wrote it was stopped cleanly")


def _reaches_out(view: NDArray[np.uint8], at: int, position: int) -> bool:
    """Whether a record of this position begins there, and the file was cut amid it.

    Also amid its head: what there is of that tells.
    """
    head = view[at : at + layout.RECORD.size].tobytes()

    def may_have(place: int, value: bytes) -> bool:
        return value.startswith(head[place : place + len(value)])

    is_one = any(
        may_have(layout.RECORD_MAGIC, magic.to_bytes(4, "big")) for magic in RECORD_MAGICS
    ) and may_have(layout.RECORD_PHYSICAL_OFFSET, position.to_bytes(8, "big"))
    return is_one and int.from_bytes(head[:4].ljust(4, b"\0"), "big") > len(view) - at


def damaged(position: int, segment_bytes: int, why: str) -> Corrupt:
    """The error that names a place in the log; raised before anything was changed."""
    base = position // segment_bytes * segment_bytes
    return Corrupt(
        f"{segment_name(base)} is damaged at byte {position - base} (log position {position}):"
        f" {why}; `gantrymq store verify` lists all damage, with --salvage DEST it makes a new"
        " store of the rest; nothing has been changed",
        path=segment_name(base),
        position=position,
    )


def _places_behind(
    storage: Storage, segment_bytes: int, position: int
) -> Iterator[tuple[NDArray[np.uint8], int, int]]:
    """View and base of a segment, and a byte in it where a record may begin."""
    base = position // segment_bytes * segment_bytes
    while storage.exists(segment_name(base)):
        with closing(storage.open(segment_name(base))) as file:
            view = file.still_view()
            # Blocks that were only allocated need not be read: the last segment has most of them.
            written = file.extents(max(position - base, 0), len(view))
        for start, stop in written:
            for at in _magics(view, start, stop):
                if base + at >= position:
                    yield view, base, at
        base += segment_bytes


def _read(view: NDArray[np.uint8], base: int, at: int, checks: int) -> NDArray[np.int64] | None:
    """The record at a byte of a segment, if it holds."""
    form = np.array([at, base, checks, 0, 0, 0], np.int64)
    row = np.zeros(scan.ROW_WORDS, np.int64)
    scan.scan_log(view, form, row)
    return row if form[5] else None


def _is_ours(view: NDArray[np.uint8], base: int, row: NDArray[np.int64]) -> bool:
    whole = _read(view, base, int(row[scan.AT]), OURS) is not None
    return whole and bool(has_our_host(view, row.reshape(1, -1))[0])


def _magics(view: NDArray[np.uint8], start: int, stop: int) -> Iterator[int]:
    """Where records may begin, by the magics between two bytes of a segment."""
    magics = [magic.to_bytes(4, "big") for magic in RECORD_MAGICS]
    for begin in range(start, stop, _WINDOW_BYTES):
        window = view[begin : min(begin + _WINDOW_BYTES + layout.FILLER.size, stop)]
        if not window.any():
            continue
        data = window.tobytes()
        for magic in magics:
            at = data.find(magic)
            while at >= 0:
                if begin + at >= layout.RECORD_MAGIC:
                    yield begin + at - layout.RECORD_MAGIC
                at = data.find(magic, at + 1)
