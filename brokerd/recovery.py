"""What a start makes of the files: where the log ends, what of the queues holds. Before any agent.

Every step can be done again: a crash amid recovery leaves a store that recovers to the same.

1. Find out which parts are ours (`gantry/ranges.json`, ADR 0009) and scan from the segment of the
   durable position D. With the board of a broker that was killed (same boot) D and the end are
   known exactly, the end only if it had not failed. Trailers are binding in ours; elsewhere
   bodies' sums are, and another broker's records count as ours do.
2. Invalid below D is damage: refuse, name the place. The first invalid record at or above D is
   the end. What another broker had synced is not known: no later record may lie behind.
3. Cut: zero the rest of the last file (LW-3), remove later files.
4. Write the tail from D on again and sync it: after a failed sync pages may be marked clean that
   never reached the disk.
5. Queues: what was synced, or what the board of the same boot knows, holds; the reader makes the
   rest from the log. A queue that does not fit is rebuilt with all others from the log. Those of
   topics of type BatchCQ are made here, and RocketMQ's own units of them (brokerd/batchqueues.py).
6. After a failed write or sync the key index is made again: its files are changed in place, and
   what a life before put there again may not be on the disk (see 4). Here, if that life's board
   is left; else it has taken the index's note away itself (`Broker.close`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from gantrymq.brokerd import batchqueues, batchunits, storefiles
from gantrymq.brokerd.checkpoint import Checkpoint, CheckpointFile, read_checkpoint
from gantrymq.brokerd.commitlog import SPARE, segment_bases
from gantrymq.brokerd.foreign import keep_ranges, settle_ranges
from gantrymq.brokerd.logend import damaged, judge_behind, judge_segments
from gantrymq.brokerd.logscan import OURS, THEIRS, Piece, walk
from gantrymq.brokerd.queuerecovery import has_failed, note_topics, recover_queues
from gantrymq.brokerd.recovered import Recovered
from gantrymq.shm import layout, limits
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.indexnote import forget_note
from gantrymq.shm.kernels import scan
from gantrymq.shm.lognames import DIRECTORY, segment_name
from gantrymq.shm.marks import mark
from gantrymq.shm.ranges import EVERYTHING, Ranges, read_ranges
from gantrymq.shm.sidecar import DIRECTORY as SIDECARS
from gantrymq.shm.storage import Storage, map_still, zero_written

if TYPE_CHECKING:
    from gantrymq.brokerd.config import Settings
    from gantrymq.shm.board import Board

Progress = Callable[[int, int, str], None]

#: The disk may have been put back amid that life, which no file of the store can tell.
_KNOWN_BY_BOARD = (
    " as its last broker, which was killed, has left it in memory (if that disk was put back to a"
    " snapshot of an earlier time, remove the file `run/board` beside the store, and start again)"
)
_BLOCK = 1 << 20
#: So much of what a killed writer was just writing may lie behind the log's end.
_BATCH_BYTES = limits.STAGING_BYTES + limits.FILLER_BYTES_MIN


def recover(
    storage: Storage,
    settings: Settings,
    old_board: Board | None,
    progress: Progress | None = None,
) -> Recovered:
    """Bring log and queues to a state that agents can go on from. Raises Corrupt, OSError."""
    segment_bytes = settings.mapped_file_size_commit_log
    bases = segment_bases(storage, segment_bytes)
    _remove_unfinished(storage)
    checkpoint = read_checkpoint(storage)
    noted = checkpoint.durable if checkpoint else 0
    durable = max(noted, old_board.word(layout.BOARD_DURABLE) if old_board else 0)
    if not bases:
        _begin_log(storage, segment_bytes, checkpoint, durable)
        return Recovered()
    found = Recovered(low=bases[0])
    ranges = settle_ranges(storage, segment_bytes, found.low, durable, old_board)
    noted = max(noted, _ended_at(ranges))
    sure = max(durable, noted)
    span = (max(durable, found.low), bases[-1] + segment_bytes)
    _find_end(storage, segment_bytes, found, ranges, span, progress)
    _judge_end(segment_bytes, found, sure, noted)
    # The board tells of our own log only, not of one that another broker has gone on with; and
    # what one that has failed had appended, the page cache may have lost with the disk.
    last_board = old_board if ranges.is_open and not has_failed(old_board) else None
    if not ranges.is_open or (checkpoint is None and old_board is None):
        is_clean = checkpoint is not None and checkpoint.clean and found.appended == durable
        judge_behind(
            storage, segment_bytes, found.appended, found.store_ms, ranges, is_clean=is_clean
        )
    if last_board is not None:
        _judge_board(found, last_board)
    if ranges.is_open:
        batch_bytes = None if last_board is None else _BATCH_BYTES
        judge_segments(storage, bases, found.appended, found.store_ms, batch_bytes)
    mark("recovery.after_scan")
    _require_no_piece(storage, bases)
    _cut(storage, segment_bytes, found.appended, bases, _Behind.of(checkpoint, last_board))
    mark("recovery.after_cut")
    _write_again(storage, segment_bytes, span[0], found.appended)
    mark("recovery.after_rewrite")
    keep_ranges(storage, ranges.closed(found.appended))
    found.durable = found.appended
    settled = old_board.word(layout.BOARD_SETTLED) if old_board else found.appended
    found.settled = min(settled, found.appended)
    recover_queues(storage, settings, found, last_board)
    if has_failed(old_board):
        forget_note(storage)
    batchunits.complete(storage, settings, found)
    mark("recovery.after_queues")
    if checkpoint is not None and checkpoint.clean:
        _no_longer_clean(storage, checkpoint, found)
    return found


def _remove_unfinished(storage: Storage) -> None:
    """Remove files that were being made when a life ended; nobody goes on with them.

    Not those of other programs, who may be at them right now: in gantry/pins/, and OF_COMMANDS.
    """
    theirs = set(map(storefiles.path_of, storefiles.OF_COMMANDS))
    for folder in ("", "config", "gantry", SIDECARS):
        for path in (f"{folder}/{name}".lstrip("/") for name in storage.list(folder)):
            if path not in theirs and (path.endswith(".new") or path.startswith(f"{SPARE}.")):
                storage.unlink(path)


def _begin_log(
    storage: Storage, segment_bytes: int, checkpoint: Checkpoint | None, durable: int
) -> None:
    """Of a log without a whole segment."""
    durable = max(durable, _ended_at(read_ranges(storage)))
    if durable:
        raise Corrupt(
            f"{DIRECTORY}/ has no whole segment, but {durable} bytes of the log were durable:"
            " bring the files back",
            path=DIRECTORY,
            position=0,
        )
    _require_no_piece(storage, [])
    if checkpoint is None:
        # From now on the end of the log is told from damage by D, also after a power cut.
        CheckpointFile(storage, bytes(16), 0).close()
    else:
        _cut(storage, segment_bytes, 0, [], _Behind.ANYTHING)
    batchqueues.settle_topics(storage)


def _require_no_piece(storage: Storage, bases: list[int]) -> None:
    """Refuse a last file of another length than segments have, if it has records.

    Ours have their length before their name, also after a power cut; a RocketMQ that was killed as
    it made one leaves it empty. So it is one that was cut, or a segment of another store.
    """
    for name in storage.list(DIRECTORY):
        size = 0 if int(name) in bases else storage.size_of(f"{DIRECTORY}/{name}")
        if size and map_still(storage, f"{DIRECTORY}/{name}").any():
            raise Corrupt(
                f"{DIRECTORY}/{name} has {size} bytes, which no whole segment has, and not only"
                " zeroes: bring the whole file back, or take it away; nothing has been changed",
                path=f"{DIRECTORY}/{name}",
                position=int(name),
            )


def _ended_at(ranges: Ranges | None) -> int:
    """Where a range ends that was closed: up to there our log was whole, and synced."""
    return ranges.end if ranges and not ranges.is_open else 0


def _no_longer_clean(storage: Storage, last: Checkpoint, found: Recovered) -> None:
    """From here on what lies behind the end may be the torn end of a crash of ours."""
    file = CheckpointFile(storage, last.boot_id, last.epoch)
    try:
        file.write(found.durable, found.store_ms, found.dispatched, sync=True)
    finally:
        file.close()


# ------------------------------------------------------------------------------------------- log


def _find_end(
    storage: Storage, segment_bytes: int, found: Recovered, ranges: Ranges, span: tuple[int, int],
    progress: Progress | None,
) -> None:  # fmt: skip
    """Scan from the segment of D; sets `appended`, `store_ms` and the topics seen.

    `span`: D, and the end of the last file that counts: what is in one of another length does not.
    """
    durable, limit = span
    start = max(found.low, durable // segment_bytes * segment_bytes)
    if start == durable and start > found.low:
        start -= segment_bytes  # D ends a segment: see its last time
    found.appended = start
    for piece in _pieces(storage, segment_bytes, ranges, (start, limit)):
        found.appended = piece.next
        if len(piece.rows):
            found.store_ms = max(found.store_ms, int(piece.rows[:, scan.STORE_MS].max()))
        note_topics(piece, found.topics)
        if progress:
            progress(piece.next - start, max(piece.next, durable) - start, "checking the log")


def require_sound(storage: Storage, segment_bytes: int, progress: Progress | None = None) -> None:
    """Raise Corrupt unless all records of a store that was stopped cleanly are sound. OSError.

    A start looks at the last ones: those before have units, which are not made anew of them.
    """
    bases, last = segment_bases(storage, segment_bytes), read_checkpoint(storage)
    if not bases or last is None:
        return
    low = at = bases[0]
    ranges = read_ranges(storage) or EVERYTHING
    for piece in _pieces(storage, segment_bytes, ranges, (low, last.durable)):
        at = piece.next
        if progress:
            progress(at - low, last.durable - low, "checking the log")
    if at < last.durable:
        raise damaged(at, segment_bytes, f"the log was durable up to {last.durable}")


def _pieces(
    storage: Storage, segment_bytes: int, ranges: Ranges, span: tuple[int, int]
) -> Iterator[Piece]:
    """Records up to the first thing that is none; time never goes back in ours (LW-3, LW-12)."""
    at = span[0]
    for stretch in ranges.stretches(*span):
        checks, last_ms = (OURS, 0) if stretch.ours else (THEIRS, -1)
        end = stretch.end
        for piece in walk(storage, segment_bytes, stretch.start, end, checks, last_ms=last_ms):
            at = piece.next
            yield piece
        if at < end:
            return


def _judge_end(segment_bytes: int, found: Recovered, durable: int, noted: int) -> None:
    """The end may not lie below D, of which files say that it is at least `noted`."""
    if found.appended < durable:
        known = "" if found.appended < noted else _KNOWN_BY_BOARD
        raise damaged(found.appended, segment_bytes, f"the log was durable up to {durable}{known}")


def _judge_board(found: Recovered, board: Board) -> None:
    """A killed broker of this boot left all it appended in the page cache.

    What lies behind `appended` was never told to anybody and goes.
    """
    appended = board.word(layout.BOARD_APPENDED)
    if found.appended < appended:
        raise damaged(
            found.appended,
            board.segment_bytes,
            f"the broker had appended up to {appended}{_KNOWN_BY_BOARD}",
        )
    found.appended = appended


class _Behind(Enum):
    """What may lie behind the log's end, in its file."""

    ONE_BATCH = "what a killed broker of this boot was just writing, or a start's zeroes for that"
    ANYTHING = "what a power cut has left, or a start before, whose zeroes the disk did not take"
    NOTHING_OF_OURS = "we have stopped cleanly; another broker leaves what it cuts off"

    @staticmethod
    def of(checkpoint: Checkpoint | None, last_board: Board | None) -> _Behind:
        """By how the last life has ended."""
        if last_board is not None:
            return _Behind.ONE_BATCH
        is_clean = checkpoint is not None and checkpoint.clean
        return _Behind.NOTHING_OF_OURS if is_clean else _Behind.ANYTHING


def _cut(storage: Storage, segment_bytes: int, end: int, bases: list[int], behind: _Behind) -> None:
    """Zero what follows the end in its file, remove the files behind."""
    if storage.exists(
        SPARE
    ):  # a power cut may have left the name with a segment that was made of it
        storage.unlink(SPARE)
    for base in bases[::-1]:
        if base > end or (base == end and base != bases[0]):
            storage.unlink(segment_name(base))
            storage.sync_directory(DIRECTORY)
    stray = storage.list(DIRECTORY)
    for name in stray:
        if int(name) not in bases:
            storage.unlink(f"{DIRECTORY}/{name}")
            storage.sync_directory(DIRECTORY)
    base = end // segment_bytes * segment_bytes
    if not storage.exists(segment_name(base)):
        return
    file = storage.open(segment_name(base), write=True)
    try:
        reach = segment_bytes
        if behind is _Behind.ONE_BATCH:
            reach = _BATCH_BYTES
        stop = min(segment_bytes, end - base + reach)
        _zero(file, end - base, stop, also_zeroes=behind is not _Behind.NOTHING_OF_OURS)
        file.sync()
    finally:
        file.close()


def _zero(file: Any, start: int, stop: int, *, also_zeroes: bool) -> None:  # noqa: ANN401 - shm.storage.File
    """Zero the blocks of a range that hold anything.

    `also_zeroes`: those that were written as zeroes, too. After a failed sync the disk may have
    something else there.
    """
    if also_zeroes:  # what there is need not be read
        zero_written(file, start, stop)
        return
    for begin, end in file.extents(start, stop):
        at = begin
        while at < end:
            until = min(end, (at // _BLOCK + 1) * _BLOCK)
            block = bytearray(until - at)
            file.read_into(block, at)
            if np.frombuffer(block, np.uint8).any():
                file.zero_range(at, until - at)
            at = until


def _write_again(storage: Storage, segment_bytes: int, start: int, end: int) -> None:
    """Write the bytes from D to the end once more and sync them."""
    while start < end:
        base = start // segment_bytes * segment_bytes
        stop = min(end, base + segment_bytes)
        file = storage.open(segment_name(base), write=True)
        try:
            view = file.still_view()
            for at in range(start - base, stop - base, _BLOCK):
                file.write_at(view[at : min(at + _BLOCK, stop - base)].copy().data, at)
            file.sync()
        finally:
            file.close()
        start = stop
    storage.sync_directory(DIRECTORY)
