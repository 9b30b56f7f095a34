"""The record that a failed message becomes: parked for its group's retry topic, or a dead letter.

retry-dlq-batch.md RD-16 to RD-23; parking as delay-and-timer.md has it, so that a RocketMQ can
take the store over at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shm.errors import MessageIllegal
from shm.groupwire import DEAD_LETTER, LADDER, WHY_CHARACTERS
from shm.limits import PROPERTIES_BYTES_MAX, TRAILER_BYTES
from shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC, encode_properties, timer_out_ms
from shm.record import Record

RETRY_PREFIX: Final = "%RETRY%"
DEAD_PREFIX: Final = "%DLQ%"
#: RocketMQ's 16 retries, where a consumer says nothing else.
MAX_ATTEMPTS: Final = 17
FIRST_LEVEL: Final = 3  # RD-19
#: The failure's type and text, kept by a dead letter.
REASON: Final = "DLQ_REASON"
#: What says how an earlier record was parked, and a checksum that the writer makes anew.
_PARKING: Final = frozenset(
    """DELAY REAL_TOPIC REAL_QID TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS TIMER_ENQUEUE_MS
    TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_ROLL_LABEL TIMER_OUT_MS TIMER_DEL_UNIQKEY
    TIMER_DELAY_LEVEL __CRC32#""".split()  # noqa: SIM905
)
#: What a dead letter goes without, in this order, before it is too large to be stored.
_OPTIONAL: Final = (
    REASON, "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "WAIT", "ORIGIN_MESSAGE_ID", "RETRY_TOPIC",
    "DELAY",
)  # fmt: skip


class TooLong(MessageIllegal):
    """Properties leave no room for those that a copy has to add."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed delivery: its number, as what it is to be tried again, and why it failed."""

    group: str
    attempt: int  # deliveries that have failed, this one included
    delay: int  # groupwire.LADDER, DEAD_LETTER, or ms
    max_attempts: int
    why: str = ""

    @property
    def is_dead(self) -> bool:
        """Whether the message is not tried again (RD-18)."""
        most = self.max_attempts if self.max_attempts > 0 else MAX_ATTEMPTS
        return self.delay <= DEAD_LETTER or self.attempt >= most


@dataclass(frozen=True, slots=True)
class Parking:
    """What of the settings and the board decides where a copy is parked."""

    levels: int  # of message_delay_level
    retry_queues: int  # of the group's retry topic
    precision_ms: int  # of RocketMQ's timer
    now_ms: int


def copy_of(record: Record, failure: Failure, parking: Parking) -> tuple[str, int, bytes]:
    """Topic, queue id and properties of a failed message's copy.

    Raises TooLong if its properties do not leave room for what has to be added.
    """
    known = record.property_map()
    found = {key: value for key, value in known.items() if key not in _PARKING}
    found.setdefault("RETRY_TOPIC", record.topic)  # RD-16
    found.setdefault("ORIGIN_MESSAGE_ID", record.offset_message_id)  # RD-20
    found["WAIT"] = "false"
    found.pop(REASON, None)
    if failure.is_dead:
        return f"{DEAD_PREFIX}{failure.group}", 0, _dead(found, failure)
    turn = (record.queue_offset + record.queue_id + failure.attempt) % parking.retry_queues
    found |= {"REAL_TOPIC": f"{RETRY_PREFIX}{failure.group}", "REAL_QID": str(turn)}
    if failure.delay == LADDER:
        level = max(1, min(FIRST_LEVEL + failure.attempt - 1, parking.levels))
        return SCHEDULE_TOPIC, level - 1, _encode(found | {"DELAY": str(level)})
    due_ms = parking.now_ms + failure.delay
    found["TIMER_DELIVER_MS"] = str(due_ms)
    found["TIMER_OUT_MS"] = str(timer_out_ms(due_ms, parking.precision_ms))
    return TIMER_TOPIC, 0, _encode(found)


def _dead(found: dict[str, str], failure: Failure) -> bytes:
    found["DELAY"] = "0"  # RD-18
    found["DLQ_ORIGIN_TOPIC"] = found["RETRY_TOPIC"]
    found["DLQ_ORIGIN_MESSAGE_ID"] = found["ORIGIN_MESSAGE_ID"]
    text = failure.why[:WHY_CHARACTERS].replace("\x01", " ").replace("\x02", " ")
    text = _shortened(text, -_excess(found | {REASON: ""}))
    if text:
        found[REASON] = text
    for name in _OPTIONAL:
        if _excess(found) <= 0:
            break
        found.pop(name, None)
    return _encode(found)


def _shortened(text: str, room: int) -> str:
    """As much of a text as takes so many bytes."""
    return text.encode()[: max(0, room)].decode(errors="ignore")


def _excess(found: dict[str, str]) -> int:
    """Bytes by which properties are too long to be stored."""
    return len(encode_properties(found)) + TRAILER_BYTES - PROPERTIES_BYTES_MAX


def _encode(found: dict[str, str]) -> bytes:
    data = encode_properties(found)
    if len(data) + TRAILER_BYTES > PROPERTIES_BYTES_MAX:
        raise TooLong(
            f"{len(data)} bytes of properties with those of a retry, {PROPERTIES_BYTES_MAX} at most"
        )
    return data
