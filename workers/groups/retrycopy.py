"""The record that a failed message becomes: parked for its group's retry topic, or a dead letter.

retry-dlq-batch.md RD-16 to RD-23; parking as delay-and-timer.md has it, so that a RocketMQ can
take the store over at any moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gantrymq.shm.codes import Level
from gantrymq.shm.errors import MessageIllegal
from gantrymq.shm.groupwire import DEAD_LETTER, LADDER, WHY_CHARACTERS
from gantrymq.shm.limits import PROPERTIES_BYTES_MAX, TRAILER_BYTES
from gantrymq.shm.messageid import offset_message_id
from gantrymq.shm.properties import (
    DLQ_PREFIX,
    RETRY_DROPPED,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    parse_delay_levels,
    timer_out_ms,
)
from gantrymq.shm.soundrecord import Sound
from gantrymq.workers.outlet import Copy

if TYPE_CHECKING:
    from gantrymq.shm.clock import Clock
    from gantrymq.workers.groups.membership import Topics
    from gantrymq.workers.scheduler.settings import DelaySettings

#: RocketMQ's 16 retries, where a consumer says nothing else.
MAX_ATTEMPTS: Final = 17
FIRST_LEVEL: Final = 3  # RD-19
#: The failure's type and text, kept by a dead letter.
REASON: Final = b"DLQ_REASON"
_DROPPED: Final = frozenset(name.encode() for name in RETRY_DROPPED)
#: What a dead letter goes without, in this order, before it is too large to be stored.
_OPTIONAL: Final = (
    REASON, b"DLQ_ORIGIN_TOPIC", b"DLQ_ORIGIN_MESSAGE_ID", b"WAIT", b"ORIGIN_MESSAGE_ID",
    b"RETRY_TOPIC", b"DELAY",
)  # fmt: skip

Properties = dict[bytes, bytes]


class TooLong(MessageIllegal):
    """Properties leave no room for those that a copy has to add."""


class TopicMissing(MessageIllegal):
    """The topic that a copy is for, of which `topic` tells, is not there: none can be made yet."""


class Failure(NamedTuple):
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


class Parking(NamedTuple):
    """What of the settings and the board decides where a copy is parked."""

    levels: int  # of message_delay_level
    retry_topic: bytes  # the group's
    retry_queues: int
    dead_topic: str
    precision_ms: int  # of RocketMQ's timer
    now_ms: int


NOWHERE: Final = Parking(0, b"", 0, "", 1, 0)


def copy_of(record: Sound, failure: Failure, parking: Parking) -> tuple[str, int, bytes]:
    """Topic, queue id and properties of a failed message's copy.

    Raises TooLong if its properties do not leave room for what has to be added.
    """
    entries = [entry.split(b"\x01", 1) for entry in record.properties.split(b"\x02")]
    # As RocketMQ reads them (SF-28): half entries drop out, the last of a key wins.
    found: Properties = {
        entry[0]: entry[1] for entry in entries if len(entry) == 2 and entry[0] and entry[1]
    }
    for key in found.keys() & _DROPPED:
        del found[key]
    if b"RETRY_TOPIC" not in found:
        found[b"RETRY_TOPIC"] = record.topic  # RD-16
    if b"ORIGIN_MESSAGE_ID" not in found:  # RD-20
        name = offset_message_id(record.store_host, record.physical_offset)
        found[b"ORIGIN_MESSAGE_ID"] = name.encode()
    found[b"WAIT"] = b"false"
    if failure.is_dead:
        return parking.dead_topic, 0, _dead(found, failure)
    turn = (record.queue_offset + record.queue_id + failure.attempt) % parking.retry_queues
    found[b"REAL_TOPIC"] = parking.retry_topic
    found[b"REAL_QID"] = b"%d" % turn
    if failure.delay == LADDER:
        level = max(1, min(FIRST_LEVEL + failure.attempt - 1, parking.levels))
        found[b"DELAY"] = b"%d" % level
        return SCHEDULE_TOPIC, level - 1, _encode(found)
    # A delay, no point in time: the wall may be set while it waits.
    found[b"TIMER_DELAY_MS"] = b"%d" % failure.delay
    due_ms = parking.now_ms + failure.delay
    found[b"TIMER_OUT_MS"] = b"%d" % timer_out_ms(due_ms, parking.precision_ms)
    return TIMER_TOPIC, 0, _encode(found)


def _dead(found: Properties, failure: Failure) -> bytes:
    found[b"DELAY"] = b"0"  # RD-18
    found[b"DLQ_ORIGIN_TOPIC"] = found[b"RETRY_TOPIC"]
    found[b"DLQ_ORIGIN_MESSAGE_ID"] = found[b"ORIGIN_MESSAGE_ID"]
    text = reason_of(failure.why)
    data = _joined({**found, REASON: text.encode()} if text else found)
    if _excess(data) <= 0:
        return data
    shortened = _shortened(text, -_excess(_joined({**found, REASON: b""})))
    if shortened:
        found[REASON] = shortened
    for name in _OPTIONAL:
        if _excess(_joined(found)) <= 0:
            break
        found.pop(name, None)
    return _encode(found)


def reason_of(why: str) -> str:
    """What a dead letter says of why it died, if there is room for it."""
    return why[:WHY_CHARACTERS].replace("\x01", " ").replace("\x02", " ")


def _shortened(text: str, room: int) -> bytes:
    """As much of a text as takes so many bytes."""
    return text.encode()[: max(0, room)].decode(errors="ignore").encode()


def _joined(found: Properties) -> bytes:
    """In stored form (SF-27)."""
    return b"".join([b"%b\x01%b\x02" % item for item in found.items()])


def _excess(data: bytes) -> int:
    """Bytes by which properties are too long to be stored."""
    return len(data) + TRAILER_BYTES - PROPERTIES_BYTES_MAX


def _encode(found: Properties) -> bytes:
    data = _joined(found)
    if _excess(data) > 0:
        raise TooLong(
            f"{len(data)} bytes of properties with those of a retry, {PROPERTIES_BYTES_MAX} at most"
        )
    return data


class CopyMaker:
    """Makes copies for the topics that there are."""

    def __init__(self, topics: Topics, clock: Clock, settings: DelaySettings) -> None:
        self._topics = topics
        self._clock = clock
        self._precision_ms = settings.timer_precision_ms
        self._levels = len(parse_delay_levels(settings.message_delay_level))

    def parking(self, group: str) -> Parking:
        """What decides where copies of a group's messages are parked, for a short while."""
        topics, name = self._topics, f"{RETRY_PREFIX}{group}"
        retry = topics.by_slot.get(topics.slot_of(name))
        queues = retry.queue_count if retry else 0
        dead, now_ms = f"{DLQ_PREFIX}{group}", self._clock.wall_ms()
        return Parking(self._levels, name.encode(), queues, dead, self._precision_ms, now_ms)

    def copy(self, record: Sound, failure: Failure, parking: Parking) -> Copy:
        """The copy of a message that has failed. Raises TopicMissing, TooLong.

        What lies in a deleted topic nobody would ever see.
        """
        if not parking.retry_queues and not failure.is_dead:
            raise missing(parking.retry_topic.decode())
        topic, queue_id, properties = copy_of(record, failure, parking)
        slot = self._topics.slot_of(topic)
        if slot < 0:
            raise missing(topic)
        return Copy(
            slot, queue_id, record.body, properties, record.physical_offset, record.flag,
            record.sys_flag, record.born_timestamp, record.born_host, record.store_host,
            failure.attempt,
        )  # fmt: skip

    def is_durable(self, topic: str) -> bool:
        """Whether who sends to a topic waits until its messages are durable."""
        slot = self._topics.by_slot.get(self._topics.slots.get(topic, -1))
        return slot is not None and slot.level == Level.DURABLE


def missing(topic: str) -> TopicMissing:
    """What is raised where a copy has no topic to go into."""
    return TopicMissing(f"the broker has no topic {topic}", topic=topic)
