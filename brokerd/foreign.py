"""Which parts of the log are ours, and where another broker went on (ADR 0009).

The range that we write is open while we run; a clean stop closes it. What lies behind a closed
range another broker wrote. An open range is all ours as long as `abort` holds our boot id; if it
does not, another broker has started since our crash, and the range ends where our records end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.brokerd.checkpoint import read_checkpoint
from gantrymq.brokerd.epoch import ABORT_NAME
from gantrymq.brokerd.logend import damaged
from gantrymq.brokerd.logscan import OURS, THEIRS, Piece, walk
from gantrymq.brokerd.producers import Producers, identified, load_producers
from gantrymq.shm import layout, limits
from gantrymq.shm.configfile import is_of_another
from gantrymq.shm.kernels import scan
from gantrymq.shm.ranges import EVERYTHING, OPEN, Ranges, read_ranges, write_ranges
from gantrymq.shm.storage import Storage, read_file
from gantrymq.workers.groups.offsetfile import FILE as OFFSETS_FILE

if TYPE_CHECKING:
    from gantrymq.shm.board import Board


def settle_ranges(
    storage: Storage, segment_bytes: int, low: int, durable: int, board: Board | None
) -> Ranges:
    """What we wrote, as far as a start can tell: an open last range means that nobody else came.

    `low` is the log's first position, `durable` a lower bound of what we had synced, `board` that
    of our killed life. Changes nothing. Raises Corrupt, OSError.
    """
    known = read_ranges(storage)
    if known is None:
        known = _assumed(storage)
    if not known.is_open or abort_is_ours(storage, known.boot_id):
        return known
    sure = max(durable, board.word(layout.BOARD_APPENDED) if board else 0)
    begin = max(low, known.spans[-1][0])
    # A killed broker has at most one batch in the log that its board does not know.
    limit = sure + limits.STAGING_BYTES + limits.FILLER_BYTES_MIN if board else None
    start = max(begin, sure // segment_bytes * segment_bytes)
    end = _end_of_ours(storage, segment_bytes, start, limit)
    if end < sure:
        return known.closed(sure)  # the scan will meet the damage
    _require_none_behind(storage, segment_bytes, begin, end)
    return known.closed(end)


def abort_is_ours(storage: Storage, boot_id: str) -> bool:
    """Whether `abort` is as we left it; a RocketMQ overwrites it, and removes it when it stops."""
    try:
        text = read_file(storage, ABORT_NAME)
    except FileNotFoundError:
        return False
    return _plain(text.decode(errors="replace")) == _plain(boot_id)


def is_visited(storage: Storage) -> bool:
    """Whether a RocketMQ has stopped here since us: it writes this file without our checksum."""
    return is_of_another(storage, OFFSETS_FILE)


def keep_ranges(storage: Storage, ranges: Ranges) -> None:
    """Write what a start has settled, if the file says something else."""
    if read_ranges(storage) != ranges:
        write_ranges(storage, ranges)


def _plain(boot_id: str) -> str:
    return boot_id.strip().replace("-", "").lower()


def _assumed(storage: Storage) -> Ranges:
    """The file is gone: all is ours up to a clean stop, or still; without a trace of us, nothing.

    That may refuse another broker's records as damage, and never cuts them off.
    """
    checkpoint = read_checkpoint(storage)
    if checkpoint is None:
        return Ranges()
    if checkpoint.clean:
        return EVERYTHING.closed(checkpoint.durable)
    return Ranges(((0, OPEN),), checkpoint.boot_id.hex())


def _end_of_ours(storage: Storage, segment_bytes: int, start: int, limit: int | None) -> int:
    """Where the records end that have a true trailer."""
    end = start
    for piece in walk(storage, segment_bytes, start, limit, OURS, last_ms=0):
        if len(piece.rows):
            end = piece.base + int(piece.rows[-1, scan.AT] + piece.rows[-1, scan.SIZE])
    return end


def _require_none_behind(storage: Storage, segment_bytes: int, begin: int, end: int) -> None:
    """Refuse if a record of ours follows: then ours are damaged where they seem to end.

    Ours for certain is a record with a true trailer that continues a producer's seqs: the copies
    that another broker makes of our records repeat them.
    """
    producers = load_producers(storage)
    if producers.position > end:  # it knows what has come to be damaged
        producers = Producers()
    for piece in walk(storage, segment_bytes, max(begin, producers.position), end, 0):
        producers.learn(piece.view, piece.rows, piece.base, OPEN)
    for piece in walk(storage, segment_bytes, end, None, THEIRS):
        following = _first_of_ours(piece, producers)
        if following is not None:
            why = f"a record of ours follows at {following}, and another broker has gone on"
            raise damaged(end, segment_bytes, why)


def _first_of_ours(piece: Piece, producers: Producers) -> int | None:
    sent = identified(piece.view, piece.rows)
    scratch = np.zeros(scan.ROW_WORDS, np.int64)
    found = zip(piece.rows[sent.rows], sent.producers.tolist(), sent.seqs.tolist(), strict=True)
    for row, number, seq in found:
        last = producers.last_seq(sent.names[number])
        if 0 < last < seq:
            form = np.array([row[scan.AT], piece.base, OURS, 0, 0, 0], np.int64)
            scan.scan_log(piece.view, form, scratch)
            if form[5]:
                return piece.base + int(row[scan.AT])
    return None
