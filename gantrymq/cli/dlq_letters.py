"""Dead letters of a running broker, read from its files, and which of them are meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gantrymq.cli.board import running_board
from gantrymq.cli.group_show import find_group
from gantrymq.cli.records import message_of
from gantrymq.clients.home import store_of
from gantrymq.clients.message import as_sent, origin_of
from gantrymq.clients.ownersstorage import OwnersStorage
from gantrymq.shm import layout
from gantrymq.shm.errors import Rejected
from gantrymq.shm.properties import DLQ_PREFIX, LOST_TAG
from gantrymq.shm.storereader import StoreReader
from gantrymq.workers.groups.deadletternote import DeadLetterNote, Marks, holds, read_note
from gantrymq.workers.groups.progress import without

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gantrymq.shm.board import Board, TopicSlot
    from gantrymq.shm.record import Record

_AT_ONCE: Final = 1000
#: Letters that are read at once on the way back from the last one.
_BACK: Final = 16
_NEVER: Final = (1 << 62) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which dead letters are meant: all that is given must hold. Times are Unix ms.

    One of the `offsets`, and one of the `ids`, where there are any.
    """

    topic: str | None = None
    tag: str | None = None
    key: str | None = None
    reason: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    offsets: frozenset[int] = frozenset()
    ids: frozenset[str] = frozenset()

    @property
    def is_all(self) -> bool:
        """Whether nothing is asked for."""
        return self == Wanted()


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter; `resent`: it was sent again."""

    record: Record
    properties: dict[str, str]
    resent: bool

    @property
    def topic(self) -> str | None:
        """Where the message was sent to at first."""
        return origin_of(self.properties)

    @property
    def place(self) -> tuple[int, int]:
        """Queue id and queue offset."""
        return self.record.queue_id, self.record.queue_offset

    def fields(self) -> dict[str, Any]:
        """All that is shown of it, for programs."""
        message = message_of(self.record)
        properties = self.properties
        return {
            "queue": self.record.queue_id,
            "offset": self.record.queue_offset,
            "dead_ms": self.record.store_timestamp,
            "topic": self.topic,
            "message_id": message["message_id"],
            "origin_message_id": properties.get("DLQ_ORIGIN_MESSAGE_ID")
            or properties.get("ORIGIN_MESSAGE_ID"),
            "attempts": self.record.reconsume_times,
            "reason": properties.get("DLQ_REASON"),
            "resent": self.resent,
            "tag": message["tag"],
            "keys": message["keys"],
            "properties": as_sent("", properties)[1],
            "born_timestamp": message["born_timestamp"],
            "body": message["body"],
        }

    @property
    def ids(self) -> set[str]:
        """By which it may be named: as a letter, and as the message that it was."""
        names = ("UNIQ_KEY", "DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID")
        given = (self.properties.get(name) for name in names)
        return {self.record.offset_message_id, *filter(None, given)}

    def is_wanted(self, wanted: Wanted) -> bool:
        """Whether all holds that is asked for; a reason is part of the text, of any case."""
        properties, when = self.properties, self.record.store_timestamp
        return (
            (not wanted.offsets or self.record.queue_offset in wanted.offsets)
            and (not wanted.ids or not wanted.ids.isdisjoint(self.ids))
            and wanted.topic in (None, self.topic)
            and wanted.tag in (None, properties.get("TAGS"))
            and (wanted.key is None or wanted.key in properties.get("KEYS", "").split())
            and (wanted.reason or "").lower() in properties.get("DLQ_REASON", "").lower()
            and (wanted.since_ms is None or when >= wanted.since_ms)
            and (wanted.until_ms is None or when < wanted.until_ms)
        )


class DeadLetters:
    """What the files of a running broker's store hold. Raises BrokerGone, Corrupt, OSError."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.board: Board = running_board(home)
        self.store = store_of(home)
        self.storage = OwnersStorage(str(self.store))
        self._reader = StoreReader(self.storage)
        self.note: DeadLetterNote = read_note(self.storage)

    def refresh(self) -> None:
        """Read the marks again, under the lock of those who change them.

        Of a topic that was deleted they are forgotten, which lets a start forget it as well: nobody
        is shown its letters, and if it is made again it goes on behind them. The broker that runs
        now knows the topics: the lock may have been waited for.
        """
        self.board = running_board(self.home)
        self.note = read_note(self.storage)
        self.note.known = max(self.note.known, self.board.word(layout.BOARD_RECOVERED_END))
        self.note.keep(self.groups())

    def groups(self) -> dict[str, TopicSlot]:
        """Groups that have a dead-letter topic."""
        named = [t for t in self.board.topics() if t.perm and t.name.startswith(DLQ_PREFIX)]
        return {topic.name.removeprefix(DLQ_PREFIX): topic for topic in named}

    def queues(self, group: str) -> list[tuple[int, int, int, Marks]]:
        """Queue id, lowest and next offset, marks. Raises Rejected if there is no such group."""
        topic = self.groups().get(group)
        if topic is None:
            find_group(self.home, group)
            return []
        rows = []
        for queue_id in range(topic.queue_count):
            slot = self.board.queue(topic.queue_base + queue_id)
            low, high = slot["min_offset"], slot["max_offset"]
            rows.append((queue_id, low, high, self.note.of(group, queue_id)))
        return rows

    def letters(self, group: str, wanted: Wanted, start: int = 0) -> Iterator[Letter]:
        """Those that were not purged, from an offset on, as they came."""
        start = max([start, *([min(wanted.offsets)] if wanted.offsets else [])])
        end = max(wanted.offsets, default=_NEVER) + 1
        for queue_id, low, last, marks in self.queues(group):
            place = group, queue_id
            for letter in self._letters(place, max(low, start), min(last, end), marks):
                if letter.is_wanted(wanted):
                    yield letter

    def newest(self, group: str) -> Letter | None:
        """The one that was stored last of those that were not purged."""
        queues = self.queues(group)
        found = [self._last_of((group, queue), low, end, m) for queue, low, end, m in queues]
        known = [letter for letter in found if letter is not None]
        return max(known, key=lambda letter: letter.record.store_timestamp, default=None)

    def _last_of(self, place: tuple[str, int], low: int, high: int, marks: Marks) -> Letter | None:
        """The last of a queue, whichever behind it were purged or have expired."""
        for first, end in reversed(list(without([(low, high)], marks.purged))):
            for behind in range(end, first, -_BACK):
                letters = list(self._letters(place, max(first, behind - _BACK), behind, marks))
                if letters:
                    return letters[-1]
        return None

    def _letters(
        self, place: tuple[str, int], at: int, high: int, marks: Marks
    ) -> Iterator[Letter]:
        for record in self._records(*place, at, high, marks):
            properties = record.property_map()
            if properties.get("TAGS") != LOST_TAG:
                yield Letter(record, properties, holds(marks.resent, record.queue_offset))

    def require_named(self, group: str, wanted: Wanted) -> None:
        """Raise Rejected if there is no letter of a wanted offset or id, or it was purged."""
        if not (wanted.offsets or wanted.ids):
            return
        offsets: set[int] = set()
        ids: set[str] = set()
        looked_at = Wanted() if wanted.ids else Wanted(offsets=wanted.offsets)
        for letter in self.letters(group, looked_at):
            offsets.add(letter.record.queue_offset)
            ids |= letter.ids
        lost = [str(offset) for offset in sorted(wanted.offsets - offsets)]
        lost += sorted(wanted.ids - ids)
        if lost:
            raise Rejected(
                f"{group} has no dead letter {', '.join(lost)}, or it was purged:"
                f" `gantrymq dlq show {group}` shows all"
            )

    def _records(
        self, group: str, queue_id: int, at: int, high: int, marks: Marks
    ) -> Iterator[Record]:
        topic = f"{DLQ_PREFIX}{group}"
        while at < high:
            hidden = [end for first, end in marks.purged if first <= at < end]
            if hidden:
                at = hidden[0]
                continue
            shown_to = min([first for first, _end in marks.purged if first > at], default=high)
            end = min(high, shown_to, at + _AT_ONCE)
            for unit in self._reader.units(topic, queue_id, at, end, self.board.cq_bytes):
                record = self._reader.of_unit(unit)
                if record is not None:  # else its segment has just expired
                    yield record
            at = end
