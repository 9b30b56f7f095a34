"""What sessions say of their queues, put into the ledger if they hold them.

Offsets come as words of the arena, which are looked at in every cycle and cost a session nothing,
or in a request: for queues beyond the progress table, and where a session waits for the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from gantrymq.shm import groupwire, layout, limits
from gantrymq.shm.board import Board
from gantrymq.shm.codes import Role
from gantrymq.shm.kernels import progress
from gantrymq.workers.groups.membership import COST_OF_RANGE, Membership
from gantrymq.workers.groups.peer import Begun, Peer
from gantrymq.workers.groups.progress import ranges_of

#: A session's words are looked at this often if nobody rings.
LOOK_NS: Final = 500_000_000
#: Queues in one notice about words: it has to fit into half of the ring.
LOST_PER_NOTICE: Final = 64
LEASE_OVER: Final = "the lease of the message's queue is over"
#: What a queue costs whose words say something new.
COST_OF_WORDS: Final = 1 / 2
#: Queues of a session whose words are taken in one step.
ROWS_MAX: Final = 128
#: What it costs to put that into the ledger which is done with of one queue, beside its ranges; and
#: after how much of it a step ends.
FINISH_COST: Final = 2
FINISH_MAX: Final = 128
#: A stuck message is noticed later by at most this part of consume_timeout.
STALL_GRAINS: Final = 64


class Reports:
    """Judges reports; see the module."""

    def __init__(self, membership: Membership, board: Board, stall_ns: int) -> None:
        """`stall_ns`: how long a message may be worked on."""
        self.refused = 0
        self._stall_ns = stall_ns
        self._grain_ns = stall_ns // STALL_GRAINS
        self._membership = membership
        self._board = board
        self._found = np.zeros(progress.SLOT_WORDS * limits.PROGRESS_MAX, np.int64)

    def look(self, peer: Peer, now_ns: int) -> float:
        """Take what a session's words say since the last look, of some queues; what that costs.

        What is done with out of order goes into the ledger every LOOK_NS.
        """
        return next(self._look(peer, now_ns, final=False), 0)

    def look_at_all(self, peer: Peer, now_ns: int) -> Iterator[float]:
        """The same of all queues, and of all that is done with; yields what each step costs."""
        return self._look(peer, now_ns, final=True)

    def _look(self, peer: Peer, now_ns: int, *, final: bool) -> Iterator[float]:
        """Steps of a look, each with what it costs; who stops after one goes on with the next."""
        has_looked = has_marked = False
        while True:
            if not has_looked and not len(peer.rows):
                count = progress.changed_slots(peer.session.arena, peer.slots_seen, self._found)
                found = self._found[: count * progress.SLOT_WORDS]
                peer.rows, has_looked = found.reshape(count, progress.SLOT_WORDS), True
            cost = COST_OF_WORDS * self._take_rows(peer, now_ns)
            if has_looked and not has_marked and not len(peer.rows):
                has_marked = True
                if peer.acked and (final or now_ns - peer.acked_ns >= LOOK_NS):
                    peer.acked_ns = now_ns
                    peer.unfinished.update(dict.fromkeys(peer.acked))
            cost += self._finish_some(peer)
            if not cost:
                return
            yield cost

    def _finish_some(self, peer: Peer) -> float:
        """Put what is done with out of order into the ledger, of some queues; what that costs."""
        cost = 0.0
        while peer.unfinished and cost < FINISH_MAX:
            queue = next(iter(peer.unfinished))
            del peer.unfinished[queue]
            cost += FINISH_COST + COST_OF_RANGE * self._finish(peer, queue)
        return cost

    def look_for(
        self, peer: Peer, named: tuple[int, int], offset: int, now_ns: int
    ) -> Iterator[float]:
        """Look until the words of a queue, by its number and lease, say that a message was begun.

        All of them if they do not say so. Yields what each step costs.
        """
        steps = self._look(peer, now_ns, final=False)
        while not self._was_begun(peer, named, offset) and (cost := next(steps, 0)):
            yield cost

    def _was_begun(self, peer: Peer, named: tuple[int, int], offset: int) -> bool:
        """Whether a message was handed out, as is known; also of a queue that is not held."""
        held = self._membership.held(peer.session.session, *named)
        return held is None or offset < held[2].started

    def _take_rows(self, peer: Peer, now_ns: int) -> int:
        """Take the words of some queues; of how many."""
        rows, peer.rows = peer.rows[:ROWS_MAX], peer.rows[ROWS_MAX:].copy()
        lost: dict[int, int] = {}
        for row in rows:
            lease, queue, committed, started = row[: progress.ACKED].tolist()
            if not self._take(peer, (queue, lease), committed, started, now_ns):
                lost[queue] = lease
            elif row[progress.ACKED :].any():
                peer.acked[queue] = lease, int.from_bytes(row[progress.ACKED :].tobytes(), "little")
            else:
                peer.acked.pop(queue, None)
        self.refuse(len(lost))
        items = list(lost.items())
        for at in range(0, len(items), LOST_PER_NOTICE):
            part = dict(items[at : at + LOST_PER_NOTICE])
            peer.outbox.append(groupwire.Committed(0, part))
        return len(rows)

    def _take(
        self, peer: Peer, named: tuple[int, int], committed: int, started: int, now_ns: int
    ) -> bool:
        """Put one queue's words into the ledger; False if its lease is over."""
        queue, lease = named
        session = peer.session.session
        held = self._membership.held(session, queue, lease)
        if held is None:
            return False
        if committed != held[2].committed:
            self._membership.commit(session, queue, lease, committed)
        return self._start(peer, named, started, now_ns)

    def _start(self, peer: Peer, named: tuple[int, int], started: int, now_ns: int) -> bool:
        queue, lease = named
        progress = self._membership.start(peer.session.session, queue, lease, started)
        if progress is None:
            return False
        begun = peer.begun.setdefault(queue, Begun())
        begun.note(progress.committed, progress.started, now_ns, self._grain_ns)
        return True

    def _finish(self, peer: Peer, queue: int) -> int:
        """Put what is done with into the ledger; of how many ranges that was."""
        if queue not in peer.acked:
            return 0
        lease, bits = peer.acked[queue]
        held = self._membership.held(peer.session.session, queue, lease)
        if held is None:
            del peer.acked[queue]
            return 0
        done = ranges_of(bits, held[2].committed, held[2].started)
        self._membership.finish(held, done)
        return len(done)

    def commit(self, peer: Peer, request: groupwire.Commit, now_ns: int) -> Iterator[float]:
        """Take a request, and the words: who waits for the ledger means them as well.

        A generator, for it may name many queues; yields what each step costs.
        """
        if request.serial:
            yield from self.look_at_all(peer, now_ns)
        else:
            yield self.look(peer, now_ns)
        lost: dict[int, int] = {}
        for number, (queue, is_held) in enumerate(self._commits(peer, request, now_ns), 1):
            if not is_held:
                lost[queue] = request.leases.get(queue, 0)
            if number % ROWS_MAX == 0:
                yield COST_OF_WORDS * ROWS_MAX
        self.refuse(len(lost))
        if request.serial or lost:
            peer.outbox.append(groupwire.Committed(request.serial, lost))

    def _commits(
        self, peer: Peer, request: groupwire.Commit, now_ns: int
    ) -> Iterator[tuple[int, bool]]:
        """Take a request's queues, one after the other; False where the lease is over."""
        session = peer.session.session
        for queue, offset in request.offsets.items():
            lease = request.leases.get(queue, 0)
            yield queue, self._membership.commit(session, queue, lease, offset)
        for queue, offset in request.started.items():
            lease = request.leases.get(queue, 0)
            yield queue, self._start(peer, (queue, lease), offset, now_ns)
        for queue, done in request.done.items():
            held = self._membership.held(session, queue, request.leases.get(queue, 0))
            if held is not None:
                self._membership.finish(held, done)
            yield queue, held is not None

    def release(self, peer: Peer, request: groupwire.Released) -> None:
        """Take a queue back at the offset that its holder names last.

        What it is done with it was handed, though perhaps after the last look at its words: those
        are gone by now.
        """
        session = peer.session.session
        if request.offset >= 0:
            self._membership.commit(session, request.queue, request.lease, request.offset)
        held = self._membership.held(session, request.queue, request.lease)
        if held and request.done:
            end = max(end for _first, end in request.done)
            self._membership.start(session, request.queue, request.lease, end)
            self._membership.finish(held, request.done)
        peer.forget(request.queue)
        self._membership.release(session, request.queue, request.lease)

    def fail(self, peer: Peer, request: groupwire.Failed) -> None:
        """Count a failed delivery of a message that stays where it is."""
        attempts = self._membership.fail(peer.session.session, request)
        if attempts < 0:
            self.refuse(1)
            peer.outbox.append(groupwire.Committed(0, {request.queue: request.lease}))
            peer.outbox.append(groupwire.Refused(request.serial, "Evicted", LEASE_OVER))
            return
        answer = groupwire.Counted(request.serial, request.queue, request.offset, attempts)
        peer.outbox.append(answer)

    def stuck(self, peer: Peer, now_ns: int) -> int | None:
        """A queue whose oldest message was started longer than consume_timeout ago."""
        if now_ns < peer.stuck_from_ns:
            return None  # nothing that was started since can be
        oldest_ns = now_ns
        for queue, begun in peer.begun.items():
            since_ns = begun.since(now_ns)
            if now_ns - since_ns >= self._stall_ns:
                return queue
            oldest_ns = min(oldest_ns, since_ns)
        peer.stuck_from_ns = oldest_ns + self._stall_ns
        return None

    def has_others(self, peer: Peer) -> bool:
        """Whether others could take a session's queues."""
        groups, session = self._membership.groups, peer.session.session
        group = groups.get(self._membership.group_of.get(session, ""))
        return group is not None and len(group.members) > 1

    def refuse(self, count: int) -> None:
        """Count what was asked without a right to it."""
        if count:
            self.refused += count
            at = self._board.process_at(Role.GROUPS) + layout.PROCESS.offset("refused")
            self._board.set_word(at, self._board.word(at) + count)
