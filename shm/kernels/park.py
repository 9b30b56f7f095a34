"""A PARK entry -> the record in a system topic that waits until its message is due.

RocketMQ's form of it (DT-11, DT-33, DT-35, TX-3), so that the log alone tells when and where to
deliver: levels in SCHEDULE_TOPIC_XXXX, queue level - 1, times in rmq_sys_wheel_timer, queue 0,
messages of transactions in RMQ_SYS_TRANS_HALF_TOPIC, queue 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import machine
from gantrymq.shm.codes import ParkMode, Status
from gantrymq.shm.jit import kernel
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.decimals import decimal_bytes, store_decimal
from gantrymq.shm.kernels.encode import lay_out
from gantrymq.shm.kernels.entry import (
    EXTRA,
    KIND,
    MODE,
    OUT_MS,
    QUEUE,
    REAL_QUEUE,
    REAL_TOPIC,
    ROUTE_ID,
    SEND,
    TOPIC,
    VALUE,
)
from gantrymq.shm.layout import (
    ENTRY_BYTES,
    PARK_BYTES,
    TOPIC_BYTES,
    TOPIC_NAME,
    TOPIC_NAME_BYTES,
    TOPIC_QUEUE_COUNT,
    TOPICS_AT,
)
from gantrymq.shm.limits import DELIVER_MS_MAX, TRAILER_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]

LEVEL = int(ParkMode.LEVEL)
AT = int(ParkMode.AT)
AFTER = int(ParkMode.AFTER)
HALF = int(ParkMode.HALF)
OK = int(Status.OK)
ILLEGAL_DELAY = int(Status.ILLEGAL_DELAY)
UNKNOWN_ROUTE = int(Status.UNKNOWN_ROUTE)

# Names of properties with the byte that ends them, in words: _NAME_WORDS each, and their lengths.
_NAMES = (b"DELAY\x01", b"TIMER_DELIVER_MS\x01", b"TIMER_DELAY_MS\x01", b"TIMER_OUT_MS\x01",
          b"REAL_TOPIC\x01", b"REAL_QID\x01", b"__transactionId__\x01")  # fmt: skip
_DELAY, _DELIVER_MS, _DELAY_MS, _OUT_MS, _REAL_TOPIC, _REAL_QID, _ID = range(len(_NAMES))
#: UNIQ_KEY's value: hex digits.
_UNIQ_BYTES = 32
_NAME_WORDS = 3
_TEXT = np.frombuffer(b"".join(name.ljust(8 * _NAME_WORDS) for name in _NAMES), np.int64)
_LENGTHS = np.array([len(name) for name in _NAMES], np.int64)
#: The last name is stored with what fills its words: behind it there are a digit and a trailer.
assert len(_NAMES[_REAL_QID]) + 2 + TRAILER_BYTES >= 8 * _NAME_WORDS


@kernel()
def out_ms(time_ms: int, precision_ms: int) -> int:
    """RocketMQ's TIMER_OUT_MS of a time: earlier by 1 ms to the precision (DT-33)."""
    rest = time_ms % precision_ms
    return time_ms - (rest if rest else precision_ms)


@kernel()
def _store_name(memory: Bytes, at: int, name: int) -> int:
    """The name of a property and the byte behind it; returns where its value goes.

    What comes behind is stored later, over what fills the name's words.
    """
    for word in range(_NAME_WORDS):
        machine.store64(memory, at + 8 * word, _TEXT[_NAME_WORDS * name + word])
    end: int = at + _LENGTHS[name]
    return end


@kernel()
def _store_number(memory: Bytes, at: int, name: int, value: int) -> int:
    """A property whose value is a number of 0 or more; returns where the next one goes."""
    end: int = store_decimal(memory, _store_name(memory, at, name), value)
    memory[end] = 2
    return end + 1


@kernel()
def _number_bytes(name: int, value: int) -> int:
    size: int = _LENGTHS[name] + decimal_bytes(value) + 1
    return size


@kernel()
def _time_name(head: Words) -> int:
    """Which property keeps what the client has asked for."""
    if head[MODE] == LEVEL:
        return _DELAY
    return _DELIVER_MS if head[MODE] == AT else _DELAY_MS


@kernel()
def _properties_bytes(board: Bytes, head: Words) -> int:
    """Bytes of the properties that parking adds."""
    topic_at = TOPICS_AT + head[REAL_TOPIC] * TOPIC_BYTES
    size: int = _LENGTHS[_ID] + _UNIQ_BYTES + 1
    if head[MODE] != HALF:
        size = _number_bytes(_time_name(head), head[VALUE])
        if head[MODE] != LEVEL:
            size += _number_bytes(_OUT_MS, head[OUT_MS])
    size += _LENGTHS[_REAL_TOPIC] + machine.load32(board, topic_at + TOPIC_NAME_BYTES) + 1
    return size + _number_bytes(_REAL_QID, head[REAL_QUEUE])


@kernel()
def _store_id(staging: Bytes, at: int, unique_at: int) -> int:
    """`__transactionId__` = UNIQ_KEY (TX-3); returns where the next property goes."""
    at = _store_name(staging, at, _ID)
    machine.copy(staging, at, staging, unique_at, _UNIQ_BYTES + 1)  # with the byte that ends it
    return at + _UNIQ_BYTES + 1


@kernel()
def _store_properties(board: Bytes, head: Words, staging: Bytes, at: int) -> None:
    """Write the properties that parking adds, in the order in which they were counted."""
    topic_at = TOPICS_AT + head[REAL_TOPIC] * TOPIC_BYTES
    if head[MODE] != HALF:
        at = _store_number(staging, at, _time_name(head), head[VALUE])
        if head[MODE] != LEVEL:
            at = _store_number(staging, at, _OUT_MS, head[OUT_MS])
    at = _store_name(staging, at, _REAL_TOPIC)
    name = machine.load32(board, topic_at + TOPIC_NAME_BYTES)
    machine.copy(staging, at, board, topic_at + TOPIC_NAME, name)
    staging[at + name] = 2
    _store_number(staging, at + name + 1, _REAL_QID, head[REAL_QUEUE])


@kernel()
def _choose_time(head: Words, batch: Words) -> int:
    """OUT_MS of an entry that is due at a time; OK or ILLEGAL_DELAY. SEND if it is due already."""
    value = head[VALUE]
    if (head[MODE] != AT and head[MODE] != AFTER) or value < 0 or value > DELIVER_MS_MAX:
        return ILLEGAL_DELAY
    due_ms = value + (batch[frames.STORE_MS] if head[MODE] == AFTER else 0)
    if due_ms > DELIVER_MS_MAX:
        return ILLEGAL_DELAY
    if due_ms <= batch[frames.STORE_MS]:  # DT-31
        head[KIND] = SEND
    head[OUT_MS] = out_ms(due_ms, batch[frames.TIMER_PRECISION_MS])
    return OK


@kernel()
def _choose_place(board: Bytes, head: Words, batch: Words) -> int:
    """The system topic and its queue that an entry waits in, into `head`; OK or a Status.

    What they were goes to REAL_TOPIC and REAL_QUEUE. An entry that is due becomes a SEND instead.
    """
    topic: int = batch[frames.TIMER_TOPIC]
    queue = 0
    if head[MODE] == LEVEL:
        if head[VALUE] < 1:
            return ILLEGAL_DELAY
        topic = batch[frames.SCHEDULE_TOPIC]
        head[VALUE] = min(head[VALUE], batch[frames.DELAY_LEVELS])  # DT-10
        queue = head[VALUE] - 1
    elif head[MODE] == HALF:
        if head[VALUE]:
            return ILLEGAL_DELAY
        topic = batch[frames.HALF_TOPIC]
    else:
        status = _choose_time(head, batch)
        if status != OK or head[KIND] == SEND:
            return status
    if topic < 0 or queue >= machine.load32(
        board, TOPICS_AT + topic * TOPIC_BYTES + TOPIC_QUEUE_COUNT
    ):
        return UNKNOWN_ROUTE  # of a broker without system topics
    head[REAL_TOPIC] = head[TOPIC]
    head[REAL_QUEUE] = head[QUEUE]
    head[TOPIC] = topic
    head[QUEUE] = queue
    return OK


@kernel()
def _after_unique(head: Words, routes: Words, more: int) -> int:
    """Bytes from UNIQ_KEY's value, which comes first (`lay_out`), to the record's end."""
    block = routes[head[ROUTE_ID] * frames.ROUTE_WORDS + frames.ROUTE_BLOCK_LENGTH]
    size: int = _UNIQ_BYTES + 1 + block + head[EXTRA] + more + TRAILER_BYTES
    return size


@kernel()
def encode_park(
    arena: Bytes, ring_at: int, head: Words, tables: tuple[Bytes, Words, Bytes, Bytes],
    staging: Bytes, batch: Words,
) -> int:  # fmt: skip
    """Lay out what a PARK entry becomes, parked or, if it is due (DT-31), as any. Size or -Status.

    `head` then names the topic and queue of the record.
    """
    board = tables[0]
    status = _choose_place(board, head, batch)
    if status != OK:
        return -status
    body_at = ring_at + ENTRY_BYTES + PARK_BYTES
    more = 0 if head[KIND] == SEND else _properties_bytes(board, head)
    size = lay_out(arena, body_at, head, tables, staging, batch, more)
    if size >= 0 and more:
        place = batch[frames.FILLED] + size - TRAILER_BYTES - more
        if head[MODE] == HALF:
            unique_at = batch[frames.FILLED] + size - _after_unique(head, tables[1], more)
            place = _store_id(staging, place, unique_at)
        _store_properties(board, head, staging, place)
    return size
