"""`config/subscriptionGroup.json`: groups by name, as RocketMQ reads and writes it (CQ-110).

A group is in it from its first member on. What the file holds besides stays as it was read: other
groups, and fields that mean nothing here.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from brokerd.log import Log
from shm.clock import Clock
from shm.configfile import read_config, restore_config, write_config
from shm.storage import Storage, is_disk_full

GROUPS_FILE: Final = "subscriptionGroup.json"
_TABLE: Final = "subscriptionGroupTable"


def default_group(name: str, retry_queues: int = 1) -> dict[str, Any]:
    """What RocketMQ makes of a group on first use (store-format.md section 12).

    But for the queues of its retry topic, of which it makes one.
    """
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": name,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": retry_queues,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def fields_of(note: Mapping[str, Any]) -> dict[str, Any]:
    """What a member's `max_attempts` and order mean to RocketMQ; nothing if it states neither.

    RocketMQ counts retries, so one less than deliveries (RD-17).
    """
    attempts = int(note.get("max_attempts") or 0)
    if attempts <= 0:
        return {}
    orderly = bool(note.get("orderly"))
    return {"retryMaxTimes": attempts - 1, "consumeMessageOrderly": orderly}


class Subscriptions:
    """The file; the supervisor is its only writer."""

    def __init__(self, storage: Storage, clock: Clock, retry_queues: int = 1) -> None:
        """`retry_queues`: of a new group's retry topic."""
        self._retry_queues = retry_queues
        self._storage = storage
        self._clock = clock
        self._content: dict[str, Any] = {}

    def load(self) -> None:
        """Read the file, or its backup; a store without has no groups yet."""
        content = read_config(self._storage, GROUPS_FILE)
        self._content = content if isinstance(content, dict) else {}
        restore_config(self._storage, GROUPS_FILE, self._content)

    def __contains__(self, name: str) -> bool:
        return name in (self._content.get(_TABLE) or {})

    def add(self, name: str, log: Log, fields: Mapping[str, Any] = MappingProxyType({})) -> int:
        """Put a group into the file unless it says `fields` there already.

        Returns the errno of a write that failed for good, else 0: for want of room the group is
        left out until it is joined again.
        """
        table = self._content.get(_TABLE) or {}
        before = table.get(name)
        if isinstance(before, dict) and {**before, **fields} == before:
            return 0
        group = {**(before if isinstance(before, dict) else self._default(name)), **fields}
        version = self._content.get("dataVersion") or {}
        content = {
            "forbiddenTable": {},
            **self._content,
            "dataVersion": {
                "stateVersion": 0,
                **version,
                "counter": int(version.get("counter", 0)) + 1,
                "timestamp": self._clock.wall_ms(),
            },
            _TABLE: {**table, name: group},
        }
        try:
            write_config(self._storage, GROUPS_FILE, content)
        except OSError as error:
            log.warning("group_not_written", group=name, error=str(error))
            return 0 if is_disk_full(error) else error.errno or errno.EIO
        self._content = content
        return 0

    def _default(self, name: str) -> dict[str, Any]:
        return default_group(name, self._retry_queues)
