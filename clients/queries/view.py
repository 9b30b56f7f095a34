"""What is known of a store when it is looked at: its sizes, where its log and queues begin and end.

Of a running broker by its board, of a stopped one by its files. Nothing is changed; loads no numpy.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.clients.control import look_at
from gantrymq.clients.home import board_file, no_store, store_of
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.queries.inner import QUEUES as BATCH_QUEUES
from gantrymq.clients.queries.inner import batch_offsets
from gantrymq.clients.running import board_name, find_board
from gantrymq.shm import configfile, layout, topicfiles, wire
from gantrymq.shm.board import NOBODYS
from gantrymq.shm.codes import Level
from gantrymq.shm.errors import Corrupt, TopicNotFound
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.indexnote import (
    DEFAULT_SHAPE,
    DIRECTORY,
    NOTE_FILE,
    Shape,
    parse_header,
    read_note,
)
from gantrymq.shm.lognames import DIRECTORY as LOG
from gantrymq.shm.lognames import bases_of, segment_name
from gantrymq.shm.ownfiles import open_file
from gantrymq.shm.queuenames import DIRECTORY as _QUEUES
from gantrymq.shm.queuenames import MEMBERS, queue_directory, root_of
from gantrymq.shm.ranges import FILE as RANGES_FILE
from gantrymq.shm.storage import PosixStorage, lengths_below, read_file, usual_length
from gantrymq.shm.storelock import BOARD_BYTE, is_held
from gantrymq.shm.storereader import StoreReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gantrymq.shm.board import Board, TopicSlot
    from gantrymq.shm.record import Record
    from gantrymq.shm.storage import Storage

#: So much of a file is read at once that hardly ever has more.
_SMALL_BYTES: Final = 16_384
#: Behind every log.
NO_END: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Span:
    """Queue offsets [first, end) of messages that are there.

    `listed`: they have units of ours, which are like those of other topics; else RocketMQ's own
    units of type BatchCQ say more.
    """

    queue: MessageQueue
    first: int
    end: int
    listed: bool = True


class StoreView(Protocol):
    """A store as of one moment; log positions are bytes."""

    storage: Storage
    #: Why the index may lack messages below `indexed`; empty: it has them all.
    doubt: str

    @property
    def reader(self) -> StoreReader:
        """Reads its records; knows what of the log we wrote."""

    @property
    def shape(self) -> Shape:
        """Of the index files."""

    @property
    def segment_bytes(self) -> int:
        """Of a segment."""

    @property
    def cq_bytes(self) -> int:
        """Of a ConsumeQueue file."""

    @property
    def low(self) -> int:
        """Lowest position that is there."""

    @property
    def end(self) -> int:
        """Where the log ends; NO_END: at the first bytes that are no record."""

    @property
    def indexed(self) -> int:
        """Keys of records below have their entries; -1: there is no index."""

    def topics(self) -> list[str]:
        """Names of all topics that have, or had, messages."""

    def spans(self, topic: str) -> list[Span]:
        """The topic's queues. Raises TopicNotFound."""

    def shows(self, record: Record) -> bool:
        """Whether a record is there for good, as far as its topic's level asks for that."""


def look(home: Path, shape: Shape | None = None) -> StoreView:
    """What is at a home directory now; `shape` of the index files of a RocketMQ's store.

    Raises BrokerGone where there is neither a broker nor a store.
    """
    board = find_board(home)
    storage = PosixStorage(str(store_of(home)))
    if board is not None:
        return RunningStore(home, storage, board)
    if not storage.exists(LOG):
        raise no_store(home)
    read_ahead(
        storage,
        [
            *((name, 0, _SMALL_BYTES) for name in (NOTE_FILE, RANGES_FILE, topicfiles.TOPICS)),
            *(
                (f"{DIRECTORY}/{name}", 0, layout.INDEX_HEADER_BYTES)
                for name in storage.list(DIRECTORY)
            ),
        ],
    )
    return StoppedStore(storage, shape or DEFAULT_SHAPE)


def _segment_bytes(storage: Storage, bases: Sequence[int]) -> int:
    """Of each segment of a stopped store, 0 without one. Raises Corrupt for one of another length.

    By it a position's segment is found: with a wrong one messages would count as expired.
    """
    if not bases:
        return 0
    sizes = [storage.size_of(segment_name(base)) for base in bases]
    gaps = [behind - base for base, behind in pairwise(bases)]
    wanted = min(gaps, default=sizes[0])
    if wanted not in sizes:  # files are missing between all that are there
        wanted = sizes[0]
    # The last may be one that a power cut has made short: it holds nothing then.
    for base, size in list(zip(bases, sizes, strict=True))[: max(1, len(gaps))]:
        if not size or size != wanted:
            name = segment_name(base)
            raise Corrupt(
                f"{name} has {size} bytes, which no segment of this log has: `gantrymq store"
                " verify` names all that is damaged",
                path=name,
                position=base,
            )
    return wanted


def read_ahead(storage: Storage, pieces: Iterable[tuple[str, int, int]]) -> None:
    """Have the kernel begin to read pieces (file, place, bytes) at the same time.

    Who then reads them one by one waits for the disk once. What is gone is passed over.
    """
    for name, at, count in pieces:
        try:
            opened = open_file(os.path.join(storage.root, name), os.O_RDONLY)
        except OSError as error:
            require_ours(error)
            continue
        with opened:
            os.posix_fadvise(opened.number, at, count, os.POSIX_FADV_WILLNEED)


def no_topic(topic: str) -> TopicNotFound:
    """What is said of a topic that is not there."""
    return TopicNotFound(
        f"there is no topic {topic}: `gantrymq topic list` shows all of a running broker",
        topic=topic,
    )


def _begun(span: Span, begins: Sequence[int]) -> Span:
    """Of a topic that was made again: without what was in the queue before."""
    number = span.queue.queue_id
    begin = topicfiles.begin_in(begins, number)
    return replace(span, first=max(span.first, min(begin, span.end)))


class RunningStore:
    """By the board of a broker that runs, or did a moment ago."""

    doubt = ""

    def __init__(self, home: Path, storage: Storage, board: Board) -> None:
        self.storage = storage
        self.board = board
        self.segment_bytes = board.segment_bytes
        self.cq_bytes = board.cq_bytes
        self._home = home
        self._board_file = str(board_file(home))
        self._board_file_state = (0, 0)
        self._reader: StoreReader | None = None
        self._topics: tuple[tuple[int, int], list[str]] = (-1, -1), []

    def is_current(self) -> bool:
        """Whether that broker still runs."""
        try:
            found = os.stat(self._board_file)
        except FileNotFoundError as error:
            require_ours(error)
            return False
        state = found.st_ino, found.st_mtime_ns
        if state == self._board_file_state:  # it is replaced whole
            return is_held(self.storage.root, BOARD_BYTE)
        current = board_name(self._home) == self.board.name
        self._board_file_state = state if current else (0, 0)
        return current

    @property
    def reader(self) -> StoreReader:
        """Kept: what we wrote does not change any more once the broker has opened its range."""
        reader = self._reader
        if reader is None or not reader.ranges.is_open:
            reader = self._reader = StoreReader(self.storage)
        return reader

    @cached_property
    def shape(self) -> Shape:
        """As the broker was told. Raises BrokerGone."""
        with look_at(self._home) as control:
            shown = control.request(wire.ShowSettings(), wire.Settings).values
        return Shape(int(shown["max_hash_slot_num"]), int(shown["max_index_num"]))

    @property
    def low(self) -> int:
        """As on the board."""
        return self.board.word(layout.BOARD_LOW)

    @property
    def end(self) -> int:
        """What is appended."""
        return self.board.word(layout.BOARD_APPENDED)

    @property
    def indexed(self) -> int:
        """As on the board."""
        return self.board.word(layout.BOARD_INDEXED)

    def topics(self) -> list[str]:
        """Those that were deleted, too: their messages stay until retention takes them."""
        board = self.board
        state = board.half(layout.BOARD_TOPIC_COUNT), board.half(layout.BOARD_TOPIC_CHANGES)
        known, names = self._topics
        if state != known:
            names = [topic.name for topic in board.topics()]
            if len(names) == state[0]:  # all are complete
                names = [name for name in names if not name.startswith(NOBODYS)]
                self._topics = state, names
        return names

    def shows(self, record: Record) -> bool:
        """No record of a durable topic before the log is durable behind it, as for consumers."""
        end = record.physical_offset + record.total_size
        if self.board.word(layout.BOARD_DURABLE) >= end:
            return True
        topic = self.board.topic_named(record.topic)
        return topic is None or topic.level != Level.DURABLE

    def spans(self, topic: str) -> list[Span]:
        """As on the board. Raises TopicNotFound, of a deleted one too."""
        found = self.board.topic_named(topic)
        if found is None or not found.perm:
            raise no_topic(topic)
        return [self._span(found, number) for number in range(found.queue_count)]

    def _span(self, topic: TopicSlot, queue_id: int) -> Span:
        words = self.board.queue(topic.queue_base + queue_id)
        first = words["min_offset"]
        return Span(MessageQueue(topic.name, queue_id), first, max(first, words["max_offset"]))


class StoppedStore:
    """By the files of a store, ours or a RocketMQ's, that no broker has."""

    end = NO_END

    def __init__(self, storage: Storage, shape: Shape) -> None:
        self.storage = storage
        bases = bases_of(storage)
        self.low = bases[0] if bases else 0
        self.segment_bytes = _segment_bytes(storage, bases)
        self.doubt = ""
        known = read_note(storage)
        if known is not None:
            self.shape = known[0]
            there = set(storage.list(DIRECTORY))
            gone = [
                header.begin_position
                for name, header in known[1].files
                if name not in there and header.end_position >= self.low
            ]
            is_short = known[1].low > self.low  # keys went, and their segments are there again
            self.indexed = self.low if is_short else min([known[1].position, *gone])
        else:
            self.shape = shape
            self.indexed = self._end_of_index()
            if self.indexed >= 0:
                self.doubt = "the index is another broker's, which may have lost keys in a crash"

    def _end_of_index(self) -> int:
        """Position of the last record that an index of nobody's note has a key of; -1: none."""
        for name in reversed(self.storage.list(DIRECTORY)):
            head = bytearray(layout.INDEX_HEADER_BYTES)
            file = self.storage.open(f"{DIRECTORY}/{name}")
            file.read_into(head, 0)
            file.close()
            header = parse_header(head)
            if header.count > 1:
                return header.end_position
        return -1

    @cached_property
    def reader(self) -> StoreReader:
        """Reads its records."""
        return StoreReader(self.storage)

    def shows(self, record: Record) -> bool:
        """What is left of a store that nobody writes is there for good."""
        del record
        return True

    @cached_property
    def cq_bytes(self) -> int:
        """That of its ConsumeQueue files; 0 without one."""
        for root in (_QUEUES, MEMBERS):
            found = usual_length(lengths_below(self.storage, root, 2), layout.CQ_UNIT_BYTES)
            if found:
                return found
        return 0

    def topics(self) -> list[str]:
        """Those of `config/topics.json`, and all that have queue files."""
        queues = self.storage.list(_QUEUES) + self.storage.list(BATCH_QUEUES)
        return sorted({*queues, *self._configured})

    @cached_property
    def _configured(self) -> dict[str, dict[str, Any]]:
        """Entries of `config/topics.json`."""
        return topicfiles.topic_table(configfile.read_config(self.storage, "topics.json"))

    @cached_property
    def _deleted(self) -> frozenset[str]:
        """Topics that were deleted and not made again, of which the log may have messages."""
        try:
            data = read_file(self.storage, topicfiles.DELETED)
        except FileNotFoundError as error:
            require_ours(error)
            return frozenset()
        return topicfiles.deleted_names(data) - self._configured.keys()

    def spans(self, topic: str) -> list[Span]:
        """As the queue files say. Raises TopicNotFound, of a deleted one too."""
        if topic not in self.topics() or topic in self._deleted:
            raise no_topic(topic)
        names = {
            *self.storage.list(f"{root_of(self.storage, topic)}/{topic}"),
            *self.storage.list(f"{BATCH_QUEUES}/{topic}"),
        }
        entry = self._configured.get(topic, {})
        count = max(int(entry.get(name, 0)) for name in ("readQueueNums", "writeQueueNums"))
        numbers = sorted({*range(count), *(int(name) for name in names if name.isdecimal())})
        spans = [self._longer_span(MessageQueue(topic, number)) for number in numbers]
        begins = topicfiles.begins_of(entry.get("attributes") or {})
        return [_begun(span, begins) for span in spans]

    def _longer_span(self, queue: MessageQueue) -> Span:
        """A RocketMQ may have gone on behind our units; we, before a kill, behind its."""
        ours = self._span(queue)
        first, end = batch_offsets(self.storage, queue, self.low)
        return ours if ours.end >= end else Span(queue, first, end, listed=False)

    def _span(self, queue: MessageQueue) -> Span:
        folder = queue_directory(self.storage, queue.topic, queue.queue_id)
        bases = [int(name) for name in self.storage.list(folder) if name.isdecimal()]
        per_file = self.cq_bytes // layout.CQ_UNIT_BYTES
        end = 0
        for base in reversed(bases):
            start = base // layout.CQ_UNIT_BYTES
            file = range(start, start + per_file)
            end = start + bisect_left(file, 1, key=lambda at: not self._unit(queue, at)["size"])
            if end > start:
                break
        first = bases[0] // layout.CQ_UNIT_BYTES if bases else 0
        first += bisect_left(range(first, end), True, key=lambda at: self._is_there(queue, at))
        return Span(queue, first, max(first, end))

    def _is_there(self, queue: MessageQueue, offset: int) -> bool:
        """Whether the log has the record; a filler stands for what is gone (SF-65).

        What is damaged is there: it is named when it is looked at. Positions rise in a queue.
        """
        unit = self._unit(queue, offset)
        position = unit["physical_offset"]
        if unit["size"] == layout.CQ_FILLER_SIZE or 0 <= position < self.low:
            is_first = offset * layout.CQ_UNIT_BYTES % self.cq_bytes == 0  # of its file
            older = 0 if is_first else self._unit(queue, offset - 1)["physical_offset"]
            return bool(older >= self.low > 0)
        return True

    def _unit(self, queue: MessageQueue, offset: int) -> dict[str, int]:
        at = offset * layout.CQ_UNIT_BYTES
        start = at // self.cq_bytes * self.cq_bytes
        folder = queue_directory(self.storage, queue.topic, queue.queue_id)
        file = self.storage.open(f"{folder}/{start:020}")
        data = bytearray(layout.CQ_UNIT_BYTES)
        file.read_into(data, at - start)
        file.close()
        return layout.CQ_UNIT.unpack(data)
