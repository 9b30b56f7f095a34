"""Broadcasting: every member reads all queues, and keeps its offsets itself (CQ-35)."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Final

from gantrymq.clients.assigned import Assigned
from gantrymq.clients.filelock import try_lock
from gantrymq.clients.home import find_home, state_folder
from gantrymq.clients.member import Terms
from gantrymq.clients.message import MessageQueue, is_name
from gantrymq.clients.push.handoff import Handoff
from gantrymq.clients.push.member import PushMember, Resumed
from gantrymq.clients.session import Session, now_ns
from gantrymq.shm import groupwire
from gantrymq.shm.errors import Corrupt, GroupIllegal, Incompatible
from gantrymq.shm.groupwire import ConsumeFrom
from gantrymq.shm.ownfiles import open_file, replace_whole

SAVE_NS: Final = 5_000_000_000


class OffsetFile:
    """Offsets of one broadcasting consumer: `<state>/gantrymq/broadcast/<group>/...json`.

    The folder is the user's state folder by the XDG rules, whatever the broker's home is; the name
    has the instance and a hash of that home. Only one consumer may have it open.
    """

    def __init__(self, home: str | os.PathLike[str] | None, group: str, instance: str) -> None:
        """Lock and read it. Raises GroupIllegal if another consumer has it, Corrupt."""
        if not is_name(instance):
            raise GroupIllegal(f"instance {instance!r}: letters, digits and _-%| only")
        mark = hashlib.blake2b(os.fsencode(find_home(home)), digest_size=6).hexdigest()
        folder = state_folder() / "gantrymq" / "broadcast" / group
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path: Path = folder / f"{instance}-{mark}.json"
        lock = try_lock(self.path.with_suffix(".lock"))
        if lock is None:
            raise GroupIllegal(
                f"another broadcasting consumer of group {group} uses {self.path}: give each one"
                " an instance= of its own",
                group=group,
            )
        self._lock = lock
        self._store = ""
        self.life = 0  # of the broker, in which the offsets were last compared with its queues
        try:
            self.offsets = self._read()
        except BaseException:
            self.close()
            raise
        self._saved = (self.life, dict(self.offsets))

    def _text(self) -> bytes:
        with os.fdopen(open_file(self.path, os.O_RDONLY), "rb") as file:
            return file.read()

    def _read(self) -> dict[MessageQueue, int]:
        try:
            content = json.loads(self._text())
            self._store = str(content.get("store", ""))
            self.life = int(content.get("life", "0"), 16)
            return {
                MessageQueue(topic, int(queue)): int(offset)
                for topic, queues in content["offsets"].items()
                for queue, offset in queues.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(
                f"{self.path} is no offset file: mend it, or remove it to begin anew",
                path=str(self.path),
            ) from error

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

    def close(self) -> None:
        """Let others have it. Safe to call twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


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

    def join(
        self, consume_from: ConsumeFrom, starts: dict[int, int], chosen: list[int] | None = None
    ) -> None:
        """Take all queues of the topics, from where the file has them.

        A power cut may have shortened a queue. Once in each life of the broker the end counts that
        recovery has left: others may have sent since, and that is not to be passed over.
        """
        self._file.require_store(self.session.store_id)
        board = self.session.board
        is_known = self._file.life == board.epoch
        for slot in sorted(self.names):
            topic = board.topic(slot)
            assert topic is not None, "the supervisor has named it"
            for number in range(topic.queue_base, topic.queue_base + topic.queue_count):
                words = board.queue(number)
                queue = MessageQueue(topic.name, words["queue_id"])
                low, high = words["min_offset"], words["max_offset"]
                begin = {ConsumeFrom.FIRST_OFFSET: low, ConsumeFrom.LAST_OFFSET: high}
                offset = self._file.offsets.get(queue)
                if offset is None:
                    offset = begin.get(consume_from, starts.get(number, high))
                elif not is_known:
                    offset = min(offset, words["recovered_end"])
                end = max(words["next_offset"], high)
                offset = self._file.offsets[queue] = min(max(offset, low), end)
                self.assigned[number] = assigned = Assigned(number, queue, 0, offset)
                self._open_window(assigned)
        self._file.life = board.epoch
        self.changed = True

    def _note(self) -> None:
        with self._handoff.lock:
            for window in self.windows.values():
                self._file.offsets[window.queue] = window.committed

    def report_untabled(self) -> None:
        """Save now and then."""
        if now_ns() >= self._save_ns:
            self.commit()
            self._save_ns = now_ns() + SAVE_NS

    def commit(self) -> None:
        """Save."""
        self._note()
        self._file.save()

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
