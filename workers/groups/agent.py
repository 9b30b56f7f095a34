"""The agent that decides who owns a queue, and the only writer of offsets.

A duty cycle: hear of sessions, take their words and requests, balance, put all changes into the
ledger by one write, and only then tell anybody. Whatever was not told yet when this process dies
is asked again: a replaced `groups` sends `Rejoin`, and sessions repeat what has not been answered.
A cycle has a budget, of which each session has a share in turn: what one asks, however much, makes
others wait for a cycle of that size at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec

from gantrymq.shm import groupwire, layout
from gantrymq.shm.arena import mark_evicted
from gantrymq.shm.bell import give_way
from gantrymq.shm.board import Board
from gantrymq.shm.clock import Clock
from gantrymq.shm.codes import AgentState, Role
from gantrymq.shm.controllane import BrokenLane
from gantrymq.shm.errors import DiskFull, Incompatible, Rejected, Unavailable
from gantrymq.shm.imported import read_imported
from gantrymq.shm.packed import Misfit
from gantrymq.shm.storage import Storage, is_failed_change
from gantrymq.workers.agent import IDLE_NS, UNRUNG_NS, Bells
from gantrymq.workers.failure import declare_failed
from gantrymq.workers.groups.admission import fault_of
from gantrymq.workers.groups.filters import FilterTable
from gantrymq.workers.groups.groupremoval import Removal
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.membership import DONE_MAX, Membership, Move
from gantrymq.workers.groups.missing import Ends, Missing
from gantrymq.workers.groups.offsetfile import Exports, import_offsets
from gantrymq.workers.groups.peer import NOT_BEGUN, Peer, Taken
from gantrymq.workers.groups.records import LiveReader
from gantrymq.workers.groups.reports import LOOK_NS, Reports
from gantrymq.workers.groups.resets import Resets
from gantrymq.workers.groups.retrycopy import CopyMaker
from gantrymq.workers.groups.roster import tell_joined, tell_left
from gantrymq.workers.groups.sendbacks import SendBacks
from gantrymq.workers.groups.settings import GroupsSettings
from gantrymq.workers.groups.unknowncopies import first_lost_copy, note_unknown_copies
from gantrymq.workers.groups.visits import go_back
from gantrymq.workers.inhand import InHand
from gantrymq.workers.outlet import Outlet
from gantrymq.workers.session import Attached, Session, SessionTable, pass_turn

MINUTE_NS: Final = 60_000_000_000
#: What requests of all sessions may cost in one cycle, and those of one; a unit is some 20 us.
CYCLE_COST: Final = 256
SESSION_COST: Final = 64
#: Queues that are looked at in one cycle to balance their groups (membership.COST_OF_MOVE).
CYCLE_QUEUES: Final = 2048
#: A queue whose start is fixed, or that is told again.
COST_OF_START: Final = 1 / 2
#: A request is broken off for the next cycle once it has cost so much in this one.
STEP_COST: Final = 32
#: The end of a session.
COST_OF_END: Final = 8
#: What one request costs at least.
ONE_REQUEST: Final = 1
#: A request costs 1, and so much more for each queue or topic that it names; those that make a
#: group be balanced anew cost more than what they name.
COST_OF_ITEM: Final = 1 / 8
COSTS: Final = {
    groupwire.Join: 32, groupwire.Leave: 32, groupwire.Reset: 32, groupwire.DeleteGroup: 32,
    groupwire.Released: 4,
}  # fmt: skip
#: What counts of a session that has ended: it may have been done before the end.
COUNTS_AT_END: Final = (
    groupwire.Commit, groupwire.Released, groupwire.SendBack, groupwire.Failed, groupwire.Leave,
)  # fmt: skip
#: Resets of one session that wait for their queues.
RESETS_MAX: Final = 16
#: Requests between two looks for others that wait for the processor.
POLITE: Final = 8
#: How much of a fault a session is told.
FAULT_CHARACTERS: Final = 600
SYNC_NS: Final = 1_000_000_000
EXPORT_NS: Final = 5_000_000_000  # CQ-30
DISK_RETRY_NS: Final = 100_000_000
#: Changes that wait for room on the disk; beyond them, requests wait in their rings.
WAITING_BYTES_MAX: Final = 1 << 20


class Groups:
    """Agent; see the module. Made by `open_groups`."""

    name = "groups"

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        board: Board,
        sessions: SessionTable,
        settings: GroupsSettings,
        bells: Bells,
    ) -> None:
        self.ledger = ledger
        self.board = board
        self.membership = Membership(ledger, board)
        self.reports = Reports(self.membership, board, settings.consume_timeout * MINUTE_NS)
        self.reader = LiveReader(ledger.storage, board)
        self._hand = hand = InHand(board, Role.GROUPS)
        hand.watch_all()
        self._careful = False  # one request a cycle, in hand until it is in the ledger
        maker = CopyMaker(self.membership.topics, clock, settings)
        self.sendbacks = SendBacks(
            self.membership, self.reader, maker, self._answer, sessions, hand
        )
        self.resets = Resets(self.membership, self.sendbacks, self._answer, self._end_session)
        self.finished = False
        self.failed = False
        self._clock = clock
        self._sessions = sessions
        self._bells = bells
        self._peers: dict[int, Peer] = {}  # whose turn it is comes first
        #: Ended or cut off: not all that they asked is taken, or that they held given back.
        self._leaving: dict[int, Peer] = {}
        self._cost = 0.0  # of requests in this cycle
        self._taken = Taken()
        self._ends = Ends(sessions)
        self.missing = Missing(self.membership, sessions.cut_off)
        self._synced_ns = self._exported_ns = 0
        self._exports = Exports(ledger, board)
        self._filters = FilterTable(ledger.storage, board, clock, settings)
        self.removal = Removal(self.membership, self._filters, sessions, settings.groups_max)
        self._retry_ns = 0  # while the disk is full: when to try again

    # -------------------------------------------------------------------------------- duty cycle

    def do_work(self, now_ns: int) -> int:
        """One duty cycle; returns requests handled and notices sent."""
        if self.failed or self.finished:
            return 0
        try:
            done = self._cycle(now_ns)
        except OSError as error:
            if not is_failed_change(error):
                raise  # this process ends, and its successor goes on from the ledger
            self.failed = True  # final: nothing is answered after a failed write (P3)
            clients = [peer.session for peer in self._peers.values()]
            what = f"ledger of groups: {error}"
            declare_failed(self.board, self._sessions, clients, error.errno or 0, what)
            return 0
        slot = self.board.process_at(Role.GROUPS)
        self._count(slot, "heartbeat", 1)
        self._count(slot, "busy", int(done > 0))
        self._count(slot, "work", done)
        return done

    def _cycle(self, now_ns: int) -> int:
        self._careful = self._hand.is_careful(now_ns)
        done = self._hear_sessions() + self._let_leave()
        done += self.sendbacks.collect(now_ns)
        self.missing.end(self._peers.keys() | self._leaving.keys(), now_ns)
        stopping = self._sessions.stopping()
        if self.ledger.waiting_bytes < WAITING_BYTES_MAX:
            done += self._serve_all(now_ns)
        done += self.sendbacks.take()
        self.membership.grown()
        done += self.resets.work(now_ns)
        done += self._balance()
        stored = self._store(now_ns)
        self._hand.drop()
        self._taken.publish(stored=stored)
        if stored:
            self._ends.say()
            done += self.sendbacks.put(now_ns)
        done += sum(self._tell(peer, stored) for peer in list(self._peers.values()))
        done += len(self._leaving)
        last = stopping and not done
        if stored:
            done += self._keep_durable(now_ns, last)
        self.finished = last  # a full disk does not hold it up: what waits was promised to nobody
        return done

    def _store(self, now_ns: int) -> bool:
        """Put all changes into the ledger; False while the disk is full: nobody hears of them."""
        if now_ns >= self._retry_ns and self.ledger.flush_if_room():
            self._retry_ns = 0
            return self._secure()
        if not self._retry_ns:
            self._sessions.note("error", "no_space_for_groups", bytes=self.ledger.waiting_bytes)
        if now_ns >= self._retry_ns:
            self._retry_ns = now_ns + DISK_RETRY_NS
        self.resets.give_up()
        for peer in self._peers.values():
            peer.hold_back()
        return False

    def _secure(self) -> bool:
        """Sync what nobody may hear of before; False while that waits for durable copies."""
        if not self.ledger.must_sync:
            return True
        if not self.ledger.may_sync():
            return False
        self.ledger.sync(self.board.word(layout.BOARD_APPENDED))
        return True

    def _count(self, slot: int, field: str, more: int) -> None:
        at = slot + layout.PROCESS.offset(field)
        self.board.set_word(at, self.board.word(at) + more)

    def _hear_sessions(self) -> int:
        events = self._sessions.poll()
        for event in events:
            if not isinstance(event, Attached):
                self._detach(event.session)
            elif event.session.owner == Role.GROUPS:
                self.sendbacks.outlet = Outlet(event.session, self._bells)
            elif event.session.groups:
                self._attach(event.session)
        return len(events)

    def _attach(self, session: Session) -> None:
        self._ends.attached.add(session.session)
        peer = self._peers[session.session] = Peer(session)
        if self._hand.is_condemned(session.session):
            self._set_aside(peer, 0, "a request")
        elif peer.adopt():
            peer.outbox.append(groupwire.Rejoin())
            self.membership.unsettle(session.session)

    def _detach(self, session: int) -> None:
        peer = self._peers.pop(session, None) or self._leaving.get(session)
        if peer is None:
            self._ends.note(session)
            return
        peer.end()
        self._leaving[session] = peer

    def _let_leave(self) -> int:
        """Sessions that have ended: what they had published counts, commits above all."""
        done, self._cost = 0, 0.0
        while self._leaving and self._cost < CYCLE_COST:
            session, peer = next(iter(self._leaving.items()))
            most = ONE_REQUEST if self._careful else CYCLE_COST
            done += 1 + sum(1 for _ in self._requests(peer, most))
            if self._careful and self._cost:
                break
            self._cost += COST_OF_END
            if peer.has_more:
                continue
            if not peer.is_over:
                self.sendbacks.end(session)
                self._begin_end(peer)
                continue
            del self._leaving[session]
            if peer.ended:
                self._ends.note(session)
        return done

    def _begin_end(self, peer: Peer) -> None:
        """Nothing of a session is heard any more; all that it has goes to others."""
        peer.is_over, peer.serial = True, 0
        peer.work = self._end(peer, failed=True)
        self._leaving[peer.session.session] = peer
        self._forget(peer.session.session)

    # ---------------------------------------------------------------------------------- requests

    def _serve_all(self, now_ns: int) -> int:
        if self._careful and self._cost:
            return 1  # who leaves was heard
        done, self._cost = 0, 0.0
        for number, peer in enumerate(list(self._peers.values()), 1):
            done += self._serve(peer, now_ns)
            if self._cost >= (ONE_REQUEST if self._careful else CYCLE_COST):
                pass_turn(self._peers, number)
                break
        return done

    def _serve(self, peer: Peer, now_ns: int) -> int:
        if self._must_wait(peer):
            return 0
        if self._careful:
            self._hand.take(peer.session.session)
        if peer.work is None:
            self._cost += self.reports.look(peer, now_ns)
        stuck = self.reports.stuck(peer, now_ns)
        if stuck is not None and self._report_stuck(peer, stuck):
            return 1
        most = ONE_REQUEST if self._careful else SESSION_COST
        return sum(1 for _ in self._requests(peer, most))

    def _must_wait(self, peer: Peer) -> bool:
        """Whether its requests stay in its ring: no room for answers, or for copies."""
        return bool(peer.outbox) or self.sendbacks.has_asked(peer.session.session)

    def _requests(self, peer: Peer, most: float) -> Iterator[None]:
        """Handle requests of this cost; a broken ring or body ends the session."""
        number, end = 0, self._cost + most
        while self._cost < end and (peer.work is not None or peer.is_heard):
            number += 1
            if number % POLITE == 0:
                give_way()  # reports may wait, and who shares our processor may not
            try:
                if peer.work is None:
                    body = peer.lane.take()
                    if body is None:
                        return
                    self._taken.add(peer)
                    self._carry_out(peer, body)
                self._go_on(peer, end)
            except (BrokenLane, msgspec.DecodeError) as error:
                self._cut_off(peer, f"groups lane: {error}")
                return
            yield

    def _carry_out(self, peer: Peer, body: bytes) -> None:
        self._cost += 1
        try:
            request = groupwire.decode_request(body)
        except Misfit as misfit:
            self.reports.refuse(1)
            text = misfit.text[:FAULT_CHARACTERS]
            peer.outbox.append(groupwire.Refused(misfit.serial, Rejected.__name__, text))
            return
        self._cost += COSTS.get(type(request), 0) + COST_OF_ITEM * items_of(request)
        session, serial = peer.session.session, getattr(request, "serial", 0)
        if self._hand.is_poison(session, serial):
            self._set_aside(peer, serial, type(request).__name__)
            return
        if peer.ended and not isinstance(request, COUNTS_AT_END):
            return
        peer.serial = serial
        self._hand.take(session, serial)
        peer.work = self._handle(peer, request)

    def _go_on(self, peer: Peer, end: float) -> None:
        """Go on with a request; what costs more than there is left waits for the next cycle."""
        self._hand.take(peer.session.session, peer.serial)
        least = self._cost + STEP_COST
        for cost in peer.work or ():
            self._cost += cost
            if self._cost >= max(end, least):
                break
        else:
            peer.work = None
        if not self._careful:
            self._hand.drop()

    def _set_aside(self, peer: Peer, serial: int, what: str) -> None:
        """Refuse a request that has ended `groups`, and end its session."""
        why = self._hand.set_aside(self._sessions, peer.session.session, serial, what)
        peer.outbox.append(groupwire.Refused(serial, Rejected.__name__, why[:FAULT_CHARACTERS]))
        peer.believed = serial > 0
        self._tell(peer, stored=False)
        self._cut_off(peer, why)

    def _cut_off(self, peer: Peer, why: str) -> None:
        self._count(self.board.process_at(Role.GROUPS), "faults", 1)
        # Before its queues go to others: it learns it first, though the supervisor is slow.
        mark_evicted(peer.session.arena)
        self._sessions.cut_off(peer.session.session, why)
        self._peers.pop(peer.session.session, None)
        self._begin_end(peer)

    def _forget(self, session: int) -> None:
        """What a session has asked and nobody waits for any more."""
        self.sendbacks.forget(session)
        self.resets.forget(session)

    def _end(self, peer: Peer, *, failed: bool) -> Iterator[float]:
        """What a session's words say counts last, then it is a member no more."""
        if peer.believed:
            yield from self.reports.look_at_all(peer, self._clock.monotonic_ns())
        yield from self.membership.leave(peer.session.session, failed=failed)
        self._filters.leave(peer.session.session)

    def _report_stuck(self, peer: Peer, queue: int) -> bool:
        """Say which message is stuck; True if its session was ended, since others can go on."""
        key = self.membership.topics.key(queue)
        group = self.membership.group_of.get(peer.session.session, "")
        assert key is not None, f"the board lost queue {queue}"
        offset = self.ledger.group(group).queue(key).committed
        others = self.reports.has_others(peer)
        if others or peer.stuck != (queue, offset):
            peer.stuck = queue, offset
            where = {"topic": key[0], "queue": key[1], "offset": offset}
            fields = {"group": group, **where, "session": peer.session.session}
            self._sessions.note("warning", "consume_timeout", evicted=int(others), **fields)
            self._count(self.board.process_at(Role.GROUPS), "stuck", 1)
        if others:
            self._cut_off(peer, "a started message is older than consume_timeout")
        return others

    def _handle(self, peer: Peer, request: groupwire.AnyRequest) -> Iterator[float] | None:
        """Carry a request out, or return the steps in which that is to be done."""
        now_ns = self._clock.monotonic_ns()
        match request:
            case groupwire.Join():
                return self._join(peer, request)
            case groupwire.Commit():
                return self.reports.commit(peer, request, now_ns)
            case groupwire.Leave():
                return self._leave(peer, request)
            case groupwire.Released():
                self.reports.release(peer, request)
            case groupwire.SendBack():
                return self._send_back(peer, request, now_ns)
            case groupwire.Failed():
                return self._fail(peer, request, now_ns)
            case groupwire.Reset() | groupwire.DeleteGroup():
                self._operate(peer, request)
        return None

    def _send_back(self, peer: Peer, request: groupwire.SendBack, now_ns: int) -> Iterator[float]:
        named = request.queue, request.lease
        yield from self.reports.look_for(peer, named, max(request.offsets), now_ns)
        self.sendbacks.ask(peer.session.session, request)

    def _fail(self, peer: Peer, request: groupwire.Failed, now_ns: int) -> Iterator[float]:
        named = request.queue, request.lease
        yield from self.reports.look_for(peer, named, request.offset, now_ns)
        self.reports.fail(peer, request)

    def _leave(self, peer: Peer, request: groupwire.Leave) -> Iterator[float]:
        yield from self._end(peer, failed=False)
        tell_left(self._sessions, peer.session.session)
        peer.outbox.append(groupwire.Left(request.serial))

    def _operate(self, peer: Peer, request: groupwire.Reset | groupwire.DeleteGroup) -> None:
        """What an operator asks for; while the disk is full it is not begun."""
        if self._retry_ns or self._is_held_up(request):
            peer.outbox.append(groupwire.Refused(request.serial, DiskFull.__name__, NOT_BEGUN))
        elif isinstance(request, groupwire.DeleteGroup):
            peer.outbox.append(self.removal.delete(request))
        elif self.resets.count_of(peer.session.session) >= RESETS_MAX:
            text = f"{RESETS_MAX} resets of this session are going on: wait for their answers"
            error = Unavailable.__name__
            peer.outbox.append(groupwire.Refused(request.serial, error, text))
        else:
            self.resets.ask(peer.session.session, request, self._clock.monotonic_ns())

    def _is_held_up(self, request: groupwire.Reset | groupwire.DeleteGroup) -> bool:
        """Whether a group is to go whose failed messages find no room; `resets` looks itself."""
        group = self.ledger.groups.get(request.group)
        if group is None or isinstance(request, groupwire.Reset):
            return False
        return any(map(self.sendbacks.holds_up, group.queues.values()))

    def _answer(self, session: int, notice: groupwire.AnyNotice) -> None:
        """Tell a session something, once all changes are in the ledger; nobody if it is gone."""
        peer = self._peers.get(session)
        if peer is not None:
            peer.outbox.append(notice)

    def _end_session(self, session: int, why: str) -> None:
        if session in self._peers:
            self._cut_off(self._peers[session], why)

    def _join(self, peer: Peer, request: groupwire.Join) -> Iterator[float]:
        session = peer.session.session
        self.membership.follow()
        fault = fault_of(self.membership, session, request)
        if not fault:
            fault = self.removal.make_room(request.group, self._clock.monotonic_ns())
        if fault:
            self.reports.refuse(1)
            text = fault[:FAULT_CHARACTERS]  # it may quote all that the request has room for
            peer.outbox.append(groupwire.Refused(request.serial, "GroupIllegal", text))
            return
        for looked_at in self.membership.join(session, request):
            yield COST_OF_START * looked_at
        self._filters.join(session, request, self.membership.topics.by_slot)
        tell_joined(self._sessions, session, request, self.membership.topics)
        peer.joined.append(request.serial)
        for _group, key, lease in self.ledger.leases_of(session):
            queue = self.membership.topics.queue(key)
            if queue is not None and self.membership.held(session, queue, lease.number):
                # After a replacement both sides may have missed the last word: say it again.
                lease.revoking = False
                self._announce(peer, queue, request.group)
                yield COST_OF_START

    # ----------------------------------------------------------------------------------- notices

    def _balance(self) -> int:
        done = 0
        for move in self.membership.moves(CYCLE_QUEUES):
            self._move(move)
            done += 1
        for session, peer in self._peers.items():
            # Last, so that who hears it has all that could be granted at once.
            if peer.joined and self.membership.is_balanced(session):
                peer.outbox.extend(groupwire.Joined(serial) for serial in peer.joined)
                peer.joined.clear()
        return done + self.membership.has_unbalanced

    def _move(self, move: Move) -> None:
        peer = self._peers.get(move.session)
        key = self.membership.topics.key(move.queue)
        if peer is None or key is None:
            return  # restored and not told of yet: balanced again when it is, or is ended
        progress = self.ledger.group(move.group).queue(key)
        if move.grant:
            self.ledger.grant(move.group, key, move.session, move.digest)
            self._announce(peer, move.queue, move.group)
        elif progress.lease:
            progress.lease.revoking = True
            peer.outbox.append(groupwire.Revoke(move.queue, progress.lease.number))

    def _announce(self, peer: Peer, queue: int, group: str) -> None:
        key = self.membership.topics.key(queue)
        assert key is not None, f"the board lost queue {queue}"
        progress = self.ledger.group(group).queue(key)
        words = self.board.queue(queue)
        if progress.committed < words["min_offset"]:
            self.ledger.commit(group, key, words["min_offset"])
        assert progress.lease is not None, "announced after its grant"
        # What is not told may be handed out again: better than a notice that fits into no ring.
        attempts, done = list(progress.attempts), progress.done[:DONE_MAX]
        lease, offset = progress.lease.number, progress.committed
        since, previous = progress.since, progress.previous
        peer.outbox.append(groupwire.Granted(queue, lease, offset, attempts, done, since, previous))

    def _tell(self, peer: Peer, stored: bool) -> int:
        told = 0
        try:
            while (notice := peer.take_notice(stored=stored)) is not None:
                if not peer.lane.put(groupwire.encode(notice)):
                    break
                peer.outbox.popleft()
                if isinstance(notice, groupwire.Revoke | groupwire.Rejoin):
                    peer.bump_revoked()
                if peer.lane.wants_bell:
                    peer.session.bell.ring()
                told += 1
        except (BrokenLane, Incompatible) as error:
            self._cut_off(peer, f"groups lane: {error}")
        return told

    # ------------------------------------------------------------------------- time and stopping

    def _keep_durable(self, now_ns: int, last: bool) -> int:
        """Returns whether there is more to do, which nobody who stops waits for."""
        if last or (now_ns - self._synced_ns >= SYNC_NS and self.ledger.may_sync()):
            self._synced_ns = now_ns
            self.ledger.sync(self.board.word(layout.BOARD_APPENDED))
        self._export(now_ns, last)
        if not self._filters.save(now_ns, last=last):
            self._sessions.note("warning", "no_space_for_consumer_filters")
        if last:
            self.ledger.end(self.board.word(layout.BOARD_APPENDED))
            return 0
        return int(self.ledger.step())

    def _export(self, now_ns: int, last: bool) -> None:
        """Write offsets for a RocketMQ, some queues at a time."""
        is_due = now_ns - self._exported_ns >= EXPORT_NS
        if not last and not ((is_due or self._exports.under_way) and self.ledger.may_sync()):
            return
        if last or is_due:
            self._exported_ns = now_ns
            self.membership.forget_gone()
        if (self._exports.write() if last else self._exports.step()) is False:
            self._sessions.note("warning", "no_space_for_consumer_offsets")

    def arm(self, now_ns: int) -> int:
        """Go to sleep unless a session has asked something since."""
        if self._retry_ns:
            return max(1, self._retry_ns - now_ns)
        heard = [peer for peer in self._peers.values() if not self._must_wait(peer)]
        if any(not peer.lane.arm(AgentState.ARMED) for peer in heard):
            return 0
        idle_ns = LOOK_NS if any(peer.uses_words for peer in self._peers.values()) else IDLE_NS
        if len(heard) < len(self._peers):
            idle_ns = UNRUNG_NS
        idle_ns = min(idle_ns, self.sendbacks.arm(now_ns))
        if self._exports.under_way:
            idle_ns = min(idle_ns, LOOK_NS)
        waits_ns = self._filters.waits_ns(now_ns)
        if waits_ns is not None:  # nothing is written while the ledger waits for copies
            idle_ns = min(idle_ns, max(LOOK_NS, waits_ns))
        sync_ns = max(self._synced_ns + SYNC_NS, now_ns + LOOK_NS)  # it may wait for copies
        for deadline_ns in (self.resets.deadline_ns(), sync_ns if self.ledger.wants_sync else None):
            if deadline_ns is not None:
                idle_ns = min(idle_ns, max(1, deadline_ns - now_ns))
        return idle_ns

    def disarm(self) -> None:
        """Awake again."""
        for peer in self._peers.values():
            peer.lane.disarm()
        self.sendbacks.disarm()

    def close(self) -> None:
        """Give descriptors back."""
        self.sendbacks.close()
        self.ledger.close()


def items_of(request: groupwire.AnyRequest) -> int:
    """How much a request names, of which each takes its time."""
    match request:
        case groupwire.Join():
            return len(request.topics) + len(request.queues or ()) + 8 * len(request.filters)
        case groupwire.Commit():
            ranges = sum(len(done) for done in request.done.values())
            return len(request.offsets) + len(request.started) + ranges
        case groupwire.Released():
            return len(request.done)
        case groupwire.SendBack() | groupwire.Reset():
            return len(request.offsets)
        case _:
            return 0


def open_groups(
    storage: Storage,
    clock: Clock,
    board: Board,
    sessions: SessionTable,
    bells: Bells,
    settings: GroupsSettings,
) -> Groups:
    """Read ledger and consumerOffset.json and make the agent.

    Raises Corrupt, Incompatible, OSError.
    """
    ledger = _load(storage, board)
    ledger.log_end = partial(board.word, layout.BOARD_APPENDED)
    if board.epoch != ledger.epoch:
        imported = read_imported(storage)
        go_back(ledger, imported.visit if imported else None)
    import_offsets(ledger)
    groups = Groups(ledger, clock, board, sessions, settings, bells)
    if board.epoch != ledger.epoch:
        note_unknown_copies(ledger, groups.reader)
    groups.membership.begin_life(board.epoch)
    groups.missing.restore()
    if ledger.flush_if_room() and ledger.may_sync():
        ledger.sync(board.word(layout.BOARD_RECOVERED_END))
    return groups


def _load(storage: Storage, board: Board) -> Ledger:
    """The ledger, at the start of a life without what counts on copies that a power cut took.

    As if it had taken that, too: failed messages come again. Raises Corrupt, Incompatible, OSError.
    """
    ledger = Ledger(storage)
    ledger.load()
    if board.epoch == ledger.epoch or not ledger.copied:
        return ledger
    reader = LiveReader(storage, board)
    lost = first_lost_copy(ledger, reader, board)
    reader.close()
    if lost is None:
        return ledger
    ledger.cut(lost.at)
    ledger = Ledger(storage)
    ledger.load()
    return ledger
