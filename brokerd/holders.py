"""Who still needs what lies in the oldest segments: retention asks before it removes any.

Groups that have not read so far, and pins; what waits for its time (brokerd/parkedholder.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gantrymq.brokerd.queuefiles import QueueKey, position_of
from gantrymq.shm import layout
from gantrymq.shm.errors import Corrupt
from gantrymq.shm.jsontext import parse_object
from gantrymq.shm.lineage import lineage_of
from gantrymq.shm.lognames import PINS
from gantrymq.shm.storage import read_file
from gantrymq.shm.valueranges import is_offset, is_small
from gantrymq.workers.groups.progress import UNSET

if TYPE_CHECKING:
    from gantrymq.shm.board import Board, TopicSlot
    from gantrymq.shm.storage import Storage
    from gantrymq.workers.groups.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Held:
    """The lowest log position that somebody still needs."""

    position: int
    who: str


@dataclass(frozen=True, slots=True)
class Loss:
    """What somebody loses by a removal: `count` messages or bytes of `what`."""

    who: str
    what: str
    count: int


class Holder(Protocol):
    """Something that needs records of the log for some more time."""

    def lowest_position(self, used: int) -> Held | None:
        """What may not be removed yet, with `used` percent of the disk in use. Raises OSError."""
        ...

    def losses(self, low: int, firsts: Mapping[QueueKey, int]) -> Iterator[Loss]:
        """Who is left without what, once the log begins at `low` and queues at `firsts`."""
        ...


class GroupsHolder:
    """Groups with a stored offset below a queue's last unit: the rest is unread (LW-73)."""

    def __init__(self, storage: Storage, board: Board, ledger: Ledger) -> None:
        self._storage = storage
        self._board = board
        self._ledger = ledger

    def lowest_position(self, used: int) -> Held | None:
        """Where the record of the slowest offset is; one look at each queue that is held.

        Offsets count as far as they are durable: a group may not fall back behind what is gone.
        """
        del used  # groups hold until the disk rule wins
        if not self._ledger.flush_if_room():
            return Held(0, "groups, whose ledger has no room")
        if not self._ledger.may_sync():
            return Held(0, "groups, whose copies of failed messages are not durable yet")
        self._ledger.sync()
        slowest: dict[QueueKey, tuple[int, str]] = {}
        for key, offset, group in self._unread():
            if key not in slowest or offset < slowest[key][0]:
                slowest[key] = (offset, group)
        found: Held | None = None
        for key, (offset, group) in slowest.items():
            position = position_of(self._storage, self._board, key, offset)
            if found is None or position < found.position:
                found = Held(position, f"group {group} in {key[0]}/{key[1]} at {offset}")
        return found

    def losses(self, low: int, firsts: Mapping[QueueKey, int]) -> Iterator[Loss]:
        """Unread messages by group and topic."""
        del low
        counts: dict[tuple[str, str], int] = {}
        for key, offset, group in self._unread():
            if offset < firsts.get(key, 0):
                name = (group, key[0])
                counts[name] = counts.get(name, 0) + firsts[key] - offset
        for (group, topic), count in counts.items():
            yield Loss(f"group {group}", f"messages of {topic}", count)

    def _unread(self) -> Iterator[tuple[QueueKey, int, str]]:
        """Queue, next offset and group, for all that have not read to the end of a live topic."""
        topics = {topic.name: topic for topic in self._board.topics() if topic.perm}
        for name, group in self._ledger.groups.items():
            for key, progress in group.queues.items():
                topic = topics.get(key[0])
                if topic is None or progress.committed == UNSET or key[1] >= topic.queue_count:
                    continue
                words = self._words(topic, key[1])
                offset = max(progress.committed, words["min_offset"])
                if offset < words["written"]:
                    yield key, offset, name

    def _words(self, topic: TopicSlot, queue_id: int) -> dict[str, int]:
        return self._board.queue(topic.queue_base + queue_id)


@dataclass(frozen=True, slots=True)
class Pin:
    """A file of `gantry/pins`: `{"position": P}`, and `"until_ratio": percent` if less than forced.

    The log from P on stays, as long as no more than that much of the disk is in use. Its owner
    replaces the file to move on and removes it in the end. One that cannot be read, for whatever
    reason, holds all, and so does one that names a store (`"store": ID`) whose log up to P this is
    not; the disk rule removes below them all the same.
    """

    name: str
    position: int
    until_ratio: int
    damage: str = ""


class Pins:
    """All pins of the store."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def lowest_position(self, used: int) -> Held | None:
        """The lowest pin that counts at this usage."""
        held = [
            Held(pin.position, f"pin {pin.name}" + (f" ({pin.damage})" if pin.damage else ""))
            for pin in read_pins(self._storage)
            if used <= pin.until_ratio
        ]
        return min(held, key=lambda one: one.position, default=None)

    def losses(self, low: int, firsts: Mapping[QueueKey, int]) -> Iterator[Loss]:
        """How far the log's begin passes each pin."""
        del firsts
        for pin in read_pins(self._storage):
            if pin.position < low:
                yield Loss(f"pin {pin.name}", "bytes of the log", low - pin.position)


def read_pins(storage: Storage) -> list[Pin]:
    """All pins by name; the folder's own name stands for those that cannot be listed."""
    try:
        names = [name for name in storage.list(PINS) if not name.endswith(".new")]
    except OSError as error:
        return [_unreadable(PINS, error)]
    return [_pin(storage, name) for name in names]


def _pin(storage: Storage, name: str) -> Pin:
    try:
        content = parse_object(read_file(storage, f"{PINS}/{name}"))
        position, ratio = content.get("position"), content.get("until_ratio", 100)
        if not is_offset(position) or not is_small(ratio):
            raise ValueError("position and until_ratio are whole numbers")
        assert isinstance(position, int), "it is one"
        store = content.get("store", "")
        if not isinstance(store, str):
            raise ValueError("store is a store's id")
        if store and not lineage_of(storage).holds(store, position):
            return Pin(name, 0, 100, f"of position {position} of another store, {store}")
        return Pin(name, position, ratio)
    except FileNotFoundError:
        return Pin(name, 1 << 62, 100)  # its owner has just removed it
    except (ValueError, OSError, Corrupt) as error:
        return _unreadable(name, error)


def _unreadable(name: str, error: Exception) -> Pin:
    return Pin(name, 0, 100, f"unreadable: {error!r}")


def lowest_of(holders: tuple[Holder, ...], used: int) -> Held | None:
    """The lowest position of all holders. Raises OSError."""
    found = [held for holder in holders if (held := holder.lowest_position(used)) is not None]
    return min(found, key=lambda one: one.position, default=None)


def ask_to_move(board: Board, position: int) -> None:
    """Have parked records and halves below a log position appended again (ADR 0018, 0019)."""
    if board.word(layout.BOARD_TIMERS_WANTED) < position:
        board.set_word(layout.BOARD_TIMERS_WANTED, position)


def firsts_of(board: Board, firsts: Mapping[int, int]) -> dict[QueueKey, int]:
    """First offsets by board queue as offsets by topic and queue id."""
    return {
        (topic.name, queue_id): firsts.get(topic.queue_base + queue_id, 0)
        for topic in board.topics()
        for queue_id in range(topic.queue_count)
    }
