"""Properties of a message in their stored form, and the numbers that queues keep of them.

store-format.md section 3.4 and SF-4, SF-62, SF-63. Pure Python, no numba.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
#: TAGS of what salvage puts in a lost message's place (ADR 0014): only who asks for it sees it.
LOST_TAG: Final = "GANTRY_LOST"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
#: A group's own topics: what is tried again, and what is given up (RD-1, RD-18).
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
#: Names of groups that are a broker's own: their offsets say how far its services are.
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
#: What says how an earlier record was parked, and what the copy of a failed message has of its own.
RETRY_DROPPED: Final = frozenset(
    ("DELAY", "REAL_TOPIC", "REAL_QID", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS",
     "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_ROLL_LABEL", "TIMER_OUT_MS",
     "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "DLQ_REASON", "WAIT", "__CRC32#")
)  # fmt: skip
# Transactions: halves, which of them are decided, those that were given up (transactions.md 1).
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
#: Ours: how often halves were checked, what an operator has settled.
NOTES_TOPIC: Final = "rmq_sys_gantry_trans"
#: What these hold nobody may see, or work on, before its time, or before its transaction is
#: committed: no group has them.
HIDDEN_TOPICS: Final = frozenset((HALF_TOPIC, OP_TOPIC, NOTES_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC))
#: Ours, of a half: `<32 hex digits of its transaction>,<its number in it, from 1>`.
GANTRY_TX: Final = "GANTRY_TX"
#: Ours, of a half that is to be delayed from its commit on: `level:3`, `at:<ms>`, `after:<ms>`.
GANTRY_TX_DELAY: Final = "GANTRY_TX_DELAY"
CHECK_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
#: What a commit copy has no more (TX-46, and what only a half needs).
HALF_DROPPED: Final = frozenset(
    ("REAL_TOPIC", "REAL_QID", GANTRY_TX, GANTRY_TX_DELAY, CHECK_IMMUNITY,
     "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "__CRC32#")
)  # fmt: skip
_KEY_END: Final = "\x01"
_VALUE_END: Final = "\x02"
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_INT_MAX: Final = (1 << 31) - 1
_INT: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)


def parse_properties(data: bytes) -> dict[str, str]:
    """Properties as RocketMQ reads them: half entries drop out, the last of a key wins (SF-28)."""
    found = {}
    for segment in data.decode(errors="replace").split(_VALUE_END):
        key, separator, value = segment.partition(_KEY_END)
        if separator and key and value:
            found[key] = value
    return found


def encode_properties(properties: Mapping[str, str | None]) -> bytes:
    """Properties in stored form; entries without a value are left out (SF-27)."""
    parts = [
        f"{key}{_KEY_END}{value}{_VALUE_END}"
        for key, value in properties.items()
        if value is not None
    ]
    return "".join(parts).encode()


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, signed 32 bits (SF-4)."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def index_hash(topic: str, key: str) -> int:
    """SF-78: what an IndexFile keeps of a key: the amount of a signed hash, 0 if it has none."""
    value = abs(java_hash(f"{topic}#{key}"))
    return value if value <= _INT_MAX else 0


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Delays in ms of `messageDelayLevel`, level 1 first: "1s 5s 2h"."""
    return tuple(int(word[:-1]) * _UNITS_MS[word[-1]] for word in text.split())


def timer_out_ms(due_ms: int, precision_ms: int) -> int:
    """RocketMQ's TIMER_OUT_MS of a time: earlier by 1 ms up to the precision (DT-33)."""
    return (due_ms - 1) // precision_ms * precision_ms


def tags_code(
    topic: str, properties: Mapping[str, str], store_timestamp: int, delays_ms: Sequence[int]
) -> int:
    """What a queue unit keeps of a record: hash of TAGS, or the delivery time (SF-62, SF-63)."""
    if topic == SCHEDULE_TOPIC and "DELAY" in properties:
        level = min(java_int(properties["DELAY"]) or 0, len(delays_ms))
        if level > 0:
            return store_timestamp + delays_ms[level - 1]
    return java_hash(properties.get("TAGS", ""))


def java_int(text: str) -> int | None:
    """Java's Integer.parseInt; None where it throws."""
    if not _INT.fullmatch(text):
        return None
    value = int(text)
    return value if -(1 << 31) <= value < 1 << 31 else None
