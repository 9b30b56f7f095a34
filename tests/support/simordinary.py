"""Ordinary clients beside a flood: each does one thing at a time, and notes what that took."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from gantrymq.clients.delays import Due, recall_handle
from gantrymq.shm import groupwire, layout, schedulerwire, transactionwire
from gantrymq.shm.codes import EntryFlag, ParkMode, Role, Status
from gantrymq.shm.kernels import frames, ring
from tests.support.simclients import NEVER_NS
from tests.support.simrounds import Rounds
from tests.support.simtalker import Talker
from tests.support.simulation import AgentActor

if TYPE_CHECKING:
    from tests.support.simmachine import SimMachine

#: Topics of the machine, by number.
PLAIN, SAFE, DUE = range(3)
HOUR_MS = 3_600_000

#: Each turn of a work waits for something.
Work = Callable[["Ordinary"], Iterator[None]]


class Ordinary(Talker):
    """One client; done after so many times."""

    def __init__(
        self, name: str, machine: SimMachine, work: Work, times: int, rounds: Rounds
    ) -> None:
        super().__init__(name, machine)
        self.rounds = rounds
        self.done = False
        self.work = name
        self.ahead = 0
        self._counts: tuple[Role, type[Any] | None] | None = None
        self._heard = 0  # steps of an agent when the answer came that is counted up to
        self._waited: Callable[[], int] = lambda: 0
        self._turns = (turn for _ in range(times) for turn in work(self))

    def ready_at(self, now_ns: int) -> int:
        """It looks for its answer all the time, until all is done."""
        return now_ns + NEVER_NS if self.done else super().ready_at(now_ns)

    def go_on(self, session: object, now_ns: int) -> None:
        """Take answers, and do what follows from them."""
        del session, now_ns
        self.hear()
        if next(self._turns, self) is self:
            self.done = True

    # ------------------------------------------------------------------------ what works consist of

    @contextmanager
    def timing(self, role: Role) -> Iterator[None]:
        """Note how many rounds of an agent this takes."""
        began, self.ahead = self.rounds.of(role), self.rounds.timers()
        self._waited = lambda: self.rounds.of(role) - began
        yield
        self.rounds.took(self.work, self._waited(), self.ahead)
        self._waited = lambda: 0

    @contextmanager
    def counting(self, role: Role, kind: type[Any] | None = None) -> Iterator[None]:
        """Note how many steps of an agent there are before its answer is in the ring.

        `kind`: of the notice that is the answer; without it, a receipt is.
        """
        began = self.rounds.steps_of(role)
        self._waited = lambda: self.rounds.steps_of(role) - began
        self._counts = role, kind
        yield
        assert self._counts is None, "it was heard"
        self.rounds.took(self.work, self._heard - began, 0)

    @property
    def waited(self) -> int:
        """Steps or rounds that what it waits for has taken so far."""
        return self._waited()

    def hear(self) -> None:
        """Take all answers, and note when that came which is counted up to."""
        notices, answers = len(self.notices), len(self.answers)
        super().hear()
        if self._counts is None:
            return
        role, kind = self._counts
        if any(type(one) is kind for one in islice(self.notices, notices, None)) or (
            kind is None and len(self.answers) > answers
        ):
            self._heard, self._counts = self.rounds.steps_of(role), None
            self._waited = lambda: 0  # it is there, and looked at later

    def until(self, reached: Callable[[], object]) -> Iterator[None]:
        """Wait."""
        while not reached():
            yield

    def stored(self, put: Callable[[], bool]) -> Iterator[None]:
        """Put a message, wait for its receipt, and keep that as `receipt`."""
        yield from self.until(put)
        yield from self.until(lambda: self.answers)
        self.receipt = self.answers.popleft()
        status = Status(self.receipt[frames.OUT_STATUS])
        assert status is Status.OK, f"{self.name} was refused a message: {status.name}"

    def told(self, kind: type[Any]) -> Iterator[None]:
        """Wait for a notice, and keep it as `notice`; others are passed over."""
        while not any(isinstance(notice, kind) for notice in self.notices):
            refused = [one for one in self.notices if isinstance(one, groupwire.Refused)]
            assert not refused, f"{self.name} was refused: {refused}"
            yield
        self.notice = next(notice for notice in self.notices if isinstance(notice, kind))
        self.notices.clear()

    def asked(self, role: Role, request: Any, kind: type[Any]) -> Iterator[None]:  # noqa: ANN401
        """Put a request, wait for the notice that answers it."""
        wires: dict[Role, Any] = {
            Role.GROUPS: groupwire, Role.SCHEDULER: schedulerwire,
            Role.TXN_CHECKER: transactionwire,
        }  # fmt: skip
        yield from self.until(partial(self.ask, role, wires[role].encode(request)))
        yield from self.told(kind)

    def wait_until(self, wall_ms: int) -> None:
        """Nobody does anything for so long, as if the machine was suspended."""
        actors, clock = self.machine.simulation.actors, self.machine.simulation.clock
        for actor in actors.values():
            if isinstance(actor, AgentActor):
                actor.excuse()  # who owes it a ring may be amid a step
        clock.advance(max(0, wall_ms - clock.wall_ms()) * 1_000_000)

    @property
    def wall_ms(self) -> int:
        """The wall clock."""
        return self.machine.simulation.clock.wall_ms()

    def queue_end(self, topic: int) -> int:
        """How many messages of the first queue of a topic are visible."""
        board = self.machine.board
        assert board is not None, "it runs"
        found = board.topic(self.slots[topic])
        assert found is not None, "attached"
        return int(board.word(board.queue_at(found.queue_base) + layout.QUEUE_MAX_OFFSET))


# ------------------------------------------------------------------------------------------- works


def sends(me: Ordinary) -> Iterator[None]:
    """A message is stored."""
    with me.counting(Role.WRITER):
        yield from me.stored(lambda: me.send(PLAIN, b"m"))


def syncs(me: Ordinary) -> Iterator[None]:
    """A message is on the disk."""
    yield from me.stored(lambda: me.send(SAFE, b"m", flags=int(EntryFlag.DURABLE)))
    assert me.session is not None, "attached"
    board, end = me.machine.board, me.receipt[frames.OUT_END]
    assert board is not None, "it runs"
    with me.timing(Role.FLUSHER):
        ring.publish(me.session.arena, layout.ARENA_DURABLE_WANTED, end)
        me.machine.bell(Role.FLUSHER).ring()
        yield from me.until(lambda: board.word(layout.BOARD_DURABLE) >= end)


def reads(me: Ordinary) -> Iterator[None]:
    """A message that was stored is visible."""
    before = me.queue_end(DUE)
    yield from me.stored(lambda: me.send(DUE, b"m"))
    with me.timing(Role.READER):
        yield from me.until(lambda: me.queue_end(DUE) > before)


def timers(me: Ordinary) -> Iterator[None]:
    """A message that is due is put, stored and visible."""
    before, due_ms = me.queue_end(DUE), me.wall_ms + 50
    yield from me.stored(lambda: me.send(DUE, b"m", (int(ParkMode.AT), due_ms)))
    due_ms = -(-due_ms // 1000) * 1000
    yield from me.until(me.rounds.read())
    me.wait_until(due_ms)
    with me.timing(Role.SCHEDULER):
        yield from me.until(lambda: me.queue_end(DUE) > before)


def recalls(me: Ordinary) -> Iterator[None]:
    """A parked message is cancelled."""
    due = int(ParkMode.AT), (me.wall_ms // 1000 + 3600) * 1000
    yield from me.stored(lambda: me.send(DUE, b"m", due))
    topic = list(me.machine.topics)[DUE]
    unique = f"{me.producer.hex().upper()}{me.receipt[frames.OUT_SEQ]:012X}"
    names = (topic, "b", unique)
    handle = recall_handle(Due(ParkMode(due[0]), due[1]), me.receipt[frames.OUT_MS], names, 1000)
    request = schedulerwire.Recall(1, topic, handle or "")
    with me.timing(Role.SCHEDULER):
        yield from me.asked(Role.SCHEDULER, request, schedulerwire.Recalled)
    assert me.notice.outcome == schedulerwire.CANCELLED, me.notice


def ends(me: Ordinary) -> Iterator[None]:
    """A transaction is committed."""
    yield from me.stored(lambda: me.send_half("e" * 32, me.name))
    half = me.receipt[frames.OUT_POSITION], me.receipt[frames.OUT_OFFSET]
    request = transactionwire.End(1, me.name, "", commit=True, halves=[half])
    with me.timing(Role.TXN_CHECKER):
        yield from me.asked(Role.TXN_CHECKER, request, transactionwire.Ended)
    assert me.notice.outcome == transactionwire.COMMITTED, me.notice


def commits(me: Ordinary) -> Iterator[None]:
    """An offset is in the ledger."""
    join = groupwire.Join(1, me.name, [me.slots[DUE]])
    yield from me.asked(Role.GROUPS, join, groupwire.Joined)
    with me.counting(Role.GROUPS, groupwire.Committed):
        yield from me.asked(Role.GROUPS, groupwire.Commit(2, {}), groupwire.Committed)


def attaches(me: Ordinary) -> Iterator[None]:
    """A new session is a member of its group."""
    before = me.session
    assert before is not None, "attached"
    me.machine.end_session(before.session)
    yield
    with me.counting(Role.GROUPS, groupwire.Joined):
        join = groupwire.Join(1, me.name, [me.slots[DUE]])
        yield from me.asked(Role.GROUPS, join, groupwire.Joined)


WORKS: dict[str, Work] = {
    work.__name__: work for work in (sends, syncs, reads, timers, recalls, ends, commits, attaches)
}
