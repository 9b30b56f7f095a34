"""The file that is to replace `gantry/ledger`: it says the same in fewer entries.

It is made beside the old one, which alone counts until it is replaced, a step at a time. What is
known of a group in a queue is written once, when its turn has come; what changes in it behind that
is noted in both files. What changes before is not: it is part of what is written then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gantrymq.shm.storage import made_anew
from gantrymq.workers.groups.ledgerentries import NAME, Entries, Kind
from gantrymq.workers.groups.progress import NEXT, UNSET, QueueKey

if TYPE_CHECKING:
    from gantrymq.shm.storage import File, Storage
    from gantrymq.workers.groups.progress import GroupProgress, Progress

UNFINISHED: Final = f"{NAME}.new"
#: What a step writes at most, but for one queue: so many groups, subscriptions and queues, and so
#: many bytes. Some 3 ms.
step_pieces = 512
STEP_BYTES: Final = 32 * 1024
#: What is said of all queues of a topic, whether or not they have been written.
_OF_TOPICS: Final = frozenset({Kind.SUBSCRIBED, Kind.FORGOTTEN})


class Successor:
    """See the module. Made by the ledger, which says what changes and decides when it counts."""

    def __init__(self, storage: Storage, groups: Mapping[str, GroupProgress]) -> None:
        """`groups`: of the ledger, as they change."""
        self.entries = Entries()
        self.end = 0  # bytes in the file
        self._storage = storage
        self._groups = groups
        self._file: File | None = None
        self._was_renamed = False
        # Groups that have no name in the file yet, those known longest first, as `groups` has them.
        self._pending: OrderedDict[str, None] = OrderedDict.fromkeys(groups)
        # The group whose turn it is, and topics it has subscribed to and queues that are not
        # written yet, the next one last.
        self._group: str | None = None
        self._left: dict[str | QueueKey, None] = {}
        self._has_told_consumed = False

    # ---------------------------------------------------------------------------------- changes

    def add_of(
        self, kind: Kind, group: str, key: QueueKey, values: Mapping[str, int],
        columns: Mapping[str, Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        """Note a change that was made, unless what it has changed will be written anyway."""
        if group not in self.entries.groups:
            self._pending[group] = None
            return
        if kind in _OF_TOPICS:
            self._has_told_consumed = False  # it may be forgotten with the queue that told it
        elif group == self._group and key in self._left:
            return
        self.entries.add_of(kind, group, key, values, columns)

    def delete(self, group: str) -> None:
        """Nothing is known of a group any more."""
        self._pending.pop(group, None)
        if group in self.entries.groups:
            self.entries.delete(group)
        if group == self._group:
            self._group, self._left = None, {}

    # ------------------------------------------------------------------------------------ making

    @property
    def is_whole(self) -> bool:
        """Whether it says all that the ledger does, but for what waits to be written."""
        return not self._pending and self._group is None

    def step(self) -> None:
        """Write what is known of some queues more. Raises OSError."""
        for _ in range(step_pieces):
            if self.is_whole or len(self.entries.buffer) >= STEP_BYTES:
                break
            self._add_next()
        self._write()

    def _add_next(self) -> None:
        if self._group is None:
            self._begin_group(self._pending.popitem(last=False)[0])
        elif self._left:
            self._add_piece(self._group, self._left.popitem()[0])
        else:
            self._end_group(self._group)

    def _add_piece(self, group: str, piece: str | QueueKey) -> None:
        known = self._groups[group]
        if isinstance(piece, tuple):
            if piece in known.queues:
                self._add_queue(group, piece, known.queues[piece], told=known.consumed)
        elif piece in known.subscribed:
            key = (piece, known.subscribed[piece])
            self.entries.add_of(Kind.SUBSCRIBED, group, key, {})

    def _begin_group(self, name: str) -> None:
        if name in self._groups:
            known = self._groups[name]
            self.entries.name_group(name)
            self._group, self._has_told_consumed = name, False
            self._left = dict.fromkeys(reversed([*known.subscribed, *known.queues]))

    def _end_group(self, group: str) -> None:
        known = self._groups[group]
        if known.consumed and not self._has_told_consumed and known.queues:
            # It changes nothing else: nobody has started less than nothing.
            key = next(iter(known.queues))
            self.entries.add_of(Kind.START, group, key, {"offset": UNSET})
        self._group = None

    def _add_queue(self, group: str, key: QueueKey, queue: Progress, *, told: bool) -> None:
        """`told`: whether a member of its group has ever consumed anything."""
        add = self.entries.add_of
        if queue.copies_from:
            add(Kind.RESET, group, key, {"offset": queue.committed, "value": queue.copies_from})
        elif queue.committed != UNSET:
            add(Kind.COMMIT, group, key, {"offset": queue.committed, "session": int(told)})
        self._has_told_consumed |= told and queue.committed != UNSET
        if queue.previous or queue.since != NEXT:
            add(Kind.GRANT, group, key, {"value": queue.previous, "offset": queue.since})
        if queue.lease:
            lease = queue.lease
            fields = {"value": lease.number, "session": lease.session, "offset": lease.digest}
            add(Kind.GRANT, group, key, fields)
        if queue.started > queue.committed:
            add(Kind.START, group, key, {"offset": queue.started})
        self._add_rows(Kind.ATTEMPTS, group, key, ("offset", "value", "attempt"), queue.attempts)
        sending = [(offset, *known) for offset, known in queue.sending.items()]
        self._add_rows(Kind.SENDING, group, key, ("offset", "attempt", "value"), sending)
        self._add_rows(Kind.DONE, group, key, ("offset", "value"), queue.done)

    def _add_rows(
        self, kind: Kind, group: str, key: QueueKey, names: Sequence[str],
        rows: Sequence[Sequence[int]],
    ) -> None:  # fmt: skip
        if rows:
            columns = dict(zip(names, zip(*rows, strict=True), strict=True))
            self.entries.add_of(kind, group, key, {}, columns)

    # ------------------------------------------------------------------------------------- file

    def _write(self) -> None:
        if self._file is None:
            remove_unfinished(self._storage)
            self._file = self._storage.create(UNFINISHED)
        buffer = self.entries.buffer
        self._file.write_at(bytes(buffer), self.end)
        self._file.start_sync(self.end, len(buffer))
        self.end += len(buffer)
        buffer.clear()

    def replace(self) -> None:
        """Take the place of the old file; a power cut may undo that. Raises OSError.

        May be tried again where it lacked a descriptor: none is asked for behind the first change.
        """
        self._write()
        assert self._file is not None, "written"
        with made_anew():
            self._file.sync()
        self._was_renamed = True
        self._storage.rename(UNFINISHED, NAME)

    def has_replaced(self) -> bool:
        """Whether it is in the place of the old one, also if `replace` has failed."""
        return self._was_renamed and not self._storage.exists(UNFINISHED)

    def take_file(self) -> File:
        """The file, once it has replaced the old one, for whoever goes on with it."""
        assert self._file is not None, "written"
        self._file.name = NAME
        return self._file

    def close(self) -> None:
        """Give the descriptor back. Safe to call twice."""
        if self._file is not None:
            self._file.close()


def remove_unfinished(storage: Storage) -> None:
    """Nobody goes on with what another process, or another try, has left."""
    if storage.exists(UNFINISHED):
        storage.unlink(UNFINISHED)
