"""A batch of staged rows into the log, each row once, whoever is killed meanwhile.

Every attempt is a producer of its own, whose random number the ledger names before the first
message. It sends all-or-nothing batches one behind the other, so that what the log has of it is
always the beginning of what it had to send. Who goes on after a kill attaches under the dead
attempt's number, so that nothing more can come of it, counts its messages in the log, and sends
the rest as an attempt of its own. The log is the truth: what a writer remembers of producers is
bounded in time, and counts refused messages too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.clients import message as rules
from gantrymq.clients.delays import is_delayed
from gantrymq.clients.home import find_home, store_of
from gantrymq.clients.lane import WriterLane
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.session import Session, now_ns
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.planning import survey
from gantrymq.clients.spark.scan import read
from gantrymq.clients.spark.sink.ledger import Ledger, Pending, StagingFolder
from gantrymq.clients.spark.sink.staging import Staged, staged_messages
from gantrymq.shm import layout, limits
from gantrymq.shm.board import Board
from gantrymq.shm.errors import Incompatible, MessageIllegal, Rejected, StoreFailed, Timeout
from gantrymq.shm.lineage import lineage_of
from gantrymq.shm.storage import PosixStorage

#: What one all-or-nothing batch may have; bytes of records, but for a row that is alone.
CHUNK_ROWS: Final = 1024
CHUNK_BYTES: Final = 128 << 10
#: Hosts that are IPv6 take so many bytes more.
_V6_BYTES: Final = 2 * (layout.HOST_BYTES_V6 - layout.HOST_BYTES_V4)
#: A record without body, name of topic, and what its sender says: lengths, UNIQ_KEY and checksum.
_RECORD_BYTES: Final = (
    layout.RECORD_HEAD_BYTES + _V6_BYTES + 4
    + limits.UNIQ_KEY_PROPERTY_BYTES + limits.TRAILER_BYTES
)  # fmt: skip
_LOOK_S: Final = 0.01
_IDS: Final = pa.schema([("message_id", pa.string())])


@dataclass(frozen=True, slots=True)
class Target:
    """The broker's home (None: the default one), and what bounds each wait, in seconds."""

    home: str | None
    timeout_s: float


def send_batch(target: Target, folder: StagingFolder, batch: int, files: tuple[Staged, ...]) -> int:
    """Send the rows of a batch, or what is missing of them; the number sent by this call.

    Does nothing for a batch that is in the log. Raises BrokerGone, TopicNotFound, StoreBusy,
    StoreFailed, Corrupt, Incompatible, and what a send raises; the same call goes on then.
    """
    with folder.locked(target.timeout_s):
        ledger = folder.load()
        if batch <= ledger.done:
            folder.drop(files)
            return 0
        pending = ledger.pending or Pending(batch, files)
        if pending.batch != batch:
            raise Incompatible(
                f"batch {pending.batch} of {folder.root} is not finished, and this is batch {batch}"
            )
        sent = _send_rest(target, folder, ledger, pending) if pending.rows else 0
        folder.save(Ledger(done=batch))
        folder.clear()
        return sent


def _send_rest(target: Target, folder: StagingFolder, ledger: Ledger, pending: Pending) -> int:
    with Producer(target.home, timeout=target.timeout_s) as producer:
        sends = producer._sends
        for topic in pending.topics:
            sends.level_of(topic, None)  # refused here, nothing of the batch is sent
        board = sends.link.session.board
        _require_store(sends.link.session, pending, folder)
        done = pending.sent + _count_attempt(target, pending) if pending.identity else 0
        pending = msgspec.structs.replace(
            pending,
            sent=done,
            identity=sends.link.identity[0],
            position=board.word(layout.BOARD_APPENDED),
            store=sends.link.session.store_id,
        )
        folder.save(msgspec.structs.replace(ledger, pending=pending))
        messages = staged_messages(folder.root, pending.files, done)
        count = _send_all(producer, messages, board.segment_bytes, done)
        if done + count != pending.rows:
            raise StoreFailed(f"{done + count} rows of {pending.rows} were sent: {folder.root}")
        board = sends.link.session.board  # it may be another one by now
        _wait_durable(board, target.timeout_s)
        return count


def _require_store(session: Session, pending: Pending, folder: StagingFolder) -> None:
    """What was sent of a batch is counted in the log that it was sent to, or nowhere."""
    lineage = lineage_of(PosixStorage(session.store))
    if pending.store and not lineage.holds(pending.store, pending.position):
        raise Incompatible(
            f"a part of batch {pending.batch} of {folder.root} was sent into store {pending.store},"
            f" behind position {pending.position}; the broker at {session.home} has store"
            f" {lineage.store}, which was made anew, or put back from a back-up: write into this"
            " one with a checkpointLocation of its own"
        )


def _send_all(
    producer: Producer, messages: Iterable[Message], segment_bytes: int, first: int
) -> int:
    """One behind the other: what the log has is the beginning, whatever is refused."""
    count = 0
    for chunk in _chunks(messages, segment_bytes, first):
        if is_delayed(chunk[0]):
            producer.send(chunk[0], durability="written")
        else:
            producer.send_batch(chunk, durability="written")
        count += len(chunk)
    return count


def _chunks(
    messages: Iterable[Message], segment_bytes: int, first: int = 0
) -> Iterator[list[Message]]:
    """Neighbours of one topic and queue that one segment can hold; a message with a delay is alone.

    `first`: which row of the batch is the first message.

    Raises MessageIllegal for a row that no segment can hold.
    """
    chunk: list[Message] = []
    total, place = 0, None
    room = min(CHUNK_BYTES, segment_bytes - limits.FILLER_BYTES_MIN)
    for row, message in enumerate(messages, first):
        delayed = is_delayed(message)
        here = (message.topic, message.queue_id, message.message_group, delayed)
        size = _record_bytes(message)
        if size - _V6_BYTES > segment_bytes - limits.FILLER_BYTES_MIN:
            raise MessageIllegal(
                f"row {row} of the batch, of topic {message.topic}, takes {size - _V6_BYTES} bytes"
                f" of the log with its properties, and a segment has {segment_bytes}"
                " (mapped_file_size_commit_log)",
                topic=message.topic,
            )
        full = delayed or len(chunk) == CHUNK_ROWS or total + size > room
        if chunk and (full or here != place):
            yield chunk
            chunk, total = [], 0
        chunk.append(message)
        total += size
        place = here
    if chunk:
        yield chunk


def _record_bytes(message: Message) -> int:
    """What a message takes in the log, at most."""
    extra = rules.extra_block(message.keys, message.properties, message.message_group)
    named = len(message.topic.encode()) + len(rules.tag_block(message.tag))
    return _RECORD_BYTES + memoryview(message.body).nbytes + named + len(extra)


# ------------------------------------------------------------------------- what an attempt has sent


def _count_attempt(target: Target, pending: Pending) -> int:
    """Messages in the log of an attempt that was broken off; no more can come of it afterwards."""
    _fence(target, bytes.fromhex(pending.identity))
    options = ReadOptions(
        store=str(store_of(find_home(target.home))),
        start_offset=pending.position,
        columns=("message_id",),
        include_system=True,  # delayed ones wait there
        include_active=True,
    )
    found = survey(options, pending.position)
    if found.high < pending.position:
        if pending.store:  # this one: a power cut took all that was sent behind the position
            return 0
        raise Incompatible(
            f"the log ends at {found.high}, and rows were sent behind {pending.position}:"
            f" {options.store} is another store than that"
        )
    gone = found.gaps(pending.position, found.high)
    if gone:
        raise StoreFailed(
            f"positions {gone[0][0]} to {gone[-1][1]} of the log are gone, where rows of a batch"
            " that was broken off may have been: look in the topic which of them there are"
        )
    ids: set[str] = set()
    for part in found.ranges(pending.position, found.high):
        for batch in read(part, options, _IDS):
            column = batch.column("message_id")
            ids.update(column.filter(pc.starts_with(column, pending.identity)).to_pylist())
    return len(ids)


def _fence(target: Target, producer: bytes) -> None:
    """End a dead attempt's session; what was in its ring is in the log then, durably."""
    deadline_ns = now_ns() + int(target.timeout_s * 1e9)
    session = _take_over(target, producer, deadline_ns)
    try:
        lane = WriterLane(session.arena, session.plan.writer, 0, 0)
        if not session.wait(deadline_ns, lane.adopted):
            raise Timeout("the broker's writer has not taken the session over yet")
        _wait_durable(session.board, target.timeout_s)
    finally:
        session.close()


def _take_over(target: Target, producer: bytes, deadline_ns: int) -> Session:
    """A session under the number of a process that is dead, or about to be noticed as dead."""
    while True:
        try:
            return Session(target.home, producer)
        except Rejected:
            if now_ns() >= deadline_ns:
                raise
        threading.Event().wait(_LOOK_S)


def _wait_durable(board: Board, timeout_s: float) -> None:
    """Until all that is in the log now is durable. Raises Timeout."""
    end = board.word(layout.BOARD_APPENDED)
    deadline = time.monotonic() + timeout_s
    while board.word(layout.BOARD_DURABLE) < end:
        if time.monotonic() >= deadline:
            raise Timeout("what was sent is not durable yet: is the disk stuck?", position=end)
        threading.Event().wait(_LOOK_S)
