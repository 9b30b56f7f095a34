"""Broadcasting: every member reads all queues, and keeps its offsets itself (CQ-35)."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gantrymq.clients.assigned import Assigned
from gantrymq.clients.filelock import try_lock
from gantrymq.clients.home import find_home, state_folder
from gantrymq.clients.logfiles import LogFiles
from gantrymq.clients.member import Terms
from gantrymq.clients.message import MessageQueue, is_name
from gantrymq.clients.push.handoff import Handoff
from gantrymq.clients.push.member import PushMember, Resumed
from gantrymq.clients.session import Session, now_ns
from gantrymq.shm import groupwire, layout
from gantrymq.shm.errors import Corrupt, GroupIllegal, Incompatible, NotPermitted
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.groupwire import ConsumeFrom
from gantrymq.shm.jsontext import parse_json
from gantrymq.shm.limits import RETRY_TOPIC_BYTES_MAX
from gantrymq.shm.ownfiles import read_bytes, replace_whole
from gantrymq.shm.storage import is_disk_full
from gantrymq.shm.valueranges import id_of, offset_of

if TYPE_CHECKING:
    from gantrymq.shm.held import Descriptor

SAVE_NS: Final = 5_000_000_000
#: Characters of a wrong value that are shown.
_SHOWN: Final = 40
#: A life of the broker as `save` writes it.
_LIFE: Final = re.compile(r"[0-9a-f]{1,16}")
#: What comes of a file that `save` has not written.
_NO_OFFSETS: Final = (
    ValueError, KeyError, TypeError, AttributeError, RecursionError, IsADirectoryError
)  # fmt: skip

log = logging.getLogger("gantrymq")


class Mark(NamedTuple):
    """What tells the message before an offset from another: where it is in the log, since when.

    A queue that has become shorter and grown again, or has begun anew, has another one there.
    """

    offset: int
    position: int
    stored_ms: int


class OffsetFile:
    """Offsets of one broadcasting consumer: `<state>/gantrymq/broadcast/<group>/...json`.

    The folder is the user's state folder by the XDG rules, whatever the broker's home is; the name
    has the instance and a hash of that home. Only one consumer may have it open.
    """

    def __init__(self, home: str | os.PathLike[str] | None, group: str, instance: str) -> None:
        """Lock and read it.

        Raises GroupIllegal if another consumer has it, Corrupt, NotPermitted.
        """
        if not is_name(instance):
            raise GroupIllegal(f"instance {instance!r}: letters, digits and _-%| only")
        mark = hashlib.blake2b(os.fsencode(find_home(home)), digest_size=6).hexdigest()
        folder = state_folder() / "gantrymq" / "broadcast" / group
        self.path: Path = folder / f"{instance}-{mark}.json"
        self._lock: Descriptor | None = None
        self._lacks_room = False  # and that was told
        self._store = ""
        self.life = 0  # of the broker, in which the offsets were last compared with its queues
        try:
            with _permitted():
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._lock = try_lock(self.path.with_suffix(".lock"))
            if self._lock is None:
                raise GroupIllegal(
                    f"another broadcasting consumer of group {group} uses {self.path}: give each"
                    " one an instance= of its own",
                    group=group,
                )
            #: By queue, the newest first: of its offset, and of the last one known to be durable.
            self.marks: dict[MessageQueue, list[Mark]] = {}
            with _permitted():
                self.offsets = self._read()
        except BaseException:  # whose traceback may hold this object, and the lock with it
            self.close()
            raise
        self._saved = self._content()

    def _content(self) -> tuple[int, dict[MessageQueue, int], dict[MessageQueue, list[Mark]]]:
        return self.life, dict(self.offsets), dict(self.marks)

    def _read(self) -> dict[MessageQueue, int]:
        try:
            content = parse_json(read_bytes(self.path))
            store, life = content.get("store", ""), content.get("life", "0")
            if not isinstance(store, str) or not _LIFE.fullmatch(life):
                raise ValueError("no broker's store or life")
            self._store, self.life = store, int(life, 16)
            marks = _by_queue(content.get("marks", {}))
            self.marks = {queue: [_mark(row) for row in rows] for queue, rows in marks.items()}
            offsets = _by_queue(content["offsets"])
            return {queue: offset_of(offset) for queue, offset in offsets.items()}
        except FileNotFoundError as error:
            require_ours(error)
            return {}
        except _NO_OFFSETS as error:
            raise self.damaged(f"is no offset file ({error or type(error).__name__})") from error

    def damaged(self, what: str) -> Corrupt:
        """The error for a file that says what no consumer writes."""
        return Corrupt(
            f"{self.path} {what}: put it back from a back-up, or remove it: the consumer begins"
            " anew then, by consume_from",
            path=str(self.path),
        )

    def require_store(self, store: str) -> None:
        """Raise Incompatible if the offsets are of a store with another id than this one."""
        if self.offsets and self._store not in ("", store):
            raise Incompatible(
                f"{self.path} has offsets in store {self._store}, and this is store {store}: it was"
                " made anew, or put back from a back-up. Remove the file to begin anew",
                path=str(self.path),
            )
        self._store = store

    def save(self) -> None:
        """Replace the file if anything has changed."""
        if self._content() == self._saved:
            return
        fresh = self.path.with_suffix(".tmp")
        content = {
            "store": self._store, "life": f"{self.life:x}", "offsets": _by_topic(self.offsets),
            "marks": _by_topic(self.marks),
        }  # fmt: skip
        text = json.dumps(content, indent=1).encode()
        replace_whole(self.path, text, temporary=fresh, sync=True)
        self._saved = self._content()

    def save_if_room(self) -> None:
        """`save`; on a full disk that is told once, and the next call tries again.

        Raises any other OSError.
        """
        try:
            self.save()
        except OSError as error:
            require_ours(error)
            if not is_disk_full(error):
                raise
            if not self._lacks_room:
                log.warning(
                    "%s: no room for this consumer's offsets (%s): it goes on, and saves them once"
                    " there is room; what it has done since comes again if it ends before",
                    self.path, error,
                )  # fmt: skip
            self._lacks_room = True
        else:
            if self._lacks_room:
                log.info("%s: there is room again, the offsets are saved", self.path)
            self._lacks_room = False

    def close(self) -> None:
        """Let others have it. Safe to call twice."""
        if self._lacks_room:
            self._lacks_room = False
            log.error(
                "%s: the last offsets are not stored, for there was no room until the end: what"
                " was done since comes again",
                self.path,
            )
        self._lock = None


def _by_topic(table: Mapping[MessageQueue, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for queue, value in sorted(table.items()):
        found.setdefault(queue.topic, {})[str(queue.queue_id)] = value
    return found


def _by_queue(table: Mapping[str, Mapping[str, Any]]) -> dict[MessageQueue, Any]:
    """Raises ValueError, TypeError, AttributeError for what `save` does not write."""
    return {
        MessageQueue(_topic(topic), id_of(queue)): value
        for topic, queues in table.items()
        for queue, value in queues.items()
    }


def _mark(row: Any) -> Mark:  # noqa: ANN401 - JSON
    """Raises ValueError, TypeError for what `save` does not write."""
    offset, position, stored_ms = row
    return Mark(offset_of(offset), offset_of(position), offset_of(stored_ms))


@contextmanager
def _permitted() -> Iterator[None]:
    """What this user may not do with the file, or its folder, is one of GantryMQ's errors."""
    try:
        yield
    except PermissionError as error:
        require_ours(error)
        raise NotPermitted(
            f"{error}: this broadcasting consumer keeps its offsets there, in files of its own user"
            " (XDG_STATE_HOME says below which folder)",
            path=error.filename,
        ) from error


def _topic(name: str) -> str:
    """Raises ValueError for what `save` does not write."""
    if not 0 < len(name.encode()) <= RETRY_TOPIC_BYTES_MAX:
        raise ValueError(f"{name[:_SHOWN]!r} is no topic")
    return name


class BroadcastMember(PushMember):
    """Has all queues, as if under leases that nobody else wants; `groups` is not asked."""

    def __init__(
        self,
        session: Session,
        group: str,
        names: dict[int, str],
        handoff: Handoff,
        offsets: OffsetFile,
    ) -> None:
        super().__init__(session, group, names, {}, Terms(), handoff)
        self._file = offsets
        self._save_ns = now_ns() + SAVE_NS
        self._topics_seen = (-1, -1, -1)
        self._files: LogFiles | None = None  # once a message is looked at

    def join(
        self, consume_from: ConsumeFrom, starts: dict[int, int], chosen: list[int] | None = None
    ) -> None:
        """Take all queues of the topics that it has not yet, from where the file has them.

        Raises Incompatible, Corrupt.
        """
        self._file.require_store(self.session.store_id)
        self._compare()
        board = self.session.board
        self._topics_seen = board.topic_changes  # before: what changes meanwhile is looked at again
        # One that was made again may have more queues: who was there before gets all of those.
        known = {queue.topic for queue in self._file.offsets}
        for slot in sorted(self.names):
            topic = board.topic(slot)
            assert topic is not None, "the supervisor has named it"
            numbers = range(topic.queue_base, topic.queue_base + topic.queue_count)
            for number in [number for number in numbers if number not in self.assigned]:
                words = board.queue(number)
                queue = MessageQueue(topic.name, words["queue_id"])
                low, high = words["min_offset"], words["max_offset"]
                begin = {ConsumeFrom.FIRST_OFFSET: low, ConsumeFrom.LAST_OFFSET: high}
                end = max(words["next_offset"], high)
                offset = self._file.offsets.get(queue)
                if offset is None and topic.name in known:
                    offset = low
                elif offset is None:
                    offset = begin.get(consume_from, starts.get(number, high))
                elif offset > end:
                    raise self._file.damaged(
                        f"has offset {offset} in {queue.topic}/{queue.queue_id}, which ends at"
                        f" {end}"
                    )
                offset = self._file.offsets[queue] = min(max(offset, low), end)
                self.assigned[number] = assigned = Assigned(number, queue, 0, offset)
                self._open_window(assigned)
        self.changed = True

    def _compare(self) -> None:
        """Once in each life of the broker, let no offset lie behind what is there of before.

        A power cut may have shortened a queue, or it has begun anew, in this life or in one in
        which this consumer was not there; and others may have sent since: that is not to be passed
        over. Within a life no queue gets shorter, and an offset behind its end is damage. The
        queues of all topics are meant, for this member may ask for others next time.
        """
        file, epoch = self._file, self.session.board.epoch
        if file.life == epoch:
            return
        for queue, offset in file.offsets.items():
            begin = self._last_known(queue, offset)
            if begin < offset:
                log.warning(
                    "%s has offset %d in %s/%d, where the broker has other messages than before, or"
                    " none: this consumer goes on at %d. After a power cut, or where the topic was"
                    " made again, that is as it should be; otherwise the file is damaged, and older"
                    " messages may have been passed over",
                    file.path, offset, queue.topic, queue.queue_id, begin,
                )  # fmt: skip
                file.offsets[queue] = begin
                marks = file.marks.pop(queue, [])
                file.marks[queue] = [mark for mark in marks if mark.offset <= begin]
        file.life = epoch

    def _last_known(self, queue: MessageQueue, offset: int) -> int:
        """The offset up to which a queue has what it had; of a file without marks its end."""
        end = self._recovered_end(queue)
        marks = self._file.marks.get(queue)
        if not marks or not end:
            return min(offset, end)
        return next((mark.offset for mark in marks if self._is_there(queue, mark, end)), 0)

    def _is_there(self, queue: MessageQueue, mark: Mark, end: int) -> bool:
        """Whether a queue has the message of a mark, as far as retention lets that be told."""
        if mark.offset > end:
            return False
        found = self._mark_of(queue, mark.offset)
        return found is None or found == mark

    def _mark_of(self, queue: MessageQueue, offset: int) -> Mark | None:
        """What is known of the message before an offset; None if it is gone, or damaged."""
        if self._files is None:
            self._files = LogFiles(self.session.store, self.session.board)
        try:
            position = self._files.position(queue, offset - 1) if offset else -1
            stored_ms = self._files.store_ms(queue, offset - 1) if position >= 0 else 0
        except Corrupt as error:
            require_ours(error)
            return None
        return Mark(offset, position, stored_ms) if stored_ms > 0 else None

    def _recovered_end(self, queue: MessageQueue) -> int:
        """Where the broker's start has found a queue to end; 0 for one that is not there."""
        board = self.session.board
        topic = board.topic_named(queue.topic)
        if topic is None or queue.queue_id >= topic.queue_count:
            return 0
        return int(board.queue(topic.queue_base + queue.queue_id)["recovered_end"])

    def _note(self) -> None:
        durable = self.session.board.word(layout.BOARD_DURABLE)
        with self._handoff.lock:
            for window in self.windows.values():
                self._file.offsets[window.queue] = window.committed
        for queue in [window.queue for window in self.windows.values()]:
            self._mark(queue, durable)

    def _mark(self, queue: MessageQueue, durable: int) -> None:
        """Note which message is before a queue's offset, and one before it that no cut takes."""
        offset, before = self._file.offsets[queue], self._file.marks.get(queue, [])
        if before and before[0].offset == offset:
            return
        newest = self._mark_of(queue, offset)
        if newest is None:
            self._file.marks.pop(queue, None)
            return
        marks = [newest, *before]
        lasting = next((mark for mark in marks if mark.position < durable), marks[-1])
        self._file.marks[queue] = list(dict.fromkeys([newest, lasting]))

    def report_untabled(self) -> None:
        """Take queues that topics have gained; save now and then."""
        if self.session.board.topic_changes != self._topics_seen:
            self.join(ConsumeFrom.FIRST_OFFSET, {})
        if now_ns() >= self._save_ns:
            self.commit()
            self._save_ns = now_ns() + SAVE_NS

    def commit(self) -> None:
        """Save, if there is room."""
        self._note()
        self._file.save_if_room()

    def report_last(self) -> None:
        """Save."""
        self.commit()

    def leave(self) -> None:
        """Nobody has to know."""

    def resumable(self) -> dict[MessageQueue, Resumed]:
        """All is in the file's table."""
        self._note()
        return {}

    def _hear(self, notice: groupwire.AnyNotice) -> None:
        """`groups` does not know this member."""
