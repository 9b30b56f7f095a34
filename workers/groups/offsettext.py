"""What `consumerOffset.json` is to say, kept as text: only what has changed is formatted again.

With 16,384 groups of three queues the whole of it took 1.6 s, each five seconds; the parts are
brought up to date in steps (`Exports` in offsetfile.py), and to put them together takes some ms.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_left, insort
from typing import Any, Final

from gantrymq.shm.configfile import TableText

_Key = tuple[str, str]
#: It never told (SF-105).
DATA_VERSION: Final = {"counter": 0, "stateVersion": 0, "timestamp": 0}


class OffsetText:
    """Offsets by (topic, group), and the topics of each group, as text."""

    def __init__(self) -> None:
        self.rows: dict[_Key, dict[int, int]] = {}
        self._keys: list[_Key] = []  # sorted
        self._sums: dict[_Key, str] = {}  # as `checksum` counts them
        self._offsets = TableText()
        self._topics: dict[str, list[str]] = {}
        self._groups = TableText()
        self._unsaid: set[str] = set()  # groups whose topics are others than `_groups` says

    def put(self, key: _Key, queues: dict[int, int]) -> None:
        """Offsets of a group in a topic, by queue id."""
        known = self.rows.get(key)
        if known == queues:
            return
        topic, group = key
        if known is None:
            insort(self._keys, key)
            insort(self._topics.setdefault(group, []), topic)
            self._unsaid.add(group)
        self.rows[key] = queues
        self._sums[key] = json.dumps([topic, group, sorted(queues.items())])
        self._offsets.put(f"{topic}@{group}", queues)

    def remove(self, key: _Key) -> None:
        """The group is in the topic no more."""
        topic, group = key
        del self.rows[key], self._sums[key], self._keys[bisect_left(self._keys, key)]
        self._offsets.remove(f"{topic}@{group}")
        topics = self._topics[group]
        del topics[bisect_left(topics, topic)]
        self._unsaid.add(group)

    def settle(self) -> bool:
        """Format the topics of a group that has others now; False if there is none."""
        if not self._unsaid:
            return False
        group = self._unsaid.pop()
        if self._topics[group]:
            self._groups.put(group, self._topics[group])
        else:
            del self._topics[group]
            self._groups.remove(group)
        return True

    def checksum(self) -> int:
        """The same number for the same offsets, whatever file said them."""
        rows = ", ".join(map(self._sums.__getitem__, self._keys))
        return zlib.crc32(f"[{rows}]".encode())

    def value(self) -> dict[str, Any]:
        """The file's content, for `write_config`."""
        while self.settle():
            pass
        return {
            "dataVersion": DATA_VERSION,
            "groupTopicMap": self._groups.text(),
            "offsetTable": self._offsets.text(),
        }
