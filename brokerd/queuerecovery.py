"""What of the queues' files holds when a broker starts, and what recovery makes of the rest.

The last step of brokerd/recovery.py, which is why it can be done again as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gantrymq.brokerd.logscan import Piece, queue_offsets, queues_of, walk
from gantrymq.brokerd.memberqueues import MemberQueues, UnknownBatchTopic
from gantrymq.brokerd.queuefiles import QueueKey, has_all_files, remove_files, unit_of
from gantrymq.brokerd.queuestarts import first_unit, read_starts
from gantrymq.shm import layout
from gantrymq.shm.bitmapnote import DIRECTORY as EXTENSIONS
from gantrymq.shm.codes import BrokerState
from gantrymq.shm.kernels import scan
from gantrymq.shm.lognames import positions_in
from gantrymq.shm.queuenames import DIRECTORY as QUEUES
from gantrymq.shm.queuenames import MEMBERS, folder_of, queue_directory
from gantrymq.shm.storage import Storage, clear_behind, folders_in
from gantrymq.workers.housekeeper.progress import PROGRESS_FILE, read_progress

if TYPE_CHECKING:
    from gantrymq.brokerd.config import Settings
    from gantrymq.brokerd.recovered import Recovered
    from gantrymq.shm.board import Board


def recover_queues(
    storage: Storage,
    settings: Settings,
    found: Recovered,
    old_board: Board | None,
) -> None:
    """Decide from where on the reader makes units, and cut what lies behind in the files.

    `old_board` is of a life that was killed and has not failed: after a failed sync pages count as
    clean that are not on the disk, so that units since the last good one are written again.
    """
    cq_bytes = settings.mapped_file_size_consume_queue
    members = MemberQueues(storage, cq_bytes)
    known = _from_board(old_board) if old_board else read_progress(storage)
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
            for root in (QUEUES, MEMBERS):
                _cut_queues(storage, cq_bytes, root, written)
            _find_next_offsets(storage, settings.mapped_file_size_commit_log, found, members)
            for key in found.starts:  # the reader makes all their units
                for root in (QUEUES, EXTENSIONS):
                    remove_files(storage, f"{root}/{folder_of(key[0])}/{key[1]}")
            return
    _rebuild(storage, settings, found, members)


def has_failed(old_board: Board | None) -> bool:
    """Whether the life before ended as a write or sync failed, if its board still tells of it."""
    return old_board is not None and old_board.half(layout.BOARD_STATE) == BrokerState.FAILED


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
    if row is not None and row["size"] == layout.CQ_FILLER_SIZE:  # all its records are gone
        return kept is not None and kept >= units
    return row is not None and 0 < row["size"] <= appended - row["physical_offset"]


def _cut_queues(
    storage: Storage, cq_bytes: int, root: str, written: Mapping[QueueKey, int]
) -> None:
    """Make everything behind each queue's units a hole again, and remove later files."""
    for topic in folders_in(storage, root):
        for folder in folders_in(storage, f"{root}/{topic}"):
            units = written.get((topic, int(folder)), 0) if folder.isdecimal() else 0
            _cut_queue(storage, cq_bytes, f"{root}/{topic}/{folder}", units)


def _cut_queue(storage: Storage, cq_bytes: int, folder: str, units: int) -> None:
    end = units * layout.CQ_UNIT_BYTES
    for name in positions_in(storage, folder):  # what else is there, verify names
        path = f"{folder}/{name}"
        base = int(name)
        if base >= end:
            storage.unlink(path)
        elif base + cq_bytes > end or storage.size_of(path) != cq_bytes:
            file = storage.open(path, write=True)
            clear_behind(file, min(end - base, cq_bytes), cq_bytes)
            file.close()


def _rebuild(storage: Storage, settings: Settings, found: Recovered, members: MemberQueues) -> None:
    """Forget all units; the reader makes them from the log's first record on."""
    cq_bytes = settings.mapped_file_size_consume_queue
    segment_bytes = settings.mapped_file_size_commit_log
    found.dispatched = found.low
    if storage.exists(PROGRESS_FILE):  # or the next start would believe it of the new units
        storage.unlink(PROGRESS_FILE)
        storage.sync_directory("gantry")
    for root in (QUEUES, MEMBERS, EXTENSIONS):  # no unit has an address of these any more
        _cut_queues(storage, cq_bytes, root, {})
    _find_next_offsets(storage, segment_bytes, found, members)
    for key, first in (read_starts(storage) or (0, {}))[1].items():
        if key not in found.queues:  # all its records have expired: its offsets go on all the same
            found.queues[key] = (first, first, first)
    for key, (_next, _written, first) in found.queues.items():
        if first and key not in members.queues:
            _fill_front(storage, cq_bytes, queue_directory(storage, *key), first)


def _find_next_offsets(
    storage: Storage, segment_bytes: int, found: Recovered, members: MemberQueues
) -> None:
    """Queues also hold records whose units the reader has yet to make: nobody may take less.

    Member queues get these units here.
    """
    known = dict(found.queues)
    while True:
        members.queues = {
            key: (units, low) for key, (_next, units, low) in known.items()
            if key[0] in members.topics
        }  # fmt: skip
        try:
            _walk_on(storage, segment_bytes, found, members)
            break
        except UnknownBatchTopic:
            found.queues = dict(known)
    for key, (following, low) in members.queues.items():
        found.queues[key] = (following, following, low)


def _walk_on(storage: Storage, segment_bytes: int, found: Recovered, members: MemberQueues) -> None:
    for piece in walk(storage, segment_bytes, found.dispatched, found.appended, 0):
        offsets = queue_offsets(piece)
        topics = {topic for topic, _queue in offsets}
        found.topics.update(topics)
        members.take(piece, topics)
        if (piece.rows[:, scan.SYS_FLAG] & layout.SYS_TRANSACTION).any():
            note_topics(piece, found.topics)  # some of its records have no place in a queue
        for key, seen in offsets.items():
            following, written, low = found.queues.get(key, (seen.first,) * 3)
            if seen.begins(following):
                following = written = low = 0
                found.starts[key] = seen.position
            found.queues[key] = (max(following, seen.highest + 1), written, low)


def _fill_front(storage: Storage, cq_bytes: int, folder: str, offset: int) -> None:
    """A queue whose first unit is not 0 begins with filler units in its first file (SF-65)."""
    end = offset * layout.CQ_UNIT_BYTES
    base = end // cq_bytes * cq_bytes
    file = storage.create(f"{folder}/{base:020d}")
    file.truncate(cq_bytes)
    unit = layout.CQ_UNIT.pack(size=layout.CQ_FILLER_SIZE)
    file.write_at(unit * ((end - base) // layout.CQ_UNIT_BYTES), 0)
    file.close()


def note_topics(piece: Piece, topics: set[str]) -> None:
    """Note the topics of all its records, those without a place in a queue too."""
    topics.update(topic for topic, _queue in queues_of(piece))
