"""`gantry/ledger`: the truth about groups, append only, in the hands of `groups` alone.

Changes go to memory and to a buffer at once; `flush` puts the buffer into the file, and only then
may a session hear of them. An entry with a bad CRC is a torn tail, and cut, unless entries behind
it say that it was durable: then it is damage, and refused. When the file has grown large it is
replaced by one that says the same in fewer entries, which is made beside it a step at a time
(`ledgersuccessor`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from copy import deepcopy
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from gantrymq.shm import layout
from gantrymq.shm.groupwire import Done, merged
from gantrymq.shm.storage import File, Storage, is_disk_full, read_file, replace_file
from gantrymq.workers.groups.ledgerentries import (
    NAME,
    Entries,
    Kind,
    Names,
    durable_by,
    judge_tail,
    pack_entry,
    read_entries,
)
from gantrymq.workers.groups.ledgersuccessor import Successor, remove_unfinished
from gantrymq.workers.groups.progress import GroupProgress, Lease, Progress, QueueKey

#: A ledger that is smaller is not compacted.
compact_bytes = 4 * 1024 * 1024
#: A compacted ledger must have grown to this multiple before it is compacted again.
COMPACT_GROWTH: Final = 4
#: consumerOffset.json may be one of the last few that were written: a crash leaves file or .bak.
EXPORTS_KEPT: Final = 4


class Copied(NamedTuple):
    """What an entry at a byte of the file says: a message's copy is in the log."""

    at: int
    group: str
    key: QueueKey
    offset: int
    attempt: int
    position: int  # where the log ended before it was put


class Ledger:
    """The ledger of one store, open for appending."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.groups: dict[str, GroupProgress] = {}
        self._held: dict[int, dict[tuple[str, QueueKey], None]] = {}  # by session, what it holds
        self.exports: deque[int] = deque(maxlen=EXPORTS_KEPT)
        self.last_lease = 0
        self.unsynced = False
        #: Whether nobody may hear of the last changes before they outlive a power cut.
        self.must_sync = False
        #: Whether all copies that it counts would outlive a power cut: who syncs it asks that.
        self.may_sync: Callable[[], bool] = lambda: True
        #: Where the log ends by now, for who knows it.
        self.log_end: Callable[[], int] = lambda: 0
        self.compact_bytes = compact_bytes
        self._entries = Entries()
        self._successor: Successor | None = None  # while a shorter file is made
        # Offsets that have moved forward since the last entry of another kind: the newest counts.
        self._moved: dict[tuple[Kind, str, QueueKey], dict[str, int]] = {}
        self._end = 0
        self.epoch = 0  # the last life of the broker that it knows
        self._compacted_bytes = 0
        #: Where the log ended at the start of the last life of which this is said; 0: not known.
        self.log_known = 0
        #: Copies of failed messages that lie below are known here: noted in what is durable.
        self.copies_from = 0
        #: Of what may not outlive a power cut yet: what says that a copy is in the log.
        self.copied: list[Copied] = []
        self._synced = 0  # bytes of the file that outlive a power cut; the file says it of fewer
        self._said_synced = 0
        self._file: File | None = None
        self._has_new_name = False  # a power cut may put the file before it in its place

    # ---------------------------------------------------------------------------------- changes

    def group(self, name: str) -> GroupProgress:
        """What is known of a group."""
        return self.groups.setdefault(name, GroupProgress())

    def leases_of(self, session: int, most: int | None = None) -> list[tuple[str, QueueKey, Lease]]:
        """Group, queue and lease of everything that a session holds, or of the first so many."""
        found = []
        for group, key in islice(self._held.get(session, ()), most):
            lease = self.groups[group].queues[key].lease
            assert lease is not None, "leases are noted as they come and go"
            found.append((group, key, lease))
        return found

    def holders(self) -> set[int]:
        """Sessions that hold a lease."""
        return set(self._held)

    def subscribe(self, group: str, topic: str, queues: int) -> None:
        """Note that a group has fixed its start in a topic that had so many queues.

        Lost, it would be fixed anew, behind what has come meanwhile: `must_sync` from now on.
        """
        self.must_sync = True
        self._change(Kind.SUBSCRIBED, group, (topic, queues))

    def commit(self, group: str, key: QueueKey, offset: int, session: int = 0) -> None:
        """Store the next offset to consume; backward, copies of what follows count no more."""
        goes_back = offset < self.group(group).queue(key).committed
        end = self.log_end() if goes_back else 0
        self._change(Kind.COMMIT, group, key, offset=offset, session=session, value=end)

    def start(self, group: str, key: QueueKey, next_offset: int, session: int) -> None:
        """Note that messages below `next_offset` have been handed out."""
        self._change(Kind.START, group, key, offset=next_offset, session=session)

    def grant(self, group: str, key: QueueKey, session: int, digest: int = 0) -> int:
        """Give a queue to a session with such a subscription; returns the lease's number."""
        number = self.last_lease + 1
        self._change(Kind.GRANT, group, key, value=number, session=session, offset=digest)
        return number

    def finish(self, group: str, key: QueueKey, done: Done) -> None:
        """Note that messages are done with, whatever becomes of those before them."""
        self._change(Kind.DONE, group, key, offset=done[0], value=done[1])

    def sending(self, group: str, key: QueueKey, offset: int, attempt: int, position: int) -> None:
        """Note that a message's copy is about to be put; `position` < 0: it was not."""
        self._change(Kind.SENDING, group, key, offset=offset, attempt=attempt, value=position)

    def finish_all(self, group: str, key: QueueKey, done: Sequence[Done]) -> None:
        """`finish` for many ranges."""
        ranges = merged(done)
        self._consuming(group, key).finish_all(ranges)
        columns = {"offset": [first for first, _ in ranges], "value": [end for _, end in ranges]}
        self._append_change(Kind.DONE, group, key, {}, columns)

    def sending_all(
        self, group: str, key: QueueKey, attempts: Mapping[int, int], position: int
    ) -> None:
        """`sending` for many messages: offset -> attempt."""
        queue = self._consuming(group, key)
        for offset, attempt in attempts.items():
            queue.send(offset, attempt, position)
        columns = {"offset": list(attempts), "attempt": list(attempts.values())}
        self._append_change(Kind.SENDING, group, key, {"value": position}, columns)

    def fail(self, group: str, key: QueueKey, offset: int, attempts: int) -> None:
        """Note how many deliveries of a message have failed."""
        self._change(Kind.FAILED, group, key, offset=offset, attempt=attempts)

    def reset(self, group: str, key: QueueKey, offset: int, log_end: int = 0) -> None:
        """Begin anew at an offset: nothing is known of what lies behind it.

        Copies below `log_end` in the log are of what was consumed before.
        """
        self._change(Kind.RESET, group, key, offset=offset, value=log_end)

    def end_lease(self, group: str, key: QueueKey, failed: bool) -> None:
        """Take a queue back; `failed` counts what was started as one more attempt."""
        self._change(Kind.END, group, key, value=int(failed))

    def clamp(self, group: str, key: QueueKey, low: int, high: int) -> bool:
        """Bring a queue's offsets into what it holds; True if they were not."""
        queue = self.group(group).queue(key)
        if not deepcopy(queue).clamp(low, high):
            return False
        self._change(Kind.CLAMP, group, key, offset=low, value=high)
        return True

    def forget_topics(self, names: Set[str]) -> set[str]:
        """Drop what groups know of topics that are deleted; a name made again means another topic.

        Returns names that some group keeps: a member holds a queue, or a copy is on its way.
        """
        kept: set[str] = set()
        for name in self.groups:
            kept |= self._forget_topics_of(name, names)
        for entries in self._files():
            entries.drop_topics(names - kept)
        return kept

    def _forget_topics_of(self, name: str, names: Set[str]) -> set[str]:
        """The same of one group."""
        group, kept = self.groups[name], set()
        for topic in group.among(names):
            if group.is_at_work(topic):
                kept.add(topic)
            else:
                self._append_change(Kind.FORGOTTEN, name, (topic, 0), {})
                group.forget(topic)
        return kept

    def delete(self, name: str) -> None:
        """Drop a group that nobody is at work for. It stays dropped: `must_sync` from now on."""
        self._append_moved()
        self._entries.delete(name)
        if self._successor is not None:
            self._successor.delete(name)
        self.must_sync = True
        del self.groups[name]

    def exported(self, checksum: int) -> None:
        """Note what consumerOffset.json is about to say."""
        self.exports.append(checksum)
        self._append(Kind.EXPORTED, value=checksum)

    def limit_positions(self, end: int) -> None:
        """The log ends at `end`: what comes behind it is none of what was there before."""
        self._shorten(end)
        self._append(Kind.SHORTENED, value=end)

    def knows_log_to(self, end: int) -> bool:
        """Whether a life has begun on it when the log was so long; older files do not say it."""
        return end <= (self.log_known or self.copies_from)

    def begin_epoch(self, epoch: int) -> None:
        """Note a life of the broker. In a new one no session of the last is alive."""
        self._apply_epoch(epoch)
        self._append(Kind.EPOCH, value=epoch, offset=self.last_lease)

    def end(self, log_end: int = 0) -> None:
        """Note a clean stop as the last entry: a file that lacks its end shows. Raises OSError."""
        self.sync(log_end)
        self._give_up_successor()  # the next life makes one, if it still should
        self._append(Kind.CLOSED, value=self.epoch, offset=self.copies_from)
        if self.flush_if_room() and self._file:
            self._sync_file()

    def _change(self, kind: Kind, group: str, key: QueueKey, **values: int) -> None:
        progress = self.group(group)
        moves_on = kind is Kind.START or (
            kind is Kind.COMMIT and values["offset"] >= progress.queue(key).committed
        )
        self._apply(kind, group, key, values)
        if moves_on:
            before = self._moved.get((kind, group, key), values)
            self._moved[kind, group, key] = max(before, values, key=itemgetter("offset"))
        else:
            self._append_change(kind, group, key, values)

    def _append_change(
        self, kind: Kind, group: str, key: QueueKey, values: Mapping[str, int],
        columns: Mapping[str, Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        self._append_moved()
        self._entries.add_of(kind, group, key, values, columns)
        if self._successor is not None:
            self._successor.add_of(kind, group, key, values, columns)

    def _append_moved(self) -> None:
        moved, self._moved = self._moved, {}
        for (kind, group, key), values in moved.items():
            self._append_change(kind, group, key, values)

    def _append(self, kind: Kind, **values: int) -> None:
        self._append_moved()
        for entries in self._files():
            entries.add(kind, **values)

    def _files(self) -> list[Entries]:
        """Of the file, and of the one that is to replace it."""
        return [self._entries] + ([self._successor.entries] if self._successor else [])

    # --------------------------------------------------------------------------- what they mean

    def _consuming(self, name: str, key: QueueKey) -> Progress:
        """Progress in a queue of which an entry of `_CONSUMING` tells."""
        group = self.group(name)
        group.consumed = True
        return group.queue(key)

    def _apply(self, kind: Kind, name: str, key: QueueKey, row: dict[str, Any]) -> None:
        group = self.group(name)
        if kind is Kind.SUBSCRIBED:
            group.subscribed[key[0]] = key[1]
            return
        if kind is Kind.FORGOTTEN:
            self._let_go_of(name, key[0])
            group.forget(key[0])
            return
        queue = group.queue(key)
        moves = kind is Kind.COMMIT and row["session"] > 0 and row["offset"] != queue.committed
        group.consumed = group.consumed or moves or kind in _CONSUMING
        if kind is Kind.GRANT and not row["session"]:
            queue.previous, queue.since = row["value"], row["offset"]
            return
        if kind is Kind.GRANT:
            self._let_go(name, key, queue)
            queue.grant(Lease(row["value"], row["session"], row["offset"]))
            self._held.setdefault(row["session"], {})[name, key] = None
            self.last_lease = max(self.last_lease, row["value"])
            return
        if kind is Kind.END:
            self._let_go(name, key, queue)
        _MEANING[kind](queue, row)

    def _let_go(self, name: str, key: QueueKey, queue: Progress) -> None:
        """Nobody is noted as the holder of a queue any more."""
        if queue.lease is None:
            return
        held = self._held[queue.lease.session]
        held.pop((name, key), None)
        if not held:
            del self._held[queue.lease.session]

    def _let_go_of(self, name: str, topic: str | None = None) -> None:
        """The same of all queues that a group has, in a topic or in all of them."""
        for key, queue in self.groups[name].queues.items():
            if topic in (None, key[0]):
                self._let_go(name, key, queue)

    def _drop(self, name: str) -> None:
        """Know nothing of a group any more."""
        if name in self.groups:
            self._let_go_of(name)
            del self.groups[name]

    def _shorten(self, end: int) -> None:
        """No place in the log lies behind its end."""
        for group in self.groups.values():
            for queue in group.queues.values():
                queue.shorten(end)
        self.copies_from = min(self.copies_from, end)
        self.log_known = end

    def _apply_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            for held in self._held.values():
                for group, key in held:
                    self.groups[group].queues[key].end_lease(failed=True)
            self._held = {}
        self.epoch = epoch

    # ------------------------------------------------------------------------------------- file

    def load(self) -> None:
        """Read the file, cut a torn tail, and stay open. Raises Corrupt, Incompatible, OSError.

        Of what it holds some may not outlive a power cut yet: `copied`. What the file does not say
        to be durable is written again with the next `flush`: after a failed sync its pages count as
        clean though they are not on the disk, and another sync would not write them.
        """
        remove_unfinished(self.storage)
        if not self.storage.exists(NAME):
            replace_file(self.storage, NAME, b"")
            self.storage.sync_directory("")  # gantry/ itself may be new
        data = read_file(self.storage, NAME)
        names = Names()
        self._end = self.replay_whole(data, names)
        self._keep_numbers(names)
        self._file = self.storage.open(NAME, write=True)
        self.unsynced = bool(data)
        if self._end < len(data):
            self._file.truncate(self._end)
        self._entries.buffer += data[self._said_synced : self._end]
        self._synced = self._end = self._said_synced

    def _keep_numbers(self, names: Names) -> None:
        """Go on with the numbers that the file has given to what is still known."""
        known = {topic for group in self.groups.values() for topic in group.topics()}
        self._entries = Entries(
            {name: number for number, name in names.groups.items() if name in self.groups},
            {name: number for number, name in names.topics.items() if name in known},
            1 + max([*names.groups, *names.topics], default=-1),
        )

    def replay_whole(self, data: bytes, names: Names) -> int:
        """`replay` for a file that nobody writes. Raises Corrupt, Incompatible."""
        end = self.replay(data, names)
        judge_tail(data, end, self._said_synced)
        return end

    def replay(self, data: bytes, names: Names) -> int:
        """Take over entries up to the first bad one; returns the bytes that they take.

        Raises Incompatible, Corrupt.
        """
        end = 0
        for row, name, entry_end in read_entries(data):
            at, end = end, entry_end
            kind = Kind(row["kind"])
            if kind is Kind.GROUP:
                names.groups[row["group"]] = name
                self.group(name)
            elif kind is Kind.DELETED:
                self._drop(names.group_of(row, at))
            elif kind is Kind.TOPIC:
                names.topics[row["topic"]] = name
            elif kind in _OF_NO_GROUP:
                self._apply_to_all(kind, at, row)
            else:
                key, group = names.key_of(row, at), names.group_of(row, at)
                self._note_copied(at, group, key, row)
                self._apply(kind, group, key, row)
        return end

    def _apply_to_all(self, kind: Kind, at: int, row: Mapping[str, int]) -> None:
        """An entry at a byte that is of no group."""
        if kind is Kind.EPOCH:
            self._apply_epoch(row["value"])
            self.last_lease = max(self.last_lease, row["offset"])
        elif kind is Kind.EXPORTED:
            self.exports.append(row["value"])
        elif kind is Kind.SHORTENED:
            self._shorten(row["value"])
        else:
            self._take_durable(at, row)

    def _take_durable(self, at: int, row: Mapping[str, int]) -> None:
        """An entry at a byte says how much of the file was durable then."""
        self.copies_from = max(self.copies_from, row["offset"])
        durable = durable_by(row, at)
        self._said_synced = max(self._said_synced, durable)
        self.copied = [one for one in self.copied if one.at >= durable]

    def _note_copied(self, at: int, group: str, key: QueueKey, row: Mapping[str, int]) -> None:
        sending = self.group(group).queue(key).sending if row["kind"] == Kind.DONE else {}
        self.copied += [
            Copied(at, group, key, offset, *sending[offset])
            for offset in sending
            if row["offset"] <= offset < row["value"]
        ]

    def flush(self) -> bool:
        """Put all changes into the file; from then on they outlive this process. Raises OSError."""
        self._append_moved()
        buffer = self._entries.buffer
        if not buffer:
            return False
        assert self._file is not None, "load comes first"
        if self._synced > self._said_synced:
            known = {"value": self._synced, "offset": self.copies_from}
            buffer[:0] = pack_entry(Kind.SYNCED, b"", **known)
            self._said_synced = self._synced
        self._file.write_at(bytes(buffer), self._end)
        self._end += len(buffer)
        buffer.clear()
        self.unsynced = True
        return True

    @property
    def waiting_bytes(self) -> int:
        """Changes that are not in the file yet."""
        return len(self._entries.buffer) + len(self._moved) * layout.LEDGER.size

    def flush_if_room(self) -> bool:
        """`flush`; False if the disk is full. All is tried again then, at the same place.

        What such a write leaves behind the end is cut as a torn tail is. Raises OSError.
        """
        try:
            self.flush()
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._give_up_successor()  # what it takes may be the room that is wanted
            return False
        return True

    @property
    def wants_sync(self) -> bool:
        """Whether a `sync` would have something to do."""
        return self.unsynced or (self._successor is not None and self._successor.is_whole)

    def sync(self, log_end: int = 0) -> None:
        """Make it outlive a power cut; see to it that it does not grow for ever. Raises OSError.

        `log_end`: where the log ends by now. A copy that comes later lies behind it.
        """
        self.flush()
        wants_sync = self.wants_sync
        if self.unsynced:
            self._sync_file()
        self.copies_from = max(self.copies_from, log_end)
        if not wants_sync:
            return
        if self._successor is None:
            if self._end > max(self.compact_bytes, COMPACT_GROWTH * self._compacted_bytes):
                self.begin_compaction()
        elif self._successor.is_whole:
            self._compact()

    def _sync_file(self) -> None:
        assert self._file is not None, "load comes first"
        self._file.sync()
        if self._has_new_name:
            self.storage.sync_directory(os.path.dirname(NAME))
            self._has_new_name = False
        self.unsynced = self.must_sync = False
        self._synced = self._end

    # ------------------------------------------------------------------------------- compaction

    def begin_compaction(self) -> None:
        """From now on `step` makes a shorter file that says the same, which a `sync` puts in place.

        This one counts until then. Without room it goes on, and another is made later.
        """
        if self._successor is None:
            self._append_moved()
            self._successor = Successor(self.storage, self.groups)
            self._successor.entries.add(Kind.EPOCH, value=self.epoch, offset=self.last_lease)
            if self.log_known:
                self._successor.entries.add(Kind.SHORTENED, value=self.log_known)
            for checksum in self.exports:
                self._successor.entries.add(Kind.EXPORTED, value=checksum)

    def step(self) -> bool:
        """Write some of a shorter file; False if there is nothing to write. Raises OSError."""
        if self._successor is None or self._successor.is_whole:
            return False
        self._append_moved()  # of what is written next the state is, with what has changed it
        self._if_room(self._successor.step)
        return True

    def _compact(self) -> None:
        """Put the successor, which is whole, into the place of the file, which is durable."""
        successor = self._successor
        assert successor is not None, "begun, and whole"
        # Last of all, since both may have grown meanwhile; no file says how much of it is durable
        # before it is.
        successor.entries.add(Kind.EPOCH, value=self.epoch, offset=self.last_lease)
        successor.entries.add(Kind.SYNCED, offset=self.copies_from)
        if not self._if_room(successor.replace):
            return
        self._close_file()
        # Nobody who fails behind this line, and tries again, may go on with the old one.
        self._file, self._has_new_name = successor.take_file(), True
        self._entries, self._successor = successor.entries, None
        self._end = self._compacted_bytes = successor.end
        self._synced = self._said_synced = 0
        self.unsynced = True
        self._sync_file()

    def _if_room(self, call: Callable[[], None]) -> bool:
        """Call the successor; without room it is given up, and made again when this has grown."""
        assert self._successor is not None, "begun"
        try:
            call()
        except OSError as error:
            if self._successor.has_replaced() or not is_disk_full(error):
                raise
            self._give_up_successor()
            return False
        return True

    def _give_up_successor(self) -> None:
        if self._successor is not None:
            self._successor.close()
            self._successor = None
            remove_unfinished(self.storage)
            self._compacted_bytes = self._end

    def cut(self, at: int) -> None:
        """Leave out all from a byte on, before anything is changed; whoever wants it loads anew."""
        assert self._file is not None, "load comes first"
        self._file.truncate(at)
        self.close()

    def close(self) -> None:
        """Give descriptors back; what was not flushed is lost. Safe to call twice."""
        if self._successor is not None:
            self._successor.close()
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_MEANING: Final[dict[Kind, Callable[[Progress, dict[str, Any]], object]]] = {
    Kind.COMMIT: lambda queue, row: queue.commit(row["offset"], row["value"]),
    Kind.START: lambda queue, row: queue.start(row["offset"]),
    Kind.END: lambda queue, row: queue.end_lease(bool(row["value"])),
    Kind.CLAMP: lambda queue, row: queue.clamp(row["offset"], row["value"]),
    Kind.ATTEMPTS: lambda queue, row: queue.set_attempts(
        [*queue.attempts, (row["offset"], row["value"], row["attempt"])]
    ),
    Kind.DONE: lambda queue, row: queue.finish(row["offset"], row["value"]),
    Kind.SENDING: lambda queue, row: queue.send(row["offset"], row["attempt"], row["value"]),
    Kind.FAILED: lambda queue, row: queue.fail(row["offset"], row["attempt"]),
    Kind.RESET: lambda queue, row: queue.reset(row["offset"], row["value"]),
}


#: Entries that name neither a group nor a topic.
_OF_NO_GROUP: Final = frozenset(
    {Kind.EPOCH, Kind.EXPORTED, Kind.SHORTENED, Kind.CLOSED, Kind.SYNCED}
)
#: What only a member that consumes brings about, or an operator's hand.
_CONSUMING: Final = frozenset({Kind.START, Kind.DONE, Kind.FAILED, Kind.SENDING, Kind.RESET})


def open_ledger(storage: Storage, epoch: int) -> Ledger:
    """Open a store's ledger, of whose log all is durable, for a life of the broker.

    Raises Corrupt, Incompatible, OSError.
    """
    ledger = Ledger(storage)
    ledger.load()
    ledger.begin_epoch(epoch)
    if ledger.flush_if_room():
        ledger.sync()
    return ledger
