"""Groups' SQL92 filters, as they join with them (FL-13).

They are kept in `config/consumerFilter.json`, from where the reader takes them. Nothing waits for
that, and nobody's messages depend on it: a filter that is not in the file has no bits, and its
consumers read every record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gantrymq.shm import layout
from gantrymq.shm.groupwire import FILTER_CHARACTERS, FILTERS_PER_JOIN
from gantrymq.shm.storage import is_disk_full
from gantrymq.workers.filterfile import (
    DEAD_AT_LOAD_MS,
    FilterEntry,
    bloom_form,
    read_filters,
    write_filters,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gantrymq.shm.board import Board, TopicSlot
    from gantrymq.shm.clock import Clock
    from gantrymq.shm.groupwire import Join
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.filterfile import FilterSettings

#: How long a group that is gone keeps its filter (FL-13).
KEPT_DEAD_MS: Final = 24 * 3600 * 1000
#: The file is written at most this often; that a group lives or is gone waits for the second one.
WRITE_NS: Final = 1_000_000_000
STATE_NS: Final = 10_000_000_000
#: Filters that are kept. Beyond them the group that has been gone longest is forgotten, and if all
#: live, a new one is not taken up.
FILTERS_MAX: Final = 2048


class FilterTable:
    """What groups want by SQL92, by topic and group."""

    def __init__(
        self, storage: Storage, board: Board, clock: Clock, settings: FilterSettings
    ) -> None:
        self._storage = storage
        self._board = board
        self._clock = clock
        self._form = bloom_form(settings)
        self._entries: dict[tuple[str, str], FilterEntry] = {}
        self._members: dict[int, list[tuple[str, str]]] = {}  # by session
        self._changed = self._stale = False
        self._written_ns = -STATE_NS
        dead_ms = clock.wall_ms() - DEAD_AT_LOAD_MS
        for entry in read_filters(storage, self._form)[:FILTERS_MAX]:
            self._entries[entry.key] = replace(entry, dead_ms=entry.dead_ms or dead_ms)

    def join(self, session: int, request: Join, topics: Mapping[int, TopicSlot]) -> None:
        """A member's filters, if it has any."""
        self.leave(session)
        now_ms = self._clock.wall_ms()
        mine = []
        for slot, dialect, text in request.filters[:FILTERS_PER_JOIN]:
            if slot in topics and len(text) <= FILTER_CHARACTERS:
                topic, group = topics[slot].name, request.group
                wanted = FilterEntry(topic, group, text, dialect, now_ms, now_ms)
                mine += [wanted.key] if self._take(wanted) else []
        if mine:
            self._members[session] = mine

    def _take(self, wanted: FilterEntry) -> bool:
        known = self._entries.get(wanted.key)
        if known is None and len(self._entries) >= FILTERS_MAX and not self._make_room():
            return False
        if known and (known.expression, known.dialect) == (wanted.expression, wanted.dialect):
            self._stale = self._stale or known.dead_ms > 0
            self._entries[wanted.key] = replace(known, version=wanted.version, dead_ms=0)
        else:
            self._changed = True
            self._entries[wanted.key] = wanted
        return True

    def _make_room(self) -> bool:
        dead = [entry for entry in self._entries.values() if entry.dead_ms]
        if dead:
            del self._entries[min(dead, key=lambda entry: entry.dead_ms).key]
            self._changed = True
        return bool(dead)

    def forget(self, group: str) -> None:
        """A group was deleted; it has no members."""
        for key in [key for key, entry in self._entries.items() if entry.group == group]:
            del self._entries[key]
            self._changed = True

    def leave(self, session: int) -> None:
        """A session is a member no more: a group without members is dead from now on."""
        gone = self._members.pop(session, None)
        if not gone:
            return
        live = {key for keys in self._members.values() for key in keys}
        for key in gone:
            if key in self._entries and key not in live:
                self._stale = True
                dead_ms = self._clock.wall_ms()
                self._entries[key] = replace(self._entries[key], dead_ms=dead_ms)

    def save(self, now_ns: int, *, last: bool) -> bool:
        """Write the file if it is time to; False if the disk is full. Raises OSError."""
        patience = WRITE_NS if self._changed else STATE_NS
        if not last and now_ns - self._written_ns < patience:
            return True
        self._forget_dead()
        if not (self._changed or self._stale):
            return True
        self._written_ns = now_ns
        try:
            write_filters(self._storage, self._entries.values(), self._form)
        except OSError as error:
            if not is_disk_full(error):
                raise
            return False
        if self._changed:
            self._board.count_change(layout.BOARD_FILTER_CHANGES)
        self._changed = self._stale = False
        return True

    def _forget_dead(self) -> None:
        before_ms = self._clock.wall_ms() - KEPT_DEAD_MS
        for key, entry in list(self._entries.items()):
            if 0 < entry.dead_ms < before_ms:
                del self._entries[key]
                self._changed = True

    def waits_ns(self, now_ns: int) -> int | None:
        """How long until there is something to write; None: nothing waits."""
        if not (self._changed or self._stale):
            return None
        patience = WRITE_NS if self._changed else STATE_NS
        return max(1, self._written_ns + patience - now_ns)
