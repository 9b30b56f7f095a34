"""APPEND entries of copies that agents make of the log's records: where they go, what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import machine
from gantrymq.shm.codes import EntryFlag, EntryKind, Level
from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels import scan
from gantrymq.shm.kernels.dispatch import find_topic
from gantrymq.shm.layout import (
    APPEND_BORN_HOST,
    APPEND_BYTES,
    APPEND_PREPARED,
    APPEND_RECONSUME,
    APPEND_STORE_HOST,
    APPEND_SYS_FLAG,
    ENTRY_APP_FLAG,
    ENTRY_BATCH,
    ENTRY_BODY,
    ENTRY_BORN,
    ENTRY_BYTES,
    ENTRY_FLAGS,
    ENTRY_KIND,
    ENTRY_QUEUE,
    ENTRY_ROUTE,
    ENTRY_SEQ,
    HOST_BYTES_V4,
    HOST_BYTES_V6,
    RECORD_BORN_HOST,
    RECORD_BORN_MS,
    RECORD_FLAG,
    SYS_BORN_V6,
    SYS_STORE_V6,
    TOPIC_BYTES,
    TOPIC_LEVEL,
    TOPIC_QUEUE_COUNT,
    TOPICS_AT,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]
    #: The lane's arena and words; the board, its topics by name and the index's mask.
    Targets = tuple[Bytes, Words, Bytes, Words, int]

APPEND = int(EntryKind.APPEND)
RECEIPT = int(EntryFlag.RECEIPT)
DURABLE = int(EntryFlag.DURABLE)
LEVEL_DURABLE = int(Level.DURABLE)


@kernel()
def find_named(log: Bytes, at: int, count: int, row: Words, targets: Targets) -> int:
    """Slot of the topic whose name stands in the log, or -1; it becomes the topic of `row`."""
    row[scan.TOPIC_AT] = at
    row[scan.TOPIC_SIZE] = count
    slot: int = find_topic(log, row, targets[2], targets[3], targets[4])
    return slot


@kernel()
def choose_queue(board: Bytes, topic: int, wanted: int) -> int:
    """The wanted queue, another where the topic has fewer than it had, -1 where it has none."""
    count = machine.load32(board, TOPICS_AT + topic * TOPIC_BYTES + TOPIC_QUEUE_COUNT)
    if count <= 0:
        return -1
    return wanted if 0 <= wanted < count else max(wanted, 0) % count


@kernel()
def is_durable(board: Bytes, topic: int) -> int:
    """1 if a topic's messages are shown, and acknowledged, once they are on the disk."""
    level = machine.load32(board, TOPICS_AT + topic * TOPIC_BYTES + TOPIC_LEVEL)
    return 1 if level == LEVEL_DURABLE else 0


@kernel()
def store_head(arena: Bytes, at: int, route: tuple[int, int, int], born_ms: int) -> None:
    """What each entry says. `route`: seq, topic slot, queue."""
    seq, topic, queue = route
    machine.store16(arena, at + ENTRY_KIND, APPEND)
    machine.store64(arena, at + ENTRY_SEQ, seq)
    machine.store64(arena, at + ENTRY_BORN, born_ms)
    machine.store32(arena, at + ENTRY_ROUTE, topic)
    machine.store32(arena, at + ENTRY_QUEUE, queue)
    machine.store32(arena, at + ENTRY_BATCH, 0)


@kernel()
def fill_entry(
    arena: Bytes, at: int, log: Bytes, row: Words, route: tuple[int, int, int],
    marks: tuple[int, int],
) -> int:  # fmt: skip
    """Write the entry of a parsed record's copy but for its properties and both their lengths.

    `marks`: sysFlag and preparedTransactionOffset. Returns where the properties go.
    """
    record = row[scan.AT]
    flags = row[scan.SYS_FLAG]
    born = HOST_BYTES_V6 if flags & SYS_BORN_V6 else HOST_BYTES_V4
    store = HOST_BYTES_V6 if flags & SYS_STORE_V6 else HOST_BYTES_V4
    hosts = record + RECORD_BORN_HOST
    behind = hosts + born + 8 + store
    body = row[scan.BODY_SIZE]
    store_head(arena, at, route, machine.load_be64(log, record + RECORD_BORN_MS))
    machine.store16(arena, at + ENTRY_FLAGS, RECEIPT)
    machine.store32(arena, at + ENTRY_BODY, body)
    machine.store32(arena, at + ENTRY_APP_FLAG, machine.load_be32(log, record + RECORD_FLAG))
    extension = at + ENTRY_BYTES
    machine.store32(arena, extension + APPEND_SYS_FLAG, marks[0])
    machine.store32(arena, extension + APPEND_RECONSUME, machine.load_be32(log, behind))
    machine.store64(arena, extension + APPEND_PREPARED, marks[1])
    machine.copy(arena, extension + APPEND_BORN_HOST, log, hosts, born)
    machine.copy(arena, extension + APPEND_STORE_HOST, log, hosts + born + 8, store)
    machine.copy(arena, extension + APPEND_BYTES, log, row[scan.BODY_AT], body)
    end: int = extension + APPEND_BYTES + body
    return end
