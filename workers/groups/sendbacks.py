"""Failed messages on their way back into the log, each as one copy.

The order makes it once, whoever dies: the ledger notes SENDING with the log's end, then the copy is
put, then the ledger notes DONE, then the session hears of it. What is noted as SENDING and not as
DONE is looked for in the log, by its origin (the message's position, group and attempt), before
anything else is put and before its queue is granted to anybody.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gantrymq.shm import groupwire, layout
from gantrymq.shm.board import Board
from gantrymq.shm.codes import Status
from gantrymq.shm.record import Record
from gantrymq.workers.groups.copyplans import COPIES_BYTES_MAX, CopyPlans
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.membership import Membership
from gantrymq.workers.groups.pending import Asked, InFlight, Name, Pending, Where, whose
from gantrymq.workers.groups.progress import Progress, QueueKey
from gantrymq.workers.groups.records import LiveReader
from gantrymq.workers.groups.reports import LEASE_OVER
from gantrymq.workers.groups.retrycopy import CopyMaker
from gantrymq.workers.groups.unstorable import Unstorable
from gantrymq.workers.outlet import Outlet
from gantrymq.workers.session import SessionTable, pass_turn

if TYPE_CHECKING:
    from gantrymq.workers.inhand import InHand

#: Copies on their way at one time: beyond, what is asked waits.
COPIES_MAX: Final = 4096
#: Failed messages that are taken in one cycle.
MESSAGES_PER_CYCLE: Final = 256
#: Of one session before another has its turn; and of one that has ended: the others are failed
#: messages like any that its end leaves.
MESSAGES_PER_TURN: Final = 64
MESSAGES_AT_END: Final = 1024
#: Offsets that one notice names: a request may name more than an answer has room for.
OFFSETS_MAX: Final = 1024
#: A copy that found no room on the disk is tried again after.
AGAIN_NS: Final = 100_000_000
#: While the writer is not there yet, it is looked for again after.
RECONCILE_NS: Final = 2_000_000

Tell = Callable[[int, groupwire.AnyNotice], None]


class SendBacks:
    """See the module. `outlet` is None where no agent can append (no push consumers then)."""

    def __init__(
        self,
        membership: Membership,
        reader: LiveReader,
        maker: CopyMaker,
        tell: Tell,
        sessions: SessionTable,
        hand: InHand,
    ) -> None:
        self.outlet: Outlet | None = None
        self.sent = self.dead = 0
        self._membership = membership
        self._ledger: Ledger = membership.ledger
        self._board: Board = membership.board
        self._reader = reader
        self._tell = tell
        self._unstorable = Unstorable(membership.board, sessions)
        self._hand = hand
        #: What there was no room for, by session; whose turn it is comes first.
        self._asked: dict[int, deque[Asked]] = {}
        self._flight = InFlight()
        self._plans = CopyPlans(membership, reader, maker, self._flight, self._unstorable)
        self._waiting: list[Pending] = []  # to be put, in order
        self._undurable: list[Pending] = []
        self._left = self._left_of_turn = MESSAGES_PER_CYCLE
        self._again_ns = 0
        #: Whether the last copy that the writer answered for found no room on the disk.
        self.lacks_room = False
        #: Behind all copies that the ledger counts, also those that a `groups` before had put.
        self.last_end = membership.board.word(layout.BOARD_APPENDED)
        self._ledger.may_sync = self.are_durable

    # ------------------------------------------------------------------------------------- requests

    def has_asked(self, session: int) -> bool:
        """Whether something of a session waits for room: no more of it should be heard now."""
        return session in self._asked

    def holds_up(self, queue: Progress) -> bool:
        """Whether a queue waits for copies that find no room, or its holder for their answers."""
        asked = queue.lease is not None and self.has_asked(queue.lease.session)
        return self.lacks_room and (asked or bool(queue.sending))

    @property
    def _has_room(self) -> bool:
        return self._room > 0 and self._flight.bytes < COPIES_BYTES_MAX

    @property
    def _room(self) -> int:
        return min(self._left, self._left_of_turn, COPIES_MAX - self._flight.count)

    def ask(self, session: int, request: groupwire.SendBack) -> None:
        """Hear a request; what it names is answered when the copy is in the log, or refused."""
        self._asked.setdefault(session, deque()).append(Asked(session, request))

    def take(self) -> int:
        """Take some of what was asked, as far as there is room; returns how many messages.

        Not all at once: the writer and the consumers work on these while the next are taken.
        """
        self._left = MESSAGES_PER_CYCLE
        while self._asked and self._left > 0:
            session = next(iter(self._asked))
            alone = len(self._asked) == 1
            self._left_of_turn = self._left if alone else MESSAGES_PER_TURN
            before = self._left
            self._take_turn(session)
            if self._left == before:
                break  # no room for copies
            pass_turn(self._asked, int(session in self._asked))
        return MESSAGES_PER_CYCLE - self._left

    def _take_turn(self, session: int) -> None:
        queue = self._asked[session]
        while queue and self._has_room:
            asked = queue[0]
            self._hand.take(session, asked.request.serial)
            self._take(asked)
            self._hand.drop()
            if asked.taken == len(asked.request.offsets):
                queue.popleft()
        if not queue:
            del self._asked[session]

    def end(self, session: int) -> None:
        """A session has ended: take what it has asked, as far as there is room."""
        if session in self._asked:
            self._left = self._left_of_turn = MESSAGES_AT_END
            self._take_turn(session)

    def forget(self, session: int) -> None:
        """Nobody waits for what is left of a session's."""
        self._asked.pop(session, None)

    def _take(self, asked: Asked) -> None:
        session, request = asked.session, asked.request
        held = self._membership.held(session, request.queue, request.lease)
        if held is None:
            rest = request.offsets[asked.taken :]
            asked.taken = len(request.offsets)
            self._left -= 1
            self._left_of_turn -= 1
            self._tell(session, groupwire.Committed(0, {request.queue: request.lease}))
            self._refuse(session, request.serial, ("Evicted", LEASE_OVER), rest)
            return
        before = asked.taken
        self._waiting += self._plans.plan(asked, held, self._room)
        self._left -= asked.taken - before
        self._left_of_turn -= asked.taken - before
        group, key, _progress = held
        if asked.sending:
            appended = self._board.word(layout.BOARD_APPENDED)
            self._ledger.sending_all(group, key, asked.sending, appended)
            asked.sending = {}
        if asked.done:
            offsets, dead = (list(column) for column in zip(*asked.done, strict=True))
            asked.done.clear()
            self._answer((session, request.serial, request.queue), offsets, dead)
        for error, offsets in asked.refused.items():
            self._refuse(session, request.serial, error, offsets)
        asked.refused.clear()

    def _answer(self, who: tuple[int, int, int], offsets: list[int], dead: list[bool]) -> None:
        """Say what was sent back, in notices that fit into the ring."""
        session, serial, queue = who
        for at in range(0, len(offsets), OFFSETS_MAX):
            end = at + OFFSETS_MAX
            self._tell(session, groupwire.SentBack(serial, queue, offsets[at:end], dead[at:end]))

    def _refuse(self, session: int, serial: int, why: tuple[str, str], offsets: list[int]) -> None:
        """Likewise what was not: error and text are the same for all."""
        for at in range(0, max(1, len(offsets)), OFFSETS_MAX):
            self._tell(session, groupwire.Refused(serial, *why, offsets[at : at + OFFSETS_MAX]))

    # ------------------------------------------------------------------------- the outlet's answers

    def collect(self, now_ns: int) -> int:
        """Learn what became of copies; before anything of the ledger is told."""
        if self.outlet is None:
            return 0
        if self.outlet.is_lost() and not self._reconcile():
            return 0
        outcomes = self.outlet.poll()
        stored: list[Pending] = []
        for outcome in outcomes:
            pending = outcome.tag
            assert isinstance(pending, Pending), "the tag that was given"
            if outcome.status != Status.OK:
                self._not_stored(pending, outcome.status, now_ns)
                continue
            self.lacks_room = False
            pending.end = outcome.end
            if self._is_stored(pending):
                stored.append(pending)
        if stored:
            self._finish(stored)
        return len(outcomes) + self._tell_durable()

    def _not_stored(self, pending: Pending, status: int, now_ns: int) -> None:
        if status == Status.DISK_FULL:
            self._again_ns = now_ns + AGAIN_NS
            self.lacks_room = True
            self._waiting.append(pending)
            return
        self._give_up(pending, f"the writer refused the copy: {Status(status).name}")

    def _give_up(self, pending: Pending, text: str) -> None:
        """No copy can be stored for now, and its message is its consumer's again."""
        self._unstorable.refused(pending.name, text)
        self._flight.drop(pending.where, [pending])
        self._unsend(pending.name)
        for session, serial, _queue in pending.asked:
            refused = groupwire.Refused(serial, "MessageIllegal", text, [pending.offset])
            self._tell(session, refused)

    def _is_stored(self, pending: Pending) -> bool:
        """Whether a copy that lies in the log is as safe as its topic asks for, or will be told."""
        self.last_end = max(self.last_end, pending.end)
        if not pending.durable or self._board.word(layout.BOARD_DURABLE) >= pending.end:
            return True
        self._undurable.append(pending)
        self.want_durable(pending.end)
        return False

    def want_durable(self, end: int) -> None:
        """Ask the flusher to sync now, and to ring when the log is durable up to `end`."""
        if self.outlet is not None:
            self.outlet.want_durable(end, self._board)

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
            self._finish(ready)
        return len(ready)

    def _finish(self, stored: Sequence[Pending]) -> None:
        """Copies are in the log: their messages are done with."""
        queues: dict[Where, list[Pending]] = defaultdict(list)
        answers: dict[tuple[int, int, int], tuple[list[int], list[bool]]] = {}
        for pending in stored:
            queues[pending.where].append(pending)
            self.dead += pending.dead
            for who in pending.asked:
                if who not in answers:
                    answers[who] = [], []
                offsets, dead = answers[who]
                offsets.append(pending.offset)
                dead.append(pending.dead)
        self.sent += len(stored)
        for where, pendings in queues.items():
            self._flight.drop(where, pendings)
            done = [(pending.offset, pending.offset + 1) for pending in pendings]
            self._ledger.finish_all(*where, done)
            self._note_settled(*where)
        for who, (offsets, dead) in answers.items():
            self._answer(who, offsets, dead)

    def _note_settled(self, group: str, key: QueueKey) -> None:
        """A queue that nobody holds may have waited for its copies."""
        if self._ledger.group(group).queue(key).lease is None:
            self._membership.mark(group)

    def _unsend(self, name: Name) -> None:
        group, key, offset = name
        if offset in self._ledger.group(group).queue(key).sending:
            self._ledger.sending(group, key, offset, 0, -1)
            self._note_settled(group, key)

    # -------------------------------------------------------------------------------------- putting

    def put(self, now_ns: int) -> int:
        """Put what the ledger's file has as SENDING; only after its write."""
        if self.outlet is None or not self._waiting or not self.outlet.trusted:
            return 0
        if now_ns < self._again_ns:
            return 0
        for pending in [it for it in self._waiting if not self.outlet.takes(it.entry)]:
            self._waiting.remove(pending)
            self._not_stored(pending, Status.ILLEGAL_SIZE, now_ns)
        gone = self._plans.gone(self._waiting)
        for pending, error in gone:
            self._waiting.remove(pending)
            self._give_up(pending, str(error))
        entries = [pending.entry for pending in self._waiting]
        count = self.outlet.put_entries(entries, self._waiting)
        del self._waiting[:count]
        return count + len(gone)

    # ----------------------------------------------------------------------- after somebody's death

    def _reconcile(self) -> bool:
        """Find out which copies exist; False while the writer may still store some."""
        assert self.outlet is not None, "asked by its owner"
        if not self._board.is_dispatched_anew() or not self.outlet.reconcile():
            return False
        wanted = dict(self._unanswered())
        if wanted:
            start = min(position for _name, position in wanted.values())
            for record in self._reader.derived(start):
                found = wanted.pop((record.origin, *whose(record)), None)
                if found:
                    self._found(found[0], record)
        self._waiting = [pending for pending in self._flight if pending.end < 0]
        for name, _position in wanted.values():
            if self._flight.get(name) is None:
                self._unsend(name)
        return True

    def _unanswered(self) -> Iterable[tuple[tuple[int, str, int], tuple[Name, int]]]:
        """(origin, group, attempt) -> what it is, and where the log ended before it was put."""
        for group, progress in self._ledger.groups.items():
            for key, queue in progress.queues.items():
                for offset, (attempt, position) in list(queue.sending.items()):
                    name = (group, key, offset)
                    pending = self._flight.get(name)
                    if pending is not None:
                        if pending.end >= 0:
                            continue  # it is there, and waits until it is durable
                        origin = pending.origin
                    else:
                        found = self._reader.position_of(*key, offset)
                        if found is None:
                            self._unsend(name)
                            continue
                        origin = found
                    yield (origin, group, attempt), (name, position)

    def _found(self, name: Name, record: Record) -> None:
        pending = self._flight.get(name)
        if pending is None:  # a `groups` before has put it
            pending = self._plans.found(name, record)
            self._flight.add(pending)
        pending.end = record.physical_offset + record.total_size
        if self._is_stored(pending):
            self._finish([pending])

    # ------------------------------------------------------------------------------------- sleeping

    def arm(self, now_ns: int) -> int:
        """How long the owner may sleep, 0 if there is something to do already."""
        if self.outlet is None:
            return _LONG_NS
        if self.outlet.is_lost():
            return RECONCILE_NS if self._flight.count or self._has_sending() else _LONG_NS
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
