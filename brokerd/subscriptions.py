"""`config/subscriptionGroup.json`: groups by name, as RocketMQ reads and writes it (CQ-110).

A group is in it from its first member on. What the file holds besides stays as it was read: other
groups, and fields that mean nothing here.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from gantrymq.brokerd.log import Log
from gantrymq.shm.clock import Clock
from gantrymq.shm.configfile import (
    TableText,
    changes_of,
    map_in,
    read_config,
    restore_config,
    table_in,
    write_config,
)
from gantrymq.shm.storage import Storage, is_disk_full

GROUPS_FILE: Final = "subscriptionGroup.json"
_TABLE: Final = "subscriptionGroupTable"
#: No answer waits for this file: its writes leave the supervisor so many times as long for others.
PACE: Final = 10


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


def group_table(content: Any) -> dict[str, dict[str, Any]]:  # noqa: ANN401 - JSON
    """Groups of `subscriptionGroup.json` by name. Raises Corrupt."""
    return table_in(content, _TABLE, f"config/{GROUPS_FILE}")


class Subscriptions:
    """The file; the supervisor is its only writer."""

    def __init__(self, storage: Storage, clock: Clock, retry_queues: int = 1) -> None:
        """`retry_queues`: of a new group's retry topic."""
        self._retry_queues = retry_queues
        self._storage = storage
        self._clock = clock
        self._content: dict[str, Any] = {}
        self._table: dict[str, dict[str, Any]] = {}
        self._text = TableText()
        self._sound = False
        #: What changed since the last write: how each group was before, None if it was not there.
        self._staged: dict[str, Any] = {}
        self._next_ns = 0

    def load(self) -> None:
        """Read the file, or its backup; a store without has no groups yet. Raises Corrupt."""
        content = read_config(self._storage, GROUPS_FILE)
        self._table = group_table(content)
        self._content = content or {}
        restore_config(self._storage, GROUPS_FILE, self._content)
        for name, group in self._table.items():
            self._text.put(name, group)

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def add(self, name: str, fields: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Have a group, with `fields`; the next `commit` puts it into the file."""
        before = self._table.get(name)
        if before is not None and {**before, **fields} == before:
            return
        self._stage(name, {**(self._default(name) if before is None else before), **fields})

    def remove(self, name: str) -> bool:
        """Have no such group any more; the next `commit` says so. False if there was none."""
        if name not in self._table:
            return False
        self._stage(name, None)
        return True

    def _stage(self, name: str, group: Any) -> None:  # noqa: ANN401 - JSON; None: none
        self._staged.setdefault(name, self._table.get(name))
        if group is None:
            self._table.pop(name, None)
            self._text.remove(name)
        else:
            self._table[name] = group
            self._text.put(name, group)

    def due_in(self, now_ns: int) -> int | None:
        """Nanoseconds until what changed is to be written; None if nothing has."""
        return max(0, self._next_ns - now_ns) if self._staged else None

    def commit(self, log: Log) -> int:
        """Write what has changed, all of it at once.

        Returns the errno of a write that failed for good, else 0: for want of room groups are left
        out until they are joined again.
        """
        if not self._staged:
            return 0
        began_ns = self._clock.monotonic_ns()
        staged, self._staged = self._staged, {}
        content = {
            "forbiddenTable": {},
            **self._content,
            "dataVersion": {
                "stateVersion": 0,
                **map_in(self._content, "dataVersion"),
                "counter": changes_of(self._content) + 1,
                "timestamp": self._clock.wall_ms(),
            },
        }
        try:
            text = self._text.text()
            write_config(self._storage, GROUPS_FILE, content | {_TABLE: text}, sound=self._sound)
        except OSError as error:
            self._sound = False
            for name, before in staged.items():
                self._stage(name, before)
            self._staged.clear()
            log.warning("group_not_written", group=", ".join(staged), error=str(error))
            return 0 if is_disk_full(error) else error.errno or errno.EIO
        self._sound = True
        self._content = content
        now_ns = self._clock.monotonic_ns()
        self._next_ns = now_ns + PACE * (now_ns - began_ns)
        return 0

    def _default(self, name: str) -> dict[str, Any]:
        return default_group(name, self._retry_queues)
