"""Broadcasting: every member reads all queues, and keeps its offsets itself (CQ-35)."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantrymq.clients.assigned import Assigned
from gantrymq.clients.filelock import try_lock
from gantrymq.clients.home import find_home, state_folder
from gantrymq.clients.member import Terms
from gantrymq.clients.message import MessageQueue, is_name
from gantrymq.clients.push.handoff import Handoff
from gantrymq.clients.push.member import PushMember, Resumed
from gantrymq.clients.session import Session, now_ns
from gantrymq.shm import groupwire
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
            with _permitted():
                self.offsets = self._read()
        except BaseException:  # whose traceback may hold this object, and the lock with it
            self.close()
            raise
        self._saved = (self.life, dict(self.offsets))

    def _read(self) -> dict[MessageQueue, int]:
        try:
            content = parse_json(read_bytes(self.path))
            store, life = content.get("store", ""), content.get("life", "0")
            if not isinstance(store, str) or not _LIFE.fullmatch(life):
                raise ValueError("no broker's store or life")
            self._store, self.life = store, int(life, 16)
            return {
                MessageQueue(_topic(topic), id_of(queue)): offset_of(offset)
                for topic, queues in content["offsets"].items()
                for queue, offset in queues.items()
            }
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
        if (self.life, self.offsets) == self._saved:
            return
        table: dict[str, dict[str, int]] = {}
        for queue, offset in sorted(self.offsets.items()):
            table.setdefault(queue.topic, {})[str(queue.queue_id)] = offset
        fresh = self.path.with_suffix(".tmp")
        content = {"store": self._store, "life": f"{self.life:x}", "offsets": table}
        text = json.dumps(content, indent=1).encode()
        replace_whole(self.path, text, temporary=fresh, sync=True)
        self._saved = (self.life, dict(self.offsets))

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
        """Once in each life of the broker, let no offset lie behind what its start has found.

        A power cut may have shortened a queue, and others may have sent since: that is not to be
        passed over. Within a life no queue gets shorter, and an offset behind its end is damage.
        The queues of all topics are meant, for this member may ask for others next time.
        """
        file, epoch = self._file, self.session.board.epoch
        if file.life == epoch:
            return
        for queue, offset in file.offsets.items():
            end = self._recovered_end(queue)
            if offset > end:
                log.warning(
                    "%s has offset %d in %s/%d, which the broker's start has found to end at %d:"
                    " this consumer goes on there. After a power cut that is as it should be;"
                    " otherwise the file is damaged, and older messages may have been passed over",
                    file.path, offset, queue.topic, queue.queue_id, end,
                )  # fmt: skip
                file.offsets[queue] = end
        file.life = epoch

    def _recovered_end(self, queue: MessageQueue) -> int:
        """Where the broker's start has found a queue to end; 0 for one that is not there."""
        board = self.session.board
        topic = board.topic_named(queue.topic)
        if topic is None or queue.queue_id >= topic.queue_count:
            return 0
        return int(board.queue(topic.queue_base + queue.queue_id)["recovered_end"])

    def _note(self) -> None:
        with self._handoff.lock:
            for window in self.windows.values():
                self._file.offsets[window.queue] = window.committed

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
