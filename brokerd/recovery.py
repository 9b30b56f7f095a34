"""What a start makes of the files: where the log ends, what of the queues holds. Before any agent.

Every step can be done again: a crash amid recovery leaves a store that recovers to the same.

1. Find out which parts are ours (`gantry/ranges.json`, ADR 0009) and scan from the segment of the
   durable position D. With the board of a broker that was killed (same boot) D and the end are
   known exactly. Trailers are binding in ours; elsewhere bodies' sums are, and another broker's
   records count as ours do.
2. Invalid below D is damage: refuse, name the place. The first invalid record at or above D is
   the end. What another broker had synced is not known: no later record may lie behind.
3. Cut: zero the rest of the last file (LW-3), remove later files.
4. Write the tail from D on again and sync it: after a failed sync pages may be marked clean that
   never reached the disk.
5. Queues: what was synced, or what the board of the same boot knows, holds; the reader makes the
   rest from the log. A queue that does not fit is rebuilt with all others from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from brokerd.checkpoint import Checkpoint, CheckpointFile, read_checkpoint
from brokerd.commitlog import SPARE, segment_bases
from brokerd.foreign import keep_ranges, settle_ranges
from brokerd.logend import damaged, judge_behind
from brokerd.logscan import OURS, THEIRS, Piece, queue_offsets, queues_of, walk
from brokerd.queuefiles import has_all_files, unit_of
from brokerd.queuestarts import first_unit, read_starts
from shm import layout, limits
from shm.bitmapnote import extension_files
from shm.codes import BrokerState
from shm.errors import Corrupt
from shm.kernels import scan
from shm.lognames import DIRECTORY, segment_name
from shm.marks import mark
from shm.ranges import Ranges, Stretch, read_ranges
from shm.storage import Storage, clear_behind
from workers.reader.queues import PROGRESS_FILE, read_progress

if TYPE_CHECKING:
    from brokerd.config import Settings
    from shm.board import Board

Progress = Callable[[int, int, str], None]
QueueKey = tuple[str, int]

QUEUES = "consumequeue"
_BLOCK = 1 << 20


@dataclass(slots=True)
class Recovered:
    """A store ready for agents.

    Positions are log positions, `queues` maps (topic, queue id) to (next offset, units written,
    first unit).
    """

    appended: int = 0
    durable: int = 0
    dispatched: int = 0
    settled: int = 0  # what lies behind it may not have been answered yet
    store_ms: int = 0
    low: int = 0
    queues: dict[QueueKey, tuple[int, int, int]] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)


def recover(
    storage: Storage,
    settings: Settings,
    old_board: Board | None,
    progress: Progress | None = None,
) -> Recovered:
    """Bring log and queues to a state that agents can go on from. Raises Corrupt, OSError."""
    segment_bytes = settings.mapped_file_size_commit_log
    bases = segment_bases(storage, segment_bytes)
    checkpoint = read_checkpoint(storage)
    durable = max(
        checkpoint.durable if checkpoint else 0,
        old_board.word(layout.BOARD_DURABLE) if old_board else 0,
    )
    if not bases:
        durable = max(durable, _ended_at(read_ranges(storage)))
        if durable:
            raise Corrupt(
                f"{DIRECTORY}/ has no whole segment, but {durable} bytes of the log were durable:"
                " bring the files back",
                path=DIRECTORY,
                position=0,
            )
        if checkpoint is None:
            # From now on the end of the log is told from damage by D, also after a power cut.
            CheckpointFile(storage, bytes(16), 0).close()
        else:
            _cut(storage, segment_bytes, 0, bases, same_boot=False)  # a first file cut short
        return Recovered()
    found = Recovered(low=bases[0])
    ranges = settle_ranges(storage, segment_bytes, found.low, durable, old_board)
    sure = max(durable, _ended_at(ranges))
    span = (max(durable, found.low), bases[-1] + segment_bytes)
    _find_end(storage, segment_bytes, found, ranges, span, progress)
    _judge_end(segment_bytes, found, sure)
    if not ranges.is_open or (checkpoint is None and old_board is None):
        judge_behind(storage, segment_bytes, found.appended, found.store_ms, ranges)
    # The board tells of our own log only, not of one that another broker has gone on with.
    last_board = old_board if ranges.is_open else None
    if last_board is not None:
        _judge_board(found, last_board)
    mark("recovery.after_scan")
    _cut(storage, segment_bytes, found.appended, bases, last_board is not None)
    mark("recovery.after_cut")
    _write_again(storage, segment_bytes, span[0], found.appended)
    mark("recovery.after_rewrite")
    keep_ranges(storage, ranges.closed(found.appended))
    found.durable = found.appended
    found.settled = old_board.word(layout.BOARD_SETTLED) if old_board else found.appended
    _recover_queues(storage, settings, found, last_board)
    mark("recovery.after_queues")
    if checkpoint is not None and checkpoint.clean:
        _no_longer_clean(storage, checkpoint, found)
    return found


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
    for stretch in ranges.stretches(start, limit):
        for piece in _pieces(storage, segment_bytes, stretch):
            found.appended = piece.next
            if len(piece.rows):
                found.store_ms = max(found.store_ms, int(piece.rows[:, scan.STORE_MS].max()))
            _note_topics(piece, found.topics)
            if progress:
                progress(piece.next - start, max(piece.next, durable) - start, "checking the log")
        if found.appended < stretch.end:
            return


def _pieces(storage: Storage, segment_bytes: int, stretch: Stretch) -> Iterator[Piece]:
    """Records of a stretch; time never goes back in what we wrote (LW-3, LW-12)."""
    checks, last_ms = (OURS, 0) if stretch.ours else (THEIRS, -1)
    return walk(storage, segment_bytes, stretch.start, stretch.end, checks, last_ms=last_ms)


def _note_topics(piece: Piece, topics: set[str]) -> None:
    topics.update(topic for topic, _queue in queues_of(piece))


def _judge_end(segment_bytes: int, found: Recovered, durable: int) -> None:
    """The end may not lie below D."""
    if found.appended < durable:
        raise damaged(found.appended, segment_bytes, f"the log was durable up to {durable}")


def _judge_board(found: Recovered, board: Board) -> None:
    """A killed broker of this boot left all it appended in the page cache.

    What lies behind `appended` was never told to anybody and goes.
    """
    appended = board.word(layout.BOARD_APPENDED)
    if found.appended < appended:
        raise damaged(
            found.appended, board.segment_bytes, f"the broker had appended up to {appended}"
        )
    found.appended = appended


def _cut(storage: Storage, segment_bytes: int, end: int, bases: list[int], same_boot: bool) -> None:
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
        reach = limits.STAGING_BYTES + limits.FILLER_BYTES_MIN if same_boot else segment_bytes
        stop = min(segment_bytes, end - base + reach)
        _zero(file, end - base, stop)
        file.sync()
    finally:
        file.close()


def _zero(file: Any, start: int, stop: int) -> None:  # noqa: ANN401 - shm.storage.File
    """Zero the blocks of a range that hold anything."""
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
            view = file.view()
            for at in range(start - base, stop - base, _BLOCK):
                file.write_at(view[at : min(at + _BLOCK, stop - base)].copy().data, at)
            file.sync()
        finally:
            file.close()
        start = stop
    storage.sync_directory(DIRECTORY)


# ---------------------------------------------------------------------------------------- queues


def _recover_queues(
    storage: Storage,
    settings: Settings,
    found: Recovered,
    old_board: Board | None,
) -> None:
    """Decide from where on the reader makes units, and cut what lies behind in the files."""
    cq_bytes = settings.mapped_file_size_consume_queue
    # After a failed sync pages count as clean that are not on the disk: units since the last good
    # one are written again.
    failed = old_board and old_board.half(layout.BOARD_STATE) == BrokerState.FAILED
    known = _from_board(old_board) if old_board and not failed else read_progress(storage)
    # A full disk may keep progress from being noted, and retention goes on: then all is made anew.
    if known is not None and found.low <= known[0] <= found.appended:
        position, written = known
        kept = _kept_from(storage, found.low)
        if all(
            _fits(storage, cq_bytes, key, units, found.appended, kept(key))
            for key, units in written.items()
        ):
            found.dispatched = position
            for key, units in written.items():
                low = first_unit(storage, cq_bytes, key, range(units), found.low)
                found.queues[key] = (units, units, low)
            _cut_queues(storage, cq_bytes, written)
            _find_next_offsets(storage, settings.mapped_file_size_commit_log, found)
            return
    _rebuild(storage, settings, found)


def _from_board(board: Board) -> tuple[int, dict[QueueKey, int]]:
    written: dict[QueueKey, int] = {}
    for topic in board.topics():
        for queue_id in range(topic.queue_count):
            at = board.queue_at(topic.queue_base + queue_id)
            written[topic.name, queue_id] = board.word(at + layout.QUEUE_WRITTEN)
    return board.word(layout.BOARD_DISPATCHED), written


def _kept_from(storage: Storage, low: int) -> Callable[[QueueKey], int | None]:
    """By queue, the unit that its files begin with at the latest, as far as that is known.

    Where another broker has removed segments since, nothing is.
    """
    if low == 0:
        return lambda _key: 0
    noted = read_starts(storage)
    if noted is None or noted[0] != low:
        return lambda _key: None
    firsts = noted[1]
    return lambda key: firsts.get(key, 0)


def _fits(
    storage: Storage, cq_bytes: int, key: QueueKey, units: int, appended: int, kept: int | None
) -> bool:
    """Whether a queue's files are all there, and its last unit lies below the log's end."""
    if units == 0:
        return True
    if not has_all_files(storage, cq_bytes, key, units, kept):
        return False
    row = unit_of(storage, cq_bytes, key, units - 1)
    return row is not None and 0 < row["size"] <= appended - row["physical_offset"]


def _cut_queues(storage: Storage, cq_bytes: int, written: dict[QueueKey, int]) -> None:
    """Make everything behind each queue's units a hole again, and remove later files."""
    for topic in storage.list(QUEUES):
        for folder in storage.list(f"{QUEUES}/{topic}"):
            units = written.get((topic, int(folder)), 0) if folder.isdigit() else 0
            _cut_queue(storage, cq_bytes, f"{QUEUES}/{topic}/{folder}", units)


def _cut_queue(storage: Storage, cq_bytes: int, folder: str, units: int) -> None:
    end = units * layout.CQ_UNIT_BYTES
    for name in storage.list(folder):
        path = f"{folder}/{name}"
        base = int(name)
        if base >= end:
            storage.unlink(path)
        elif base + cq_bytes > end or storage.size_of(path) != cq_bytes:
            file = storage.open(path, write=True)
            clear_behind(file, min(end - base, cq_bytes), cq_bytes)
            file.close()


def _rebuild(storage: Storage, settings: Any, found: Recovered) -> None:  # noqa: ANN401
    """Forget all units; the reader makes them from the log's first record on."""
    cq_bytes = settings.mapped_file_size_consume_queue
    segment_bytes = settings.mapped_file_size_commit_log
    found.dispatched = found.low
    _find_next_offsets(storage, segment_bytes, found)
    for key, first in (read_starts(storage) or (0, {}))[1].items():
        if key not in found.queues:  # all its records have expired: its offsets go on all the same
            found.queues[key] = (first, first, first)
    if storage.exists(PROGRESS_FILE):  # or the next start would believe it of the new units
        storage.unlink(PROGRESS_FILE)
        storage.sync_directory("gantry")
    _cut_queues(storage, cq_bytes, {})
    for name in extension_files(storage):  # no unit has their addresses any more
        storage.unlink(name)
    for (topic, queue_id), (_next, _written, first) in found.queues.items():
        if first:
            _fill_front(storage, cq_bytes, f"{QUEUES}/{topic}/{queue_id}", first)


def _find_next_offsets(storage: Storage, segment_bytes: int, found: Recovered) -> None:
    """Queues also hold records whose units the reader has yet to make: nobody may take less."""
    for piece in walk(storage, segment_bytes, found.dispatched, found.appended, 0):
        offsets = queue_offsets(piece)
        found.topics.update(topic for topic, _queue in offsets)
        if (piece.rows[:, scan.SYS_FLAG] & layout.SYS_TRANSACTION).any():
            _note_topics(piece, found.topics)  # some of its records have no place in a queue
        for key, (first, last) in offsets.items():
            following, written, low = found.queues.get(key, (first, first, first))
            found.queues[key] = (max(following, last + 1), written, low)


def _fill_front(storage: Storage, cq_bytes: int, folder: str, offset: int) -> None:
    """A queue whose first unit is not 0 begins with filler units in its first file (SF-65)."""
    end = offset * layout.CQ_UNIT_BYTES
    base = end // cq_bytes * cq_bytes
    file = storage.create(f"{folder}/{base:020d}")
    file.truncate(cq_bytes)
    unit = layout.CQ_UNIT.pack(size=layout.CQ_FILLER_SIZE)
    file.write_at(unit * ((end - base) // layout.CQ_UNIT_BYTES), 0)
    file.close()
