"""Failed messages on their way back into the log, each as one copy.

The order makes it once, whoever dies: the ledger notes SENDING with the log's end, then the copy is
put, then the ledger notes DONE, then the session hears of it. What is noted as SENDING and not as
DONE is looked for in the log, by its origin (the message's position, group and attempt), before
anything else is put and before its queue is granted to anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from shm import groupwire, layout
from shm.board import Board
from shm.clock import Clock
from shm.codes import Level, Status
from shm.errors import Corrupt, MessageIllegal
from shm.groupwire import DEAD_LETTER
from shm.kernels.words import store_word
from shm.properties import parse_delay_levels
from shm.record import Record
from workers.delaysettings import DelaySettings
from workers.ledger import Ledger, QueueKey
from workers.membership import Membership
from workers.outlet import Copy, Outcome, Outlet
from workers.progress import COUNT_MAX
from workers.records import LiveReader
from workers.reports import LEASE_OVER
from workers.retrycopy import DEAD_PREFIX, RETRY_PREFIX, Failure, Parking, TooLong, copy_of
from workers.session import SessionTable
from workers.unstorable import Unstorable

#: Copies on their way at one time, and their bytes: beyond, requests wait in their rings.
COPIES_MAX: Final = 4096
COPIES_BYTES_MAX: Final = 32 << 20
#: A copy that found no room on the disk is tried again after.
AGAIN_NS: Final = 100_000_000
#: While the writer is not there yet, it is looked for again after.
RECONCILE_NS: Final = 2_000_000

Name = tuple[str, QueueKey, int]  # group, queue, offset


@dataclass(slots=True)
class Pending:
    """A copy that is to be put, or was put and has no outcome yet."""

    name: Name
    copy: Copy
    dead: bool
    durable: bool  # whether the session hears of it only when the copy is durable
    asked: list[tuple[int, int, int]]  # session, serial, board queue
    end: int = -1  # of the copy in the log

    @property
    def bytes(self) -> int:
        """What it holds of the memory."""
        return len(self.copy.body) + len(self.copy.properties)


Tell = Callable[[int, groupwire.AnyNotice], None]


class SendBacks:
    """See the module. `outlet` is None where no agent can append (no push consumers then)."""

    def __init__(
        self,
        membership: Membership,
        reader: LiveReader,
        clock: Clock,
        settings: DelaySettings,
        tell: Tell,
        sessions: SessionTable,
    ) -> None:
        self.outlet: Outlet | None = None
        self.sent = self.dead = 0
        self._membership = membership
        self._ledger: Ledger = membership.ledger
        self._board: Board = membership.board
        self._reader = reader
        self._clock = clock
        self._settings = settings
        self._levels = len(parse_delay_levels(settings.message_delay_level))
        self._tell = tell
        self._unstorable = Unstorable(membership.board, sessions)
        self._pending: dict[Name, Pending] = {}
        self._waiting: list[Pending] = []  # to be put, in order
        self._undurable: list[Pending] = []
        self._bytes = 0
        self._again_ns = 0
        self.last_end = 0  # of all copies that the ledger counts

    # ------------------------------------------------------------------------------------- requests

    @property
    def is_full(self) -> bool:
        """Whether no more requests should be taken now."""
        return len(self._pending) >= COPIES_MAX or self._bytes >= COPIES_BYTES_MAX

    def ask(self, session: int, request: groupwire.SendBack) -> None:
        """Take a request; it is answered when its copy is in the log, or refused."""
        held = self._membership.held(session, request.queue, request.lease)
        if held is None:
            self._tell(session, groupwire.Committed(0, {request.queue: request.lease}))
            self._refuse(session, request, "Evicted", LEASE_OVER)
            return
        group, key, progress = held
        name = (group, key, request.offset)
        if name in self._pending:
            self._pending[name].asked.append((session, request.serial, request.queue))
            return
        if request.offset >= progress.started:
            text = f"offset {request.offset} of {key[0]}/{key[1]} was not handed out"
            self._refuse(session, request, "MessageIllegal", text)
            return
        try:
            self._plan(session, request, name)
        except (MessageIllegal, Corrupt) as error:
            self._unstorable.refused(name, str(error))
            self._refuse(session, request, type(error).__name__, str(error))

    def _plan(self, session: int, request: groupwire.SendBack, name: Name) -> None:
        group, key, offset = name
        progress = self._ledger.group(group).queue(key)
        record = self._reader.record_of(*key, offset)
        if record is None:  # retention was quicker than its consumers
            self._ledger.finish(group, key, (offset, offset + 1))
            self._tell(session, groupwire.SentBack(request.serial, request.queue, offset, False))
            return
        attempt = record.reconsume_times + progress.attempts_of(offset) + 1
        if 0 < request.max_attempts < attempt:  # used up before: this was no delivery more
            attempt = max(record.reconsume_times, request.max_attempts)
        attempt = min(attempt, COUNT_MAX)
        if offset in progress.sending:
            attempt = progress.sending[offset][0]
        failure = Failure(group, attempt, request.delay, request.max_attempts, request.why)
        if progress.is_done(offset):
            answer = groupwire.SentBack(request.serial, request.queue, offset, failure.is_dead)
            self._tell(session, answer)
            return
        try:
            copy = self._copy(record, failure)
        except TooLong as error:  # of no use to wait for: it may die now, but not be lost
            failure = replace(failure, delay=DEAD_LETTER, why=f"{error}; {failure.why}")
            copy = self._copy(record, failure)
            self._unstorable.dead_early(name, str(error))
        slot = self._membership.topics.slots.get(key[0], -1)
        level = self._membership.topics.by_slot[slot].level if slot >= 0 else Level.WRITTEN
        asked = [(session, request.serial, request.queue)]
        pending = Pending(name, copy, failure.is_dead, level == Level.DURABLE, asked)
        if offset not in progress.sending:
            appended = self._board.word(layout.BOARD_APPENDED)
            self._ledger.sending(group, key, offset, attempt, appended)
        self._pending[name] = pending
        self._bytes += pending.bytes
        self._waiting.append(pending)

    def _copy(self, record: Record, failure: Failure) -> Copy:
        """Raises MessageIllegal."""
        topics = self._membership.topics
        retry = topics.by_slot.get(topics.slots.get(f"{RETRY_PREFIX}{failure.group}", -1))
        queues = retry.queue_count if retry else 0
        if not failure.is_dead and not queues:
            raise MessageIllegal(f"group {failure.group} has no retry topic")
        precision_ms = self._settings.timer_precision_ms
        now_ms = self._clock.wall_ms()
        parking = Parking(self._levels, queues, precision_ms, now_ms)
        topic, queue_id, properties = copy_of(record, failure, parking)
        slot = topics.slots.get(topic)
        if slot is None:
            raise MessageIllegal(f"the broker has no topic {topic}")
        return Copy(
            topic=slot,
            queue_id=queue_id,
            body=record.body,
            properties=properties,
            origin=record.physical_offset,
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_ms=record.born_timestamp,
            born_host=record.born_host,
            store_host=record.store_host,
            reconsume_times=failure.attempt,
        )

    def _refuse(self, session: int, request: groupwire.SendBack, error: str, text: str) -> None:
        self._tell(session, groupwire.Refused(request.serial, error, text))

    # ------------------------------------------------------------------------- the outlet's answers

    def collect(self, now_ns: int) -> int:
        """Learn what became of copies; before anything of the ledger is told."""
        if self.outlet is None:
            return 0
        if self.outlet.is_lost() and not self._reconcile():
            return 0
        outcomes = self.outlet.poll()
        for outcome in outcomes:
            self._settle(outcome, now_ns)
        return len(outcomes) + self._tell_durable()

    def _settle(self, outcome: Outcome, now_ns: int) -> None:
        pending = outcome.tag
        assert isinstance(pending, Pending), "the tag that was given"
        if outcome.status == Status.OK:
            pending.end = outcome.end
            self._stored(pending)
        elif outcome.status == Status.DISK_FULL:
            self._again_ns = now_ns + AGAIN_NS
            self._waiting.append(pending)
        else:
            text = f"the writer refused the copy: {Status(outcome.status).name}"
            self._unstorable.refused(pending.name, text)
            self._drop(pending)
            self._unsend(pending.name)
            for session, serial, _queue in pending.asked:
                self._tell(session, groupwire.Refused(serial, "MessageIllegal", text))

    def _stored(self, pending: Pending) -> None:
        self.last_end = max(self.last_end, pending.end)
        durable = self._board.word(layout.BOARD_DURABLE)
        if pending.durable and durable < pending.end:
            self._undurable.append(pending)
            self.want_durable(pending.end)
        else:
            self._finish(pending)

    def want_durable(self, end: int) -> None:
        """Ask the flusher to be quick, and to ring when the log is durable up to `end`."""
        if self.outlet is not None:
            store_word(self.outlet.session.arena, layout.ARENA_DURABLE_WANTED, end)

    def are_durable(self) -> bool:
        """Whether all copies that the ledger counts would outlive a power cut: it may be synced."""
        if self._board.word(layout.BOARD_DURABLE) >= self.last_end:
            return True
        self.want_durable(self.last_end)
        return False

    def _tell_durable(self) -> int:
        durable = self._board.word(layout.BOARD_DURABLE)
        ready = [pending for pending in self._undurable if pending.end <= durable]
        if ready:
            self._undurable = [item for item in self._undurable if item.end > durable]
        for pending in ready:
            self._finish(pending)
        return len(ready)

    def _finish(self, pending: Pending) -> None:
        group, key, offset = pending.name
        self._drop(pending)
        self._ledger.finish(group, key, (offset, offset + 1))
        self._membership.mark(group)
        self.sent += 1
        self.dead += pending.dead
        for session, serial, queue in pending.asked:
            self._tell(session, groupwire.SentBack(serial, queue, offset, pending.dead))

    def _drop(self, pending: Pending) -> None:
        if self._pending.pop(pending.name, None) is not None:
            self._bytes -= pending.bytes

    def _unsend(self, name: Name) -> None:
        group, key, offset = name
        if offset in self._ledger.group(group).queue(key).sending:
            self._ledger.sending(group, key, offset, 0, -1)
            self._membership.mark(group)

    # -------------------------------------------------------------------------------------- putting

    def put(self, now_ns: int) -> int:
        """Put what the ledger's file has as SENDING; only after its write."""
        if self.outlet is None or not self._waiting or not self.outlet.trusted:
            return 0
        if now_ns < self._again_ns:
            return 0
        count = 0
        for pending in self._waiting:
            if not self.outlet.put(pending.copy, pending):
                break
            count += 1
        del self._waiting[:count]
        return count

    # ----------------------------------------------------------------------- after somebody's death

    @property
    def is_reconciled(self) -> bool:
        """Whether `sending` of the ledger is what is on its way, and nothing else."""
        return self.outlet is None or self.outlet.trusted

    def _reconcile(self) -> bool:
        """Find out which copies exist; False while the writer may still store some."""
        assert self.outlet is not None, "asked by its owner"
        if not self.outlet.reconcile():
            return False
        wanted = dict(self._unanswered())
        if wanted:
            start = min(position for _name, position in wanted.values())
            for record in self._reader.derived(start):
                found = wanted.pop((-1 - record.prepared_transaction_offset, *_whose(record)), None)
                if found:
                    self._found(found[0], record)
        self._waiting = [pending for pending in self._pending.values() if pending.end < 0]
        for name, _position in wanted.values():
            if name not in self._pending:
                self._unsend(name)
        return True

    def _unanswered(self) -> Iterable[tuple[tuple[int, str, int], tuple[Name, int]]]:
        """(origin, group, attempt) -> what it is, and where the log ended before it was put."""
        for group, progress in self._ledger.groups.items():
            for key, queue in progress.queues.items():
                for offset, (attempt, position) in list(queue.sending.items()):
                    name = (group, key, offset)
                    pending = self._pending.get(name)
                    if pending is not None:
                        if pending.end >= 0:
                            continue  # it is there, and waits until it is durable
                        origin = pending.copy.origin
                    else:
                        record = self._reader.record_of(*key, offset)
                        if record is None:
                            self._unsend(name)
                            continue
                        origin = record.physical_offset
                    yield (origin, group, attempt), (name, position)

    def _found(self, name: Name, record: Record) -> None:
        pending = self._pending.get(name)
        if pending is not None:
            pending.end = record.physical_offset + record.total_size
            self._stored(pending)
            return
        group, key, offset = name
        self._ledger.finish(group, key, (offset, offset + 1))
        self._membership.mark(group)

    # ------------------------------------------------------------------------------------- sleeping

    def arm(self, now_ns: int) -> int:
        """How long the owner may sleep, 0 if there is something to do already."""
        if self.outlet is None:
            return _LONG_NS
        if self.outlet.is_lost():
            return RECONCILE_NS if self._pending or self._has_sending() else _LONG_NS
        if not self.outlet.arm():
            return 0
        if self._waiting and self._again_ns > now_ns:
            return self._again_ns - now_ns
        return _LONG_NS

    def _has_sending(self) -> bool:
        groups = self._ledger.groups.values()
        return any(queue.sending for group in groups for queue in group.queues.values())

    def disarm(self) -> None:
        """Awake again."""
        if self.outlet is not None:
            self.outlet.disarm()

    def close(self) -> None:
        """Give descriptors back."""
        self._reader.close()


_LONG_NS: Final = 1 << 62


def _whose(record: Record) -> tuple[str, int]:
    """Group and attempt of a copy; a record of another kind has no group."""
    topic = record.topic
    if not topic.startswith((RETRY_PREFIX, DEAD_PREFIX)):
        topic = record.property_map().get("REAL_TOPIC", "")
    for prefix in (RETRY_PREFIX, DEAD_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix), record.reconsume_times
    return "", record.reconsume_times
