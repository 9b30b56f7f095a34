"""Rules of topics: names, and what a new one looks like (CQ-100 to CQ-105, SF-35, SF-36)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gantrymq.shm import limits, topicfiles
from gantrymq.shm.codes import Level
from gantrymq.shm.errors import DiskFull, MessageIllegal, NotPermitted, Rejected, StoreFailed
from gantrymq.shm.properties import (
    DLQ_PREFIX,
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    NOTES_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from gantrymq.shm.storage import is_disk_full
from gantrymq.shm.topicfiles import LEVEL_ATTRIBUTE

PERM_READ: Final = 4
PERM_WRITE: Final = 2
AUTO_CREATED_QUEUES_MAX: Final = 4  # the default of RocketMQ's clients, CQ-105
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")

_NO_SENDS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,  # DT-49
        HALF_TOPIC,
        OP_TOPIC,
        GIVEN_UP_TOPIC,
        NOTES_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
_SYSTEM: Final = _NO_SENDS | {"TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"}


@dataclass(slots=True)
class TopicConfig:
    """A topic of `topics.json`; `other` keeps RocketMQ's fields that mean nothing here."""

    name: str
    read_queues: int
    write_queues: int
    perm: int
    attributes: dict[str, str] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)

    def level(self, default: str) -> Level:
        """What the topic's consumers may see.

        Messages of any of its group's topics come into a retry or dead-letter topic: it has the
        highest of their levels, or a power cut could take what was durable before it failed.
        """
        if is_retry_kind(self.name):
            return Level.DURABLE
        return Level[self.attributes.get(LEVEL_ATTRIBUTE, default).upper()]

    def begins(self) -> list[int]:
        """Where each queue begins; queues beyond begin at 0."""
        return topicfiles.begins_of(self.attributes)

    def begin_at(self, begins: Sequence[int]) -> None:
        """Let each queue begin there, from the next write of the file on."""
        self.attributes[topicfiles.BEGINS_ATTRIBUTE] = ",".join(map(str, begins))

    def to_json(self) -> dict[str, Any]:
        """The entry of `topicConfigTable`."""
        return {
            "order": False,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            **self.other,
            "attributes": self.attributes,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicName": self.name,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, name: str, entry: dict[str, Any]) -> TopicConfig:
        """From an entry of `topic_table`; RocketMQ gives 16 queues if the numbers lack."""
        ours = {"attributes", "perm", "readQueueNums", "topicName", "writeQueueNums"}
        return cls(
            name,
            entry.get("readQueueNums", 16),
            entry.get("writeQueueNums", 16),
            entry.get("perm", PERM_READ | PERM_WRITE),
            dict(entry.get("attributes") or {}),
            {key: value for key, value in entry.items() if key not in ours},
        )


def parking_topics(levels: int) -> dict[str, int]:
    """Where messages wait for their time or for a decision, with their queues, as RocketMQ's."""
    transactions = dict.fromkeys((HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC, NOTES_TOPIC), 1)
    levels = max(levels, limits.DELAY_LEVELS_MIN)
    return {SCHEDULE_TOPIC: levels, TIMER_TOPIC: 1, **transactions}


def is_system(name: str) -> bool:
    """True for topics that users may neither create nor change (CQ-101)."""
    return name in _SYSTEM or name.startswith("rmq_sys_")


def refuses_sends(name: str) -> bool:
    """True for topics that clients may not send to (CQ-102)."""
    return name in _NO_SENDS


def is_retry_kind(name: str) -> bool:
    """True for a group's retry and dead letter topics, which may be longer (SF-36)."""
    return name.startswith((RETRY_PREFIX, DLQ_PREFIX))


def group_of(name: str) -> str:
    """The group whose retry or dead-letter topic this is."""
    return name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)


def require_valid_name(name: str) -> None:
    """Raise MessageIllegal unless the name keeps to CQ-100, SF-35 and SF-36."""
    longest = limits.RETRY_TOPIC_BYTES_MAX if is_retry_kind(name) else limits.TOPIC_BYTES_MAX
    if not name.strip():
        raise MessageIllegal("the topic's name is empty: give one", topic=name)
    if not _NAME.fullmatch(name):
        raise MessageIllegal(
            f"topic {name!r}: use letters, digits, '_', '-', '%' and '|' only", topic=name
        )
    if len(name) > longest:
        raise MessageIllegal(
            f"topic {name[:40]}... has {len(name)} characters: use at most {longest}", topic=name
        )


def require_creatable(name: str, queues: int) -> None:
    """Raise the reason why a user may not create such a topic."""
    require_valid_name(name)
    if is_system(name):
        raise NotPermitted(f"topic {name} is a system topic: choose another name", topic=name)
    if not 1 <= queues <= limits.QUEUES_PER_TOPIC_MAX:
        raise Rejected(
            f"topic {name}: choose 1 to {limits.QUEUES_PER_TOPIC_MAX} queues, not {queues}",
            topic=name,
        )


def not_saved(name: str, error: OSError) -> StoreFailed:
    """The error of a change that did not reach the disk: the topic is as it was."""
    if is_disk_full(error):
        text = (
            f"the disk of the store is full: topic {name} stays as it is; make room and try again"
        )
        return DiskFull(text, topic=name)
    return StoreFailed(f"topic {name} stays as it is: {error}", topic=name)
