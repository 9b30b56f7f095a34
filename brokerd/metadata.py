"""Topics: `config/topics.json` and the board's topic and queue tables; groups by name.

A topic keeps its board slot, and its queues theirs, until it is deleted and has left
(brokerd/vacancies.py). The file is on the disk before anybody is told of a topic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from gantrymq.brokerd import topics
from gantrymq.brokerd.batchqueues import BATCH, KIND_ATTRIBUTE
from gantrymq.brokerd.config import Settings
from gantrymq.brokerd.gonetopics import forget_gone
from gantrymq.brokerd.places import NEW, Place, Places
from gantrymq.brokerd.subscriptions import Subscriptions
from gantrymq.brokerd.topics import TopicConfig
from gantrymq.shm import layout
from gantrymq.shm.board import NOBODYS, Board, TopicSlot
from gantrymq.shm.clock import Clock
from gantrymq.shm.codes import Level
from gantrymq.shm.configfile import (
    TableText,
    changes_of,
    fault_in,
    read_config,
    restore_config,
    write_config,
)
from gantrymq.shm.errors import Corrupt, DiskFull, Rejected, TopicNotFound
from gantrymq.shm.jsonsum import sum_holds, with_sum, without_sum
from gantrymq.shm.jsontext import parse_object
from gantrymq.shm.properties import DLQ_PREFIX, RETRY_PREFIX, parse_delay_levels
from gantrymq.shm.queuenames import has_members, is_folder_name
from gantrymq.shm.storage import Storage, is_disk_full, read_file, replace_file
from gantrymq.shm.topicfiles import DELETED, LEVEL_ATTRIBUTE, begin_in, topic_table
from gantrymq.shm.valueranges import is_small

TOPICS_FILE: Final = "topics.json"
#: Deleted topics that leave at a time: some 2 ms of a step for which all clients wait.
LEAVING_MAX: Final = 64


@dataclass(slots=True)
class Change:
    """A change of one topic that the files do not say yet."""

    name: str
    queues: int  # queue words that it needs more
    slots: int  # likewise
    show: Callable[[], object]
    take_back: Callable[[], object]
    error: OSError | None = None


class RecoveredLog(Protocol):
    """What recovery found: positions, and (next offset, units, first unit) of each queue."""

    @property
    def appended(self) -> int: ...
    @property
    def durable(self) -> int: ...
    @property
    def dispatched(self) -> int: ...
    @property
    def settled(self) -> int: ...
    @property
    def store_ms(self) -> int: ...
    @property
    def low(self) -> int: ...
    @property
    def queues(self) -> dict[tuple[str, int], tuple[int, int, int]]: ...
    @property
    def topics(self) -> Collection[str]: ...
    @property
    def starts(self) -> Mapping[tuple[str, int], int]: ...


T = TypeVar("T")


class Metadata:
    """All topics of the store; the supervisor is its only user.

    What `plan_open`, `plan_create` and `plan_delete` change is in the files and on the board after
    the next `commit`, one write for all; only then may what they return be called, which is the
    answer. `open`, `create` and `delete` do all three at once.
    """

    def __init__(self, storage: Storage, settings: Settings, clock: Clock) -> None:
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self.groups = Subscriptions(storage, clock, settings.retry_queue_nums)
        self._topics: dict[str, TopicConfig] = {}
        self._deleted: dict[str, int] = {}
        self._staged: dict[str, Change] = {}
        self._text = TableText()
        self._sound = False
        self._counter = 0
        self._unsaved = False
        self._slots: dict[str, int] = {}
        self._places = Places()
        self._made = 0  # topics of this life
        #: Deleted, and may leave the board as far as is known.
        self.departing: set[str] = set()
        self._leaving: set[str] = set()  # of them those that are marked so
        self._board: Board | None = None

    def load(self) -> None:
        """Read the files; a store without them has no topics yet. Raises Corrupt."""
        self.groups.load()
        content: Any = read_config(self._storage, TOPICS_FILE)
        table = topic_table(content)
        restore_config(self._storage, TOPICS_FILE, content)
        self._counter = changes_of(content)
        for name, entry in table.items():
            self._put(TopicConfig.from_json(name, entry))
        if self._storage.exists(DELETED):
            deleted = self._read_deleted()
            # A crash may have come between the two files; `topics.json` has the say.
            self._deleted = {n: q for n, q in deleted.items() if n not in self._topics}

    def _read_deleted(self) -> dict[str, int]:
        """Queues of deleted topics. Raises Corrupt."""
        data = read_file(self._storage, DELETED)
        try:
            found: dict[str, int] = without_sum(parse_object(data))
        except ValueError:
            fault = fault_in(data)
            raise _damaged(f"byte {fault[0]} is {fault[1]}" if fault else "no object") from None
        if sum_holds(data) is False:
            raise _damaged("its checksum is wrong")
        if not all(map(is_small, found.values())):
            raise _damaged("a topic's queues are a whole number")
        return found

    def add_parking_topics(self) -> None:
        """Have the topics in which messages wait, before `publish` saves them."""
        levels = len(parse_delay_levels(self._settings.message_delay_level))
        for name, queues in topics.parking_topics(levels).items():
            perm = topics.PERM_READ | topics.PERM_WRITE
            config = self._topics.setdefault(name, TopicConfig(name, 0, 0, perm))
            if min(config.read_queues, config.write_queues) < queues:
                config.read_queues = max(config.read_queues, queues)
                config.write_queues = max(config.write_queues, queues)
                self._unsaved = True
            self._put(config)

    def publish(self, board: Board, found: RecoveredLog) -> None:
        """Fill a fresh board: all topics and queues, then the positions of the log.

        Raises OSError.
        """
        self._board = board
        forget_gone(self._storage, self._deleted, found.queues, found.topics)
        self._begin_within(found)
        stored = _queues_by_topic(found)
        self._adopt(found, stored)
        for config in sorted(self._topics.values(), key=lambda config: config.name):
            queues = max(config.read_queues, config.write_queues, 1)
            self._add_slot(config, max(queues, stored.get(config.name, 0)))
        # Of the others no record is left: the next write of the file leaves them out. Who had the
        # store meanwhile may have made and deleted one of more queues.
        deleted = {name: n for name, n in self._deleted.items() if name in stored}
        self._deleted = {name: max(n, stored[name]) for name, n in deleted.items()}
        for name, queues in sorted(self._deleted.items()):
            self._add_slot(TopicConfig(name, queues, 0, 0), queues)
        for (name, queue_id), numbers in found.queues.items():
            at = self._restore_queue(name, queue_id, numbers)
            board.set_word(at + layout.QUEUE_STARTS, found.starts.get((name, queue_id), 0))
        for word, value in (
            (layout.BOARD_RECOVERED_END, found.appended),
            (layout.BOARD_APPENDED, found.appended),
            (layout.BOARD_SETTLED, found.settled),
            (layout.BOARD_DURABLE, found.durable),
            (layout.BOARD_DISPATCHED, found.dispatched),
            (layout.BOARD_INDEXED, -1),
            (layout.BOARD_HALF_PROGRESS, -1),
            (layout.BOARD_OP_PROGRESS, -1),
            (layout.BOARD_STORE_MS, found.store_ms),
            (layout.BOARD_LOW, found.low),
        ):
            board.set_word(word, value)

    def open(self, name: str, *, create: bool, of_member: bool = False) -> TopicSlot:
        """A topic's slot at once; as `plan_open`."""
        return self._at_once(self.plan_open(name, create=create, of_member=of_member))

    def create(self, name: str, queues: int, level: str) -> TopicSlot:
        """Make a topic at once; as `plan_create`."""
        return self._at_once(self.plan_create(name, queues, level))

    def delete(self, name: str) -> None:
        """Forget a topic at once; as `plan_delete`."""
        self._at_once(self.plan_delete(name))

    def _at_once(self, answer: Callable[[], T]) -> T:
        self.commit()
        return answer()

    def commit(self) -> None:
        """Put all changes into the files by one write, and on the board.

        Where that fails they are taken back, and their answers raise DiskFull or StoreFailed.
        """
        staged, self._staged = self._staged, {}
        if not staged:
            return
        try:
            self._save_staged(staged)
        except OSError as error:
            for change in staged.values():
                change.take_back()
                change.error = error
            return
        for change in staged.values():
            change.show()

    def _save_staged(self, staged: Mapping[str, Change]) -> None:
        """Who is deleted is in the one file before it is missing in the other.

        Its records are in the log: a start that finds it in neither takes it for a topic again.
        """
        gone = staged.keys() - self._topics.keys()
        again = staged.keys() & self._topics.keys() & self._deleted.keys()
        if gone:
            self._save_deleted()
        self._save()
        if again:
            self._save_deleted_if_room({n: q for n, q in self._deleted.items() if n not in again})

    def _stage(self, change: Change) -> Callable[[], TopicSlot]:
        self._staged[change.name] = change
        return partial(self._outcome, change)

    def _outcome(self, change: Change) -> TopicSlot:
        if change.error is not None:
            raise topics.not_saved(change.name, change.error) from change.error
        return self._slot(change.name)

    def _settle(self, name: str) -> None:
        """What is asked of a topic that is just being changed counts after that."""
        if name in self._staged:
            self.commit()

    def plan_open(
        self, name: str, *, create: bool, of_member: bool = False
    ) -> Callable[[], TopicSlot]:
        """A topic's slot; made by the settings' rules if `create` (CQ-104, CQ-105).

        `of_member`: a retry or dead-letter topic is asked for by a member of its group (RD-14).
        Raises MessageIllegal or TopicNotFound.
        """
        topics.require_valid_name(name)
        self._settle(name)
        if name in self._topics:
            return partial(self._slot, name)
        if create and topics.is_retry_kind(name):
            return self._create_of_group(name, of_member)
        if not create or not self._settings.auto_create_topic_enable or topics.is_system(name):
            raise TopicNotFound(
                f"there is no topic {name}: create it with `gantrymq topic create {name}`",
                topic=name,
            )
        queues = min(topics.AUTO_CREATED_QUEUES_MAX, self._settings.default_topic_queue_nums)
        queues = min(queues, self._deleted.get(name, queues))
        return self.plan_create(name, queues, self._settings.default_durability)

    def plan_open_again(self, name: str) -> Callable[[], TopicSlot]:
        """The slot of a topic that the client had open in a life before; it is made by nobody.

        One that was deleted since has its place back, for as long as a session has it open: who
        makes it again makes it there, and the client finds it as if it had stayed attached.
        Raises MessageIllegal, TopicNotFound, or Rejected where the board has no room.
        """
        topics.require_valid_name(name)
        self._settle(name)
        if name not in self._topics and not topics.is_system(name):
            self._keep_place(name)
            return partial(self._slot, name)
        return self.plan_open(name, create=False)

    def _keep_place(self, name: str) -> None:
        """Have a deleted topic on the board, and let it leave when nobody has it open any more."""
        is_new = name not in self._slots
        may_leave = name in self._leaving or (is_new and not topics.is_retry_kind(name))
        if is_new:
            self._hide(name, self._settings.default_topic_queue_nums)
        self._stay(name)
        if may_leave:
            self.departing.add(name)

    def _create_of_group(self, name: str, of_member: bool) -> Callable[[], TopicSlot]:
        """A group's retry or dead-letter topic: only for a group that exists (RD-11, RD-30)."""
        group = topics.group_of(name)
        if not of_member and group not in self.groups:
            raise TopicNotFound(
                f"there is no topic {name}, for there is no group {group}: a push consumer of the"
                " group makes both",
                topic=name,
            )
        dead = name.startswith(DLQ_PREFIX)
        queues = 1 if dead else self._settings.retry_queue_nums
        queues = min(queues, self._deleted.get(name, queues))
        return self.plan_create(name, queues, self._settings.default_durability)

    def have(self, name: str) -> None:
        """Have a topic on the board that a parked record names, whatever the settings say of it.

        One that could not be made by a send is there as if it had been deleted: hidden (DT-16).
        Without room for it nothing is done: the scheduler asks again. Raises OSError, StoreFailed.
        """
        self._stay(name)
        if name in self._slots:
            return
        try:
            self.open(name, create=True, of_member=True)
        except DiskFull:
            return
        except Rejected:
            self._have_hidden(name)

    def have_again(self, name: str) -> None:
        """Have the retry or dead-letter topic of a group that there is, though it was deleted.

        Where it cannot be made nothing is done: `groups` asks again. Raises StoreFailed.
        """
        if topics.is_retry_kind(name):
            with suppress(DiskFull, Rejected, TopicNotFound):
                self.open(name, create=True)

    def _have_hidden(self, name: str) -> None:
        if is_folder_name(name):
            with suppress(Rejected):
                self._hide(name, 1)

    def _hide(self, name: str, queues: int) -> None:
        """Have a topic that is none as one that was deleted. Raises Rejected without room for it.

        The file is written first: what is dispatched to it then is of a deleted topic for a start.
        """
        self.commit()  # others may be about to have the board's next queues
        place = self._places.take(queues)
        try:
            self._require_room(queues if place.base < 0 else 0, int(place.slot < 0))
            self._save_deleted_if_room({**self._deleted, name: queues})
        except BaseException:
            self._places.give(place, queues)
            raise
        self._add_slot(TopicConfig(name, queues, 0, 0), queues, place)

    def _save_deleted_if_room(self, deleted: dict[str, int]) -> None:
        """On a full disk the next change of the file has it too; until then a start asks the log.

        That knows which names there are, and `topics.json` has the say.
        """
        before, self._deleted = self._deleted, deleted
        try:
            self._save_deleted()
        except OSError as error:
            if not is_disk_full(error):
                self._deleted = before
                raise

    def _save_deleted(self) -> None:
        replace_file(self._storage, DELETED, with_sum(json.dumps(self._deleted)).encode())

    def plan_create(self, name: str, queues: int, level: str) -> Callable[[], TopicSlot]:
        """Make a topic; the same again is fine. Raises Rejected and its kinds.

        One that was deleted goes on in its queues, and shows nothing of what they held.
        """
        topics.require_creatable(name, queues)
        if level.upper() not in Level.__members__:
            raise Rejected(f"topic {name}: durability is written or durable, not {level!r}")
        config = TopicConfig(
            name,
            queues,
            queues,
            topics.PERM_READ | topics.PERM_WRITE,
            {LEVEL_ATTRIBUTE: level.lower()},
        )
        self._settle(name)
        if name in self._topics:
            return partial(self._require_same, self._topics[name], config)
        if name in self._deleted:
            return self._create_again(config)
        place = self._places.take(queues)
        try:
            self._require_room(queues if place.base < 0 else 0, int(place.slot < 0))
        except Rejected:
            self._places.give(place, queues)
            raise
        self._put(config)

        def take_back() -> None:
            self._drop(name)
            self._places.give(place, queues)

        more = queues if place.base < 0 else 0
        show = partial(self._add_slot, config, queues, place)
        return self._stage(Change(name, more, int(place.slot < 0), show, take_back))

    def _put(self, config: TopicConfig) -> None:
        self._topics[config.name] = config
        self._text.put(config.name, config.to_json())

    def _drop(self, name: str) -> TopicConfig:
        self._text.remove(name)
        return self._topics.pop(name)

    def _create_again(self, config: TopicConfig) -> Callable[[], TopicSlot]:
        """In the slot and queues of old: queue offsets go on, for the log holds the old ones."""
        self._stay(config.name)
        old, board = self._slot(config.name), self._on_board
        missing = config.write_queues - old.queue_count
        if missing > 0:
            self._require_room(missing, 0)
            self.commit()  # others may be about to have the board's next queues
            if old.queue_base + old.queue_count != board.half(layout.BOARD_QUEUE_COUNT):
                raise Rejected(
                    f"topic {config.name} had {old.queue_count} queues when it was deleted, and its"
                    " records are still in the log, or clients that had it open still know it so:"
                    " create it with no more, or use another name",
                    topic=config.name,
                )
        places = [board.queue_at(old.queue_base + number) for number in range(old.queue_count)]
        begins = [board.word(at + layout.QUEUE_NEXT_OFFSET) for at in places]
        if any(begins):
            config.begin_at(begins)
        self._put(config)

        def show() -> None:
            for at, begin in zip(places, begins, strict=True):
                board.set_word(at + layout.QUEUE_MIN_OFFSET, begin)
            self._add_queues(old.slot, range(old.queue_count, config.write_queues))
            self._show_slot(old.slot, config)

        take_back = partial(self._drop, config.name)
        return self._stage(Change(config.name, max(0, missing), 0, show, take_back))

    def _show_slot(self, slot: int, config: TopicConfig) -> None:
        """Let a slot be used by what its topic is now; permission comes last."""
        board, at = self._on_board, self._on_board.topic_at(slot)
        level = config.level(self._settings.default_durability)
        board.set_half(at + layout.TOPIC_LEVEL, int(level))
        board.set_half(at + layout.TOPIC_WRITE_QUEUES, config.write_queues)
        board.set_half(at + layout.TOPIC_MADE, self._next_made())
        board.count_change(layout.BOARD_TOPIC_CHANGES)
        board.set_half(at + layout.TOPIC_SYSTEM, 0)
        board.set_half(at + layout.TOPIC_PERM, config.perm)
        board.count_change(layout.BOARD_TOPIC_CHANGES)  # what was read amid this is read again

    def _next_made(self) -> int:
        self._made = self._made + 1 & 0xFFFFFFFF
        return self._made

    def _add_queues(self, slot: int, numbers: range) -> None:
        """Queues behind a topic's last, which is the board's last as well."""
        board, at = self._on_board, self._on_board.topic_at(slot)
        base = board.half(at + layout.TOPIC_QUEUE_BASE)
        for number in numbers:
            queue_at = board.queue_at(base + number)
            board.set_half(queue_at + layout.QUEUE_TOPIC, slot)
            board.set_half(queue_at + layout.QUEUE_ID, number)
        if numbers:
            board.set_half(at + layout.TOPIC_QUEUE_COUNT, numbers.stop)
            board.set_half(layout.BOARD_QUEUE_COUNT, base + numbers.stop)

    def plan_delete_group(self, name: str) -> dict[str, Callable[[], TopicSlot]]:
        """Forget a group without members: its entry, its retry topic, an empty dead-letter one.

        Dead letters stay for whoever looks at them: `plan_delete` removes those.
        """
        self.groups.remove(name)
        retry, dead = RETRY_PREFIX + name, DLQ_PREFIX + name
        self._settle(retry)
        self._settle(dead)
        found = [topic for topic in (retry, dead) if topic in self._topics]
        return {
            topic: self.plan_delete(topic, of_group=True)
            for topic in found
            if topic == retry or not self._is_used(self._slot(topic))
        }

    def plan_delete(self, name: str, *, of_group: bool = False) -> Callable[[], TopicSlot]:
        """Forget a topic: nobody can open it any more; its records stay until they expire.

        `of_group`: it goes with its group, which nobody is at work for.
        """
        self._settle(name)
        if name not in self._topics:
            raise TopicNotFound(f"there is no topic {name}", topic=name)
        if topics.is_system(name):
            raise Rejected(f"topic {name} is a system topic and stays", topic=name)
        if has_members(self._storage, name):
            raise Rejected(
                f"topic {name} is of {KIND_ATTRIBUTE}={BATCH}: let a RocketMQ delete it, which then"
                " removes its queues as well",
                topic=name,
            )
        slot = self._slot(name)
        config = self._drop(name)
        self._deleted[name] = slot.queue_count

        def show() -> None:
            at = self._on_board.topic_at(slot.slot)
            self._on_board.set_half(at + layout.TOPIC_PERM, 0)
            self._on_board.set_half(at + layout.TOPIC_SYSTEM, layout.DELETED)
            self._on_board.count_change(layout.BOARD_TOPIC_CHANGES)
            # `groups` may still have copies for retry and dead-letter topics.
            if of_group or not topics.is_retry_kind(name):
                self.departing.add(name)

        def take_back() -> None:
            self._put(config)
            del self._deleted[name]

        return self._stage(Change(name, 0, 0, show, take_back))

    # ------------------------------------------------------------------------------- leaving

    def kept_open(self, opened: Container[int]) -> int:
        """How many deleted topics stay on the board for slots in `opened`."""
        return sum(self._slots[name] in opened for name in self.departing)

    def begin_leaving(self, opened: Container[int]) -> list[str]:
        """Mark deleted topics that leave the board, but for slots in `opened`; their names.

        Of many only so many as one step is short with.
        """
        free = (name for name in self.departing if self._slots[name] not in opened)
        for name in list(islice(free, LEAVING_MAX)):
            slot = self._slot(name)
            if self._is_used(slot):
                self.departing.discard(name)
            else:
                self._leaving.add(name)
                at = self._on_board.topic_at(slot.slot)
                self._on_board.set_half(at + layout.TOPIC_SYSTEM, layout.LEAVING)
        if self._leaving:
            self._on_board.count_change(layout.BOARD_TOPIC_CHANGES)
        return list(self._leaving)

    def leave(self, names: Iterable[str]) -> None:
        """Take topics off the board that nobody uses any more; those that stay are not touched."""
        board = self._on_board
        for name in self._leaving.intersection(names):
            slot = self._slot(name)
            if self._is_used(slot):
                self._stay(name)
                continue
            self._leaving.discard(name)
            self.departing.discard(name)
            del self._slots[name], self._deleted[name]
            _clear(board, slot.slot)
            self._places.give(Place(slot.slot, slot.queue_base), slot.queue_count)
        board.count_change(layout.BOARD_TOPIC_CHANGES)

    def _is_used(self, slot: TopicSlot) -> bool:
        """Whether a record of it may be in the log."""
        board = self._on_board
        places = [board.queue_at(slot.queue_base + number) for number in range(slot.queue_count)]
        return any(board.word(at + layout.QUEUE_NEXT_OFFSET) for at in places)

    def _stay(self, name: str) -> None:
        """A topic is wanted after all."""
        self.departing.discard(name)
        if name in self._leaving:
            self._leaving.discard(name)
            at = self._on_board.topic_at(self._slots[name])
            self._on_board.set_half(at + layout.TOPIC_SYSTEM, layout.DELETED)
            self._on_board.count_change(layout.BOARD_TOPIC_CHANGES)

    def _begin_within(self, found: RecoveredLog) -> None:
        """Let no topic that was made again begin behind the end of its queues.

        A power cut may have taken what these ends counted. The file is written before anything is
        sent: the next start would hide what has these offsets by then. Raises OSError.
        """
        changed = False
        for config in self._topics.values():
            begins = config.begins()
            ends = (found.queues.get((config.name, n), (0, 0, 0))[0] for n in range(len(begins)))
            within = list(map(min, begins, ends))
            if within != begins:
                config.begin_at(within)
                self._put(config)
                changed = True
        if changed:
            self._save()

    def _adopt(self, found: RecoveredLog, stored: Mapping[str, int]) -> None:
        """Take in topics that only log and queues know: `topics.json` was lost or is older.

        One without a record is hidden as if it had been deleted: made again, its offsets go on.
        """
        known = self._topics.keys() | self._deleted.keys()
        lost = sorted(stored.keys() - known)
        kept = {name for (name, _), (end, _, first) in found.queues.items() if first < end}
        kept.update(found.topics)
        hidden: dict[str, int] = {}
        for name in lost:
            queues = max(1, stored[name])
            # A forged name is nobody's: as if it had been deleted, too.
            if not is_folder_name(name) or name not in kept:
                hidden[name] = queues
                continue
            perm = topics.PERM_READ | topics.PERM_WRITE
            is_batch = has_members(self._storage, name)
            attributes = {KIND_ATTRIBUTE: BATCH} if is_batch else {}
            self._put(TopicConfig(name, queues, queues, perm, attributes))
        if hidden:
            self._save_deleted_if_room({**self._deleted, **hidden})
        if lost or self._unsaved:
            try:
                self._save()
            except OSError as error:
                if not is_disk_full(error):  # the next start finds them again
                    raise

    def _restore_queue(self, name: str, queue_id: int, numbers: tuple[int, int, int]) -> int:
        slot = self._slot(name)
        at = self._on_board.queue_at(slot.queue_base + queue_id)
        next_offset, written, first = numbers
        self._on_board.set_word(at + layout.QUEUE_RECOVERED_END, next_offset)
        self._on_board.set_word(at + layout.QUEUE_NEXT_OFFSET, next_offset)
        self._on_board.set_word(at + layout.QUEUE_WRITTEN, written)
        begins = self._topics[name].begins() if name in self._topics else []
        begin = begin_in(begins, queue_id)
        self._on_board.set_word(at + layout.QUEUE_MIN_OFFSET, max(first, begin))
        # All that recovery leaves is on the disk, so both levels may see it.
        self._on_board.set_word(at + layout.QUEUE_MAX_OFFSET, written)
        return at

    def begin_queues(self, firsts: Iterable[Sequence[int]]) -> None:
        """Show nothing below these offsets, pairs of a board queue and an offset; only upwards."""
        board = self._on_board
        for queue, first in firsts:
            at = board.queue_at(queue) + layout.QUEUE_MIN_OFFSET
            board.set_word(at, max(first, board.word(at)))

    def _require_same(self, there: TopicConfig, wanted: TopicConfig) -> TopicSlot:
        slot = self._slot(there.name)
        level = wanted.level(self._settings.default_durability)
        if (there.write_queues, slot.level) != (wanted.write_queues, level):
            raise Rejected(
                f"topic {there.name} exists with {there.write_queues} queues at level "
                f"{Level(slot.level).name.lower()}: it cannot be changed",
                topic=there.name,
            )
        return slot

    def _require_room(self, queues: int, slots: int) -> None:
        board, staged = self._on_board, self._staged.values()
        slots += sum(change.slots for change in staged)
        queues += sum(change.queues for change in staged)
        if board.half(layout.BOARD_TOPIC_COUNT) + slots > board.topics_max:
            held = self._held_by_deleted("topics", len(self._deleted))
            raise Rejected(f"the broker has {board.topics_max} topics{held}raise topics_max")
        if board.half(layout.BOARD_QUEUE_COUNT) + queues > board.queues_max:
            free = board.queues_max - board.queues_used()
            if queues <= free:
                raise Rejected(
                    f"the broker has {free} free queues, but no {queues} in a row: restart it,"
                    " which joins them, ask for fewer, or raise board_queues_max"
                )
            held = self._held_by_deleted("queues", sum(self._deleted.values()))
            raise Rejected(f"the broker has {board.queues_max} queues{held}raise board_queues_max")

    def _held_by_deleted(self, what: str, count: int) -> str:
        """What is said of places that deleted topics still have."""
        if not count:
            return ": "
        return (
            f", {count} of them {'of ' * (what == 'queues')}deleted topics: those that had no"
            " message leave as soon as no session has them open, the others at the first start"
            " after retention has removed their messages (`file_reserved_time`); restart then, or "
        )

    def _save(self) -> None:
        self._unsaved = False
        self._counter += 1
        version = {"counter": self._counter, "stateVersion": 0, "timestamp": self._clock.wall_ms()}
        content = {"dataVersion": version, "topicConfigTable": self._text.text()}
        sound, self._sound = self._sound, False
        write_config(self._storage, TOPICS_FILE, content, sound=sound)
        self._sound = True

    @property
    def _on_board(self) -> Board:
        assert self._board is not None, "publish comes first"
        return self._board

    def _slot(self, name: str) -> TopicSlot:
        slot = self._on_board.topic(self._slots[name])
        assert slot is not None, f"slot of {name} is complete"
        return slot

    def _add_slot(self, config: TopicConfig, queues: int, place: Place = NEW) -> TopicSlot:
        self._require_room(queues if place.base < 0 else 0, int(place.slot < 0))
        board = self._on_board
        count, end = board.half(layout.BOARD_TOPIC_COUNT), board.half(layout.BOARD_QUEUE_COUNT)
        slot = count if place.slot < 0 else place.slot
        base = end if place.base < 0 else place.base
        for queue_id in range(queues):
            at = board.queue_at(base + queue_id)
            board.set_half(at + layout.QUEUE_TOPIC, slot)
            board.set_half(at + layout.QUEUE_ID, queue_id)
        name = config.name.encode(errors="surrogateescape")
        hidden = topics.refuses_sends(config.name) or not config.perm
        at = board.topic_at(slot)
        board.memory[at : at + layout.TOPIC_BYTES] = layout.TOPIC.pack(
            ready=int(slot < count),  # one that is used again has been all the time
            queue_base=base,
            queue_count=queues,
            write_queues=config.write_queues,
            level=config.level(self._settings.default_durability),
            perm=config.perm,
            name_bytes=len(name),
            system=layout.DELETED if config.name in self._deleted else int(hidden),
            made=self._next_made(),
            name=name,
        )
        # Whoever uses the slot has learnt of it by a later message, so plain stores are enough.
        board.set_half(at + layout.TOPIC_READY, 1)
        board.set_half(layout.BOARD_QUEUE_COUNT, max(end, base + queues))
        board.set_half(layout.BOARD_TOPIC_COUNT, max(count, slot + 1))
        if slot < count:
            board.count_change(layout.BOARD_TOPIC_CHANGES)
        self._slots[config.name] = slot
        return self._slot(config.name)


def _damaged(why: str) -> Corrupt:
    return Corrupt(
        f"{DELETED} is damaged ({why}): put it back from a back-up, or delete it: topics that were"
        " deleted, and that the log still has records of, are there again then",
        path=DELETED,
    )


def _queues_by_topic(found: RecoveredLog) -> dict[str, int]:
    """How many queues each topic of the log has at least; 0 where only its name is known."""
    queues = dict.fromkeys(found.topics, 0)
    for name, queue_id in found.queues:
        queues[name] = max(queues.get(name, 0), queue_id + 1)
    return queues


def _clear(board: Board, slot: int) -> None:
    """Leave a slot to nobody: lists by slot stay whole, and no topic has such a name."""
    at, name = board.topic_at(slot), f"{NOBODYS}{slot}".encode()
    board.memory[at : at + layout.TOPIC_BYTES] = layout.TOPIC.pack(
        ready=1, name_bytes=len(name), system=1, name=name
    )
