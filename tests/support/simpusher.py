"""A simulated push consumer: begins several messages, finishes them in any order, or fails."""

from __future__ import annotations

import zlib
from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gantrymq.shm import groupwire, layout
from gantrymq.shm.groupwire import DEAD_LETTER, LADDER, SendBack
from gantrymq.shm.kernels import progress
from gantrymq.shm.record import Record
from tests.support.simclients import SimConsumer
from tests.support.simmachine import SimMachine
from tests.support.storedlog import Stored, broken, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.workers.session import Session

PUSHED = "plain"
GROUP = "p"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
MAX_ATTEMPTS = 3
WINDOW = 6


class Deliveries:
    """What push consumers did, by log position: the oracle of P9 and P10 for a group."""

    def __init__(self) -> None:
        self.finished: set[int] = set()  # a listener has returned, and the bit was set
        self.sent_back: set[int] = set()  # `groups` has answered SentBack
        #: Sessions whose process died of a message, by its key.
        self.deaths: dict[str, list[int]] = defaultdict(list)

    def power_cut(self, log: list[Stored], end: int, *, durable: bool) -> None:
        """The log ends at `end` after a power cut: what lay behind may come again, as another.

        What was told to be sent back has its copy, if its topic is `durable` (P10). Attempts that
        the ledger's last second knew of are not counted any more.
        """
        copied = {record.origin for record in log}
        for position in self.sent_back - copied if durable else ():
            broken("P10", f"what lay at {position} was sent back, and has no copy after a cut")
        self.sent_back &= copied
        self.finished = {position for position in self.finished if position < end}
        self.deaths.clear()

    def check_deaths(self, machine: SimMachine) -> None:
        """A message kills as often as it may be tried (P9).

        A kill of the whole broker loses one attempt at most, and only of a session whose end was
        not in the ledger.
        """
        for sessions in self.deaths.values():
            known = [number for number in sessions if number not in machine.lost_ends]
            require(len(known) <= MAX_ATTEMPTS, "P9", f"a message has killed {sessions}")
            most = MAX_ATTEMPTS + machine.lives - 1
            require(len(sessions) <= most, "P9", f"a message has killed {sessions}")


def fate(record: Record) -> str:
    """What a listener makes of a message, by its content."""
    fates = {0: "poison", 1: "fails once", 2: "deadly"}
    return fates.get(zlib.crc32(record.body) % 12, "fine")


class SimPusher(SimConsumer):
    """A member of the group `p`."""

    def __init__(
        self,
        name: str,
        machine: SimMachine,
        deliveries: Deliveries,
        dies: Callable[[SimPusher], None],
    ) -> None:
        super().__init__(name, machine, GROUP)
        self.deliveries = deliveries
        self._dies = dies
        self.running: dict[int, dict[int, Record]] = {}  # queue -> offset -> message
        self._attempts: dict[int, list[groupwire.Attempts]] = {}
        self._done: dict[int, list[groupwire.Done]] = {}
        self._failed: dict[int, SendBack] = {}  # unanswered, by serial
        self._asked_back: dict[int, int] = {}

    def session_over(self) -> None:
        """Whatever ran is abandoned."""
        super().session_over()
        for held in (self.running, self._failed, self._asked_back, self._attempts, self._done):
            held.clear()

    def _join(self) -> None:
        metadata = self.machine.metadata
        assert metadata is not None, "attached to a running broker"
        slots = [metadata.open(topic, create=False).slot for topic in (PUSHED, RETRY)]
        self._serial += 1
        first = groupwire.ConsumeFrom.FIRST_OFFSET
        join = groupwire.Join(
            self._serial, GROUP, slots, first, max_attempts=MAX_ATTEMPTS, digest=7
        )
        self._outbox.append(join)

    def _obey(self, notice: groupwire.AnyNotice, session: Session) -> None:
        match notice:
            case groupwire.Granted() as granted:
                self._granted(granted, session)
            case groupwire.Revoke(queue, lease):
                self._revoke(queue, lease, session)
            case groupwire.SentBack(serial, queue, offsets):
                self._was_sent_back(serial, queue, offsets, session)
            case groupwire.Committed(_, lost):
                self._lose(lost, session)
            case groupwire.Rejoin():
                self._join()
                self._outbox.extend(self._failed.values())
            case groupwire.Refused() as refused:
                self._was_refused(refused)

    def _was_refused(self, refused: groupwire.Refused) -> None:
        if refused.error == "Evicted":
            self._failed.pop(refused.serial, None)
            return
        if self.machine.poisons.is_of(self.session):
            return  # its end is told at the same time
        assert refused.error == "DiskFull", f"{self.name} was refused: {refused}"
        self._join()

    def _granted(self, granted: groupwire.Granted, session: Session) -> None:
        queue = granted.queue
        held = self.owned.get(queue)
        self._take_over(queue, granted.lease, granted.offset, session)
        if self.owned.get(queue) != held:
            self.running[queue] = {}
            self._attempts[queue] = granted.attempts
            self._done[queue] = granted.done
            self._asked_back.pop(queue, None)

    def _lose(self, lost: dict[int, int], session: Session) -> None:
        for queue, lease in lost.items():
            if queue in self.owned and self.owned[queue][0] == lease:
                del self.owned[queue], self.running[queue]
                self._close_slot(queue, session)

    def _revoke(self, queue: int, lease: int, session: Session) -> None:
        held = self.owned.get(queue)
        if held is None or held[0] != lease:
            self._repeat_release(queue, lease)
            return
        self._asked_back[queue] = lease
        self._release_idle(queue, session)

    def _release_idle(self, queue: int, session: Session) -> None:
        if queue in self._asked_back and not self.running[queue]:
            self._give_back(queue, self._asked_back.pop(queue), session)

    # ---------------------------------------------------------------------------------- messages

    def _read(self, queue: int, session: Session) -> bool:
        """Begin one message of a queue, or finish one."""
        if queue not in self.owned:
            return False  # it has just died of a message
        running = self.running[queue]
        if running and (len(running) >= WINDOW or self.dice.random() < 0.5):
            return self._finish_one(queue, session)
        return self._begin_one(queue, session) or (
            bool(running) and self._finish_one(queue, session)
        )

    def _begin_one(self, queue: int, session: Session) -> bool:
        board = self.machine.board
        assert board is not None, "a session implies a board"
        lease, offset = self.owned[queue]
        there = board.word(board.queue_at(queue) + layout.QUEUE_MAX_OFFSET)
        if queue in self._asked_back or offset >= there:
            return False
        begun = progress.begin_messages(session.arena, self._at(queue), offset + 1)
        if begun <= offset:
            return False  # the window is full
        self.owned[queue] = (lease, offset + 1)
        if any(first <= offset < end for first, end in self._done[queue]):
            progress.ack_messages(session.arena, self._at(queue), offset, offset + 1)
            return True
        self.running[queue][offset] = self._look(self._name(queue), offset)
        return True

    def _finish_one(self, queue: int, session: Session) -> bool:
        requests = [request for request in self._failed.values() if request.queue == queue]
        asked = {offset for request in requests for offset in request.offsets}
        idle = [offset for offset in self.running[queue] if offset not in asked]
        if not idle:
            return False
        offset = self.dice.choice(idle)
        record = self.running[queue][offset]
        attempts = self._attempts_of(queue, offset) + record.reconsume_times
        if attempts >= MAX_ATTEMPTS:
            self._fail(queue, offset, DEAD_LETTER)
            return True
        end = fate(record)
        if end == "deadly":
            key = record.property_map()["UNIQ_KEY"]
            self.deliveries.deaths[key].append(session.session)
            self._dies(self)
            self.deliveries.check_deaths(self.machine)
        elif end == "poison" or (end == "fails once" and not attempts):
            self._fail(queue, offset, LADDER)
        else:
            self._ack(queue, offset, session)
            self.deliveries.finished.add(record.physical_offset)
        return True

    def _attempts_of(self, queue: int, offset: int) -> int:
        found = (n for first, end, n in self._attempts[queue] if first <= offset < end)
        return next(found, 0)

    def _fail(self, queue: int, offset: int, delay: int) -> None:
        """Ask for one message, or for one more in a request that has not been said yet."""
        lease = self.owned[queue][0]
        last = self._outbox[-1] if self._outbox else None
        offsets, delays = [offset], [delay]
        same = isinstance(last, SendBack) and (last.queue, last.lease) == (queue, lease)
        if isinstance(last, SendBack) and same and last.serial in self._failed:
            self._outbox.pop()  # what is said again may have its answer by now
            del self._failed[last.serial]
            offsets = [*last.offsets, offset]
            delays = [*(known for _, known, _ in last.failures()), delay]
        self._serial += 1
        whys = ["it failed"]
        request = SendBack(self._serial, queue, lease, MAX_ATTEMPTS, offsets, delays, whys)
        self._failed[self._serial] = request
        self._outbox.append(request)

    def _was_sent_back(self, serial: int, queue: int, offsets: list[int], session: Session) -> None:
        request = self._failed.get(serial)
        if request is None:
            return
        left = [offset for offset in request.offsets if offset not in offsets]
        del self._failed[serial]
        if left:  # said again after a `Rejoin`
            delays = [delay for offset, delay, _ in request.failures() if offset in left]
            self._failed[serial] = replace(request, offsets=left, delays=delays)
        if self.owned.get(queue, (0, 0))[0] == request.lease:
            for offset in [offset for offset in request.offsets if offset in offsets]:
                self.deliveries.sent_back.add(self.running[queue][offset].physical_offset)
                self._ack(queue, offset, session)

    def _ack(self, queue: int, offset: int, session: Session) -> None:
        committed = progress.ack_messages(session.arena, self._at(queue), offset, offset + 1)
        del self.running[queue][offset]
        if queue in self._asked_back and not self.running[queue]:
            end = self.owned[queue][1]
            assert committed == end, "all that was begun is done with"
            self._release_idle(queue, session)

    def commit(self, session: Session, *, wait: bool) -> None:
        """Words say it all."""

    def _may_sleep(self, session: Session) -> bool:
        requests = self._failed.values()
        waiting = {(request.queue, offset) for request in requests for offset in request.offsets}
        for queue, running in self.running.items():
            if any((queue, offset) not in waiting for offset in running):
                return False
        return super()._may_sleep(session)

    def _wants_of(self, queue: int) -> bool:
        """Not once it was asked to give the queue back, or while its window is full."""
        return queue not in self._asked_back and len(self.running[queue]) < WINDOW
