"""Messages in columns: what `poll` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, overload

import numpy as np

from gantrymq.clients.arguments import judged
from gantrymq.clients.columns import ByteColumn, Columns, PlainBodies, Words
from gantrymq.clients.lazy import Lazy
from gantrymq.clients.message import (
    GROUP_PROPERTY,
    BrokersProperties,
    MessageQueue,
    ReceivedMessage,
    as_sent,
    attempt_of,
)
from gantrymq.clients.stored_body import plain_body
from gantrymq.shm import layout
from gantrymq.shm.errors import ArgumentIllegal, Corrupt
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.groupwire import Attempts
from gantrymq.shm.kernels import fetch
from gantrymq.shm.layout import SYS_COMPRESSED
from gantrymq.shm.limits import RESERVED_KEYS
from gantrymq.shm.messageid import format_host, offset_message_id
from gantrymq.shm.properties import DLQ_PREFIX, parse_properties

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Lazy("pyarrow")

_TRAILER: Final = layout.TRAILER_KEY.decode()


class MessageBatch(Sequence[ReceivedMessage]):
    """Messages of one poll, in order within each queue.

    Columns are numpy arrays of one number per message; iterating makes `Message` objects, which
    costs microseconds each. Everything stays valid as long as it is referenced. A body that its
    sender compressed is unpacked when it is asked for; if it cannot be, that message alone raises
    Corrupt.
    """

    def __init__(
        self,
        columns: Columns,
        count: int,
        queues: Mapping[int, MessageQueue],
        attempts: Mapping[int, Sequence[Attempts]],
    ) -> None:
        self._columns = columns
        self._count = count
        self._queues = queues
        self._attempts = attempts

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        count = f"{self._count} message{'s' * (self._count != 1)}"
        numbers = np.unique(self.board_queues).tolist()
        topics = ", ".join(sorted({self._queues[number].topic for number in numbers}))
        return f"<MessageBatch: {count}{' of ' * bool(topics)}{topics}>"

    @property
    def bodies(self) -> ByteColumn:
        """Bodies as they were sent. An item that cannot be unpacked raises Corrupt."""
        # Not kept: it would be a cycle, which holds the columns until the collector comes by.
        return PlainBodies(self.raw_bodies, self._unpack) if self._packed else self.raw_bodies

    @cached_property
    def _packed(self) -> bool:
        return bool(int(np.bitwise_or.reduce(self.sys_flags)) & SYS_COMPRESSED)

    @cached_property
    def raw_bodies(self) -> ByteColumn:
        """Bodies as they are stored, views of one buffer: some senders compress them."""
        return ByteColumn(self._columns.bodies, self._columns.body_offsets[: self._count + 1])

    @cached_property
    def raw_properties(self) -> ByteColumn:
        """Properties as stored (SF-27)."""
        offsets = self._columns.property_offsets[: self._count + 1]
        return ByteColumn(self._columns.properties, offsets)

    @cached_property
    def _views(self) -> tuple[memoryview, memoryview, memoryview]:
        """Bodies, properties and hosts."""
        return (
            self.raw_bodies.buffer.data,
            self.raw_properties.buffer.data,
            self._columns.hosts.data,
        )

    @cached_property
    def queue_offsets(self) -> Words:
        """Offset of each message in its queue."""
        return self._columns.column(fetch.QUEUE_OFFSET, self._count)

    @cached_property
    def positions(self) -> Words:
        """Position of each record in the log."""
        return self._columns.column(fetch.POSITION, self._count)

    @cached_property
    def born_timestamps(self) -> Words:
        """When each was sent, Unix ms."""
        return self._columns.column(fetch.BORN_MS, self._count)

    @cached_property
    def store_timestamps(self) -> Words:
        """When each was stored, Unix ms."""
        return self._columns.column(fetch.STORE_MS, self._count)

    @cached_property
    def reconsume_times(self) -> Words:
        """How often each was retried before."""
        return self._columns.column(fetch.RECONSUME_TIMES, self._count)

    @cached_property
    def sys_flags(self) -> Words:
        """Each record's sysFlag (SF-24)."""
        return self._columns.column(fetch.SYS_FLAG, self._count)

    @cached_property
    def flags(self) -> Words:
        """The application's flag of each."""
        return self._columns.column(fetch.FLAG, self._count)

    @cached_property
    def board_queues(self) -> Words:
        """Number of each message's queue on the board."""
        return self._columns.column(fetch.QUEUE_NUMBER, self._count)

    @property
    def queues(self) -> list[MessageQueue]:
        """Topic and queue id of each message."""
        return [self._queues[number] for number in self.board_queues.tolist()]

    @property
    def topics(self) -> list[str]:
        """Topic of each message."""
        return [queue.topic for queue in self.queues]

    @property
    def queue_ids(self) -> Words:
        """Queue id of each message."""
        return np.array([queue.queue_id for queue in self.queues], np.int64)

    @property
    def properties(self) -> list[dict[str, str]]:
        """All stored properties of each message, the broker's too (SF-28)."""
        return [parse_properties(bytes(raw)) for raw in self.raw_properties]

    @property
    def delivery_attempts(self) -> Words:
        """How often each message was delivered, this time included."""
        counts = self.reconsume_times + 1
        dead = [n for n, queue in self._queues.items() if queue.topic.startswith(DLQ_PREFIX)]
        if dead:  # they count deliveries of the messages that they were
            counts[np.isin(self.board_queues, dead) & (counts > 1)] -= 1
        for queue, ranges in self._attempts.items():
            for first, end, begun in ranges:
                offsets = self.queue_offsets
                counts[(self.board_queues == queue) & (offsets >= first) & (offsets < end)] += begun
        return counts

    @overload
    def __getitem__(self, index: int) -> ReceivedMessage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ReceivedMessage]: ...
    def __getitem__(self, index: int | slice) -> ReceivedMessage | Sequence[ReceivedMessage]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._message_at(index)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return map(self._message_at, range(self._count))

    @cached_property
    def _rows(self) -> list[tuple[int, ...]]:
        """Numbers of each message as Python's own, for `Message` objects."""
        bodies, properties = self.raw_bodies.offsets.tolist(), self.raw_properties.offsets.tolist()
        columns = (
            self.board_queues,
            self.queue_offsets,
            self.positions,
            self.born_timestamps,
            self.store_timestamps,
            self.reconsume_times,
            self.sys_flags,
        )
        spans = (bodies[:-1], bodies[1:], properties[:-1], properties[1:])
        return list(zip(*(column.tolist() for column in columns), *spans, strict=True))

    def prepare(self) -> None:
        """Do beforehand what the first message asked for would have to wait for."""
        _ = self._rows, self._views

    def message_at(self, row: int) -> ReceivedMessage:
        """One message, by its row. Raises ArgumentIllegal for a row that is none."""
        (row,) = judged("MessageBatch.message_at", row)
        if row >= self._count:
            raise ArgumentIllegal(f"row is {row}: the batch has {self._count} messages")
        return self._message_at(row)

    def _message_at(self, row: int) -> ReceivedMessage:
        """One message; the row is not checked."""
        number, offset, position, born_ms, store_ms, reconsumed, flags, *span = self._rows[row]
        bodies, properties, hosts = self._views
        queue = self._queues[number]
        stored = parse_properties(bytes(properties[span[2] : span[3]]))
        begun = 0
        if self._attempts:
            ranges = self._attempts.get(number, ())
            begun = sum(count for first, end, count in ranges if first <= offset < end)
        at = row * fetch.HOSTS_BYTES
        both = bytes(hosts[at : at + fetch.HOSTS_BYTES])
        body = bytes(bodies[span[0] : span[1]])
        if flags & SYS_COMPRESSED:
            body = self._plain(row, body, flags)
        tag, keys = stored.pop("TAGS", None), stored.pop("KEYS", "")
        unique, group = stored.pop("UNIQ_KEY", ""), stored.pop(GROUP_PROPERTY, None)
        topic = queue.topic
        if topic.startswith(DLQ_PREFIX):  # what a dead letter is told of by; the sum is nobody's
            stored.pop(_TRAILER, None)
            stored = BrokersProperties(stored)
        elif not RESERVED_KEYS.isdisjoint(stored):
            topic, stored = as_sent(topic, stored)
        return ReceivedMessage(
            topic,
            body,
            tag=tag,
            keys=tuple(keys.split()),
            properties=stored,
            queue_id=queue.queue_id,
            message_group=group,
            message_id=unique or offset_message_id(_store_host(both, flags), position),
            queue_offset=offset,
            born_timestamp=born_ms,
            store_timestamp=store_ms,
            born_host=_born_host(both, flags & layout.SYS_BORN_V6),
            delivery_attempt=attempt_of(queue.topic, reconsumed) + begun,
        )

    def _unpack(self, row: int) -> bytes | None:
        """The body of a row that is stored compressed, None of another. Raises Corrupt."""
        flags = int(self.sys_flags[row])
        return self._plain(row, self.raw_bodies[row], flags) if flags & SYS_COMPRESSED else None

    def _plain(self, row: int, body: bytes | memoryview, flags: int) -> bytes:
        try:
            return plain_body(body, flags)
        except ValueError as error:
            require_ours(error)
            queue = self._queues[int(self.board_queues[row])]
            offset, position = int(self.queue_offsets[row]), int(self.positions[row])
            raise Corrupt(
                f"the body of message {offset} of {queue.topic}/{queue.queue_id} at log position"
                f" {position} cannot be unpacked: {error}. Its checksum holds: so it was sent; the"
                " other messages are not touched",
                path="commitlog",
                position=position,
                queue=queue,
                queue_offset=offset,
            ) from error

    def to_arrow(self) -> pa.RecordBatch:
        """The same as an Arrow batch; bodies are not copied unless some are stored compressed.

        The body of a message that cannot be unpacked is null. Needs pyarrow.
        """
        attempts = np.minimum(self.delivery_attempts, np.iinfo(np.int32).max)
        moment = pa.timestamp("ms", "UTC")
        return pa.RecordBatch.from_pydict(
            {
                "topic": pa.array(self.topics, pa.string()),
                "queue_id": pa.array(self.queue_ids, pa.int32()),
                "queue_offset": pa.array(self.queue_offsets),
                "physical_offset": pa.array(self.positions),
                "body": self._arrow_bodies(),
                "born_timestamp": pa.array(self.born_timestamps).cast(moment),
                "store_timestamp": pa.array(self.store_timestamps).cast(moment),
                "delivery_attempt": pa.array(attempts, pa.int32()),
            }
        )

    def _arrow_bodies(self) -> pa.Array:
        if not self._packed:
            stored = self.raw_bodies
            buffers = [None, pa.py_buffer(stored.offsets), pa.py_buffer(stored.buffer)]
            return pa.Array.from_buffers(pa.large_binary(), self._count, buffers)
        return pa.array(map(self._body_or_none, range(self._count)), pa.large_binary())

    def _body_or_none(self, row: int) -> memoryview | None:
        try:
            plain = self._unpack(row)
        except Corrupt:
            return None
        return self.raw_bodies[row] if plain is None else memoryview(plain)


@lru_cache(maxsize=1024)
def _born_host(both: bytes, is_v6: int) -> str:
    """The born host of a row's two, as text."""
    return format_host(both[: layout.HOST_BYTES_V6 if is_v6 else layout.HOST_BYTES_V4])


def _store_host(both: bytes, flags: int) -> bytes:
    """The store host of a row's two, as stored."""
    size = layout.HOST_BYTES_V6 if flags & layout.SYS_STORE_V6 else layout.HOST_BYTES_V4
    return both[fetch.STORE_HOST_AT : fetch.STORE_HOST_AT + size]
