"""The groups agent between a simulated disk and members that speak its wire by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

from gantrymq.shm import groupwire, layout, wire
from gantrymq.shm.board import Board
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.kernels import progress
from gantrymq.workers.agent import Bells
from gantrymq.workers.groups.agent import Groups, open_groups
from gantrymq.workers.session import Session
from tests.support.faults import FaultPlan
from tests.support.memory_sessions import MemorySessions, memory_board, memory_session
from tests.support.simbell import SimBell
from tests.support.simclock import SimClock
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage

SETTINGS: Any = SimpleNamespace(
    consume_timeout=15, groups_max=8, message_delay_level="1s 5s 10s 30s", timer_precision_ms=1000,
    max_error_rate_of_bloom_filter=20, expect_consumer_num_use_filter=32,
)  # fmt: skip
N = TypeVar("N", bound=groupwire.Notice)


class Hand:
    """A session whose owner is the test."""

    def __init__(self, rig: Rig, session: Session) -> None:
        self.rig = rig
        self.session = session
        self.number = session.session
        self.lane = ControlLane(session.arena, session.plan.groups, End.CLIENT)
        self.leases: dict[int, int] = {}
        self._slots: dict[int, tuple[int, int]] = {}  # queue -> place and lease of its words
        self.granted: dict[int, groupwire.Granted] = {}
        self.revoked: set[int] = set()
        self.heard: list[groupwire.AnyNotice] = []

    def say(self, request: groupwire.Request) -> list[groupwire.AnyNotice]:
        """Put a request and let everything settle; returns what this session heard since."""
        assert self.lane.put(groupwire.encode(request))
        self.rig.settle()
        return self.listen()

    def listen(self) -> list[groupwire.AnyNotice]:
        """Take all notices, and keep track of leases as a client does."""
        fresh = []
        while (body := self.lane.take()) is not None:
            notice = groupwire.decode_notice(body)
            fresh.append(notice)
            if isinstance(notice, groupwire.Granted):
                self.leases[notice.queue] = notice.lease
                self.granted[notice.queue] = notice
            elif isinstance(notice, groupwire.Revoke):
                self.revoked.add(notice.queue)
        self.heard += fresh
        return fresh

    def join(
        self,
        group: str = "g",
        topics: tuple[int, ...] = (0,),
        consume_from: int = groupwire.ConsumeFrom.FIRST_OFFSET,
        **more: Any,  # noqa: ANN401 - starts, queues
    ) -> list[groupwire.AnyNotice]:
        """Become a member."""
        return self.say(groupwire.Join(1, group, list(topics), consume_from, **more))

    def commit(self, **offsets: int) -> groupwire.Committed:
        """Commit by queue, as `commit(q0=5)`."""
        wanted = {int(name[1:]): offset for name, offset in offsets.items()}
        heard = self.say(groupwire.Commit(2, self.leases, wanted))
        return only(heard, groupwire.Committed)

    def start(self, **nexts: int) -> None:
        """Mark messages as handed out, as `start(q0=5)`."""
        started = {int(name[1:]): offset for name, offset in nexts.items()}
        self.say(groupwire.Commit(0, self.leases, started=started))

    def note(self, **words: tuple[int, int]) -> None:
        """Say by words alone what is committed and started, as `note(q0=(5, 7))`."""
        for name, (committed, started) in words.items():
            queue, lease = int(name[1:]), self.leases[int(name[1:])]
            if self._slots.get(queue, (0, 0))[1] != lease:
                at = progress.open_slot(self.session.arena, queue, lease, queue, committed)
                self._slots[queue] = (at, lease)
            at = self._slots[queue][0]
            progress.note_progress(self.session.arena, at, committed, started)

    def release(self, queue: int, offset: int = -1) -> None:
        """Give a queue back."""
        self.revoked.discard(queue)
        self.say(groupwire.Released(queue, self.leases.pop(queue), offset))

    def release_revoked(self) -> None:
        """Give back all queues that were asked for."""
        for queue in sorted(self.revoked):
            self.release(queue)

    def die(self) -> None:
        """End the session as the supervisor does after the process's death."""
        self.die_unheard()
        self.rig.settle()

    def die_unheard(self) -> None:
        """`groups` does not come to hear of it yet."""
        self.rig.sessions.detach(self.number)
        self.rig.unsettled[self.number] = self.rig.hands.pop(self.number).session


class Rig:
    """Board, disk, clock and the agent."""

    def __init__(self, faults: FaultPlan | None = None, **topics: int) -> None:
        self.disk = Disk()
        self.faults = faults
        self.clock = SimClock()
        self.board: Board = memory_board(topics or {"orders": 4})
        self.hands: dict[int, Hand] = {}
        self.unsettled: dict[int, Session] = {}  # ended; the supervisor keeps their memory
        self.sessions = MemorySessions()
        self._last = 0
        self.agent = self.open_agent()

    def open_agent(self) -> Groups:
        """Make the agent over the present disk."""
        storage = SimStorage(self.disk, "groups", self.faults)
        return open_groups(
            storage, self.clock, self.board, self.sessions, Bells.each(SimBell), SETTINGS
        )

    def attach(self) -> Hand:
        """Add a session."""
        hand = Hand(self, memory_session(self._next()))
        self.hands[hand.number] = hand
        self.sessions.attach(hand.session)
        self.settle()
        return hand

    def _next(self) -> int:
        self._last += 1
        return self._last

    def settle(self) -> None:
        """Run the agent until it has nothing to do."""
        for _ in range(1000):
            if not self.agent.do_work(self.clock.monotonic_ns()):
                return
        raise AssertionError("the agent never comes to rest")

    def fill(self, queue: int, max_offset: int, min_offset: int = 0) -> None:
        """Say on the board what a queue holds."""
        at = self.board.queue_at(queue)
        self.board.set_word(at + layout.QUEUE_MAX_OFFSET, max_offset)
        self.board.set_word(at + layout.QUEUE_NEXT_OFFSET, max_offset)
        self.board.set_word(at + layout.QUEUE_MIN_OFFSET, min_offset)

    def replace_agent(self) -> None:
        """Kill `groups` alone: all sessions are told again to the next one."""
        self._forget_settled()
        self.sessions = MemorySessions()
        for number, session in self.unsettled.items():
            self.sessions.attach(session)
            self.sessions.detach(number)
        self.agent = self.open_agent()
        for hand in self.hands.values():
            self.sessions.attach(hand.session)
        self.settle()

    def _forget_settled(self) -> None:
        for _level, event, fields in self.sessions.notes:
            for number in fields["sessions"] if event == wire.SESSIONS_SETTLED else ():  # type: ignore[attr-defined]
                self.unsettled.pop(number, None)

    def restart_broker(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Begin another life of the broker: no session of the last one is there.

        `meanwhile`: what other agents do before `groups` is open.
        """
        epoch = self.board.epoch + 1
        old = self.board
        topics = {topic.name: topic.queue_count for topic in old.topics()}
        self.board = memory_board(topics, epoch=epoch)
        for number in range(old.queues_max):
            words = old.queue(number)
            self.fill(number, words["max_offset"], words["min_offset"])
            end = self.board.queue_at(number) + layout.QUEUE_RECOVERED_END
            self.board.set_word(end, words["max_offset"])
        self.board.set_word(layout.BOARD_RECOVERED_END, old.word(layout.BOARD_APPENDED))
        self.board.set_word(layout.BOARD_APPENDED, old.word(layout.BOARD_APPENDED))
        self.board.set_word(layout.BOARD_DURABLE, old.word(layout.BOARD_APPENDED))
        self.hands.clear()
        self.unsettled.clear()
        self.sessions = MemorySessions()
        meanwhile()
        self.agent = self.open_agent()


def only(notices: list[groupwire.AnyNotice], kind: type[N]) -> N:
    """The one notice of a kind."""
    found = [notice for notice in notices if isinstance(notice, kind)]
    assert len(found) == 1, f"{notices} should hold one {kind.__name__}"
    return found[0]
