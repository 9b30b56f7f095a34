"""What sessions say of their queues, put into the ledger if they hold them.

Offsets come as words of the arena, which are looked at in every cycle and cost a session nothing,
or in a request: for queues beyond the progress table, and where a session waits for the ledger.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shm import groupwire, layout, limits
from shm.board import Board
from shm.codes import Role
from shm.kernels import progress
from workers.membership import Membership
from workers.peer import Peer

#: A session's words are looked at this often if nobody rings.
LOOK_NS: Final = 500_000_000
#: Queues in one notice about words: it has to fit into half of the ring.
LOST_PER_NOTICE: Final = 64


class Reports:
    """Judges reports; see the module."""

    def __init__(self, membership: Membership, board: Board) -> None:
        self.refused = 0
        self._membership = membership
        self._board = board
        self._found = np.zeros(progress.SLOT_WORDS * limits.PROGRESS_MAX, np.int64)

    def look(self, peer: Peer, now_ns: int) -> None:
        """Take what a session's words say since the last look."""
        count = progress.changed_slots(peer.session.arena, peer.slots_seen, self._found)
        if not count:
            return
        numbers = self._found[: count * progress.SLOT_WORDS].reshape(count, -1).tolist()
        lost = {
            queue: lease
            for lease, queue, committed, started in numbers
            if not self._take(peer, (queue, lease), committed, started, now_ns)
        }
        self.refuse(len(lost))
        items = list(lost.items())
        for at in range(0, len(items), LOST_PER_NOTICE):
            part = dict(items[at : at + LOST_PER_NOTICE])
            peer.outbox.append(groupwire.Committed(0, part))

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
            peer.stalled_since.pop(queue, None)
            self._membership.commit(session, queue, lease, committed)
        self._start(peer, named, started, now_ns)
        return True

    def _start(self, peer: Peer, named: tuple[int, int], started: int, now_ns: int) -> bool:
        queue, lease = named
        progress = self._membership.start(peer.session.session, queue, lease, started)
        if progress is None:
            return False
        if progress.started > progress.committed:
            peer.stalled_since.setdefault(queue, now_ns)
        return True

    def commit(self, peer: Peer, request: groupwire.Commit, now_ns: int) -> None:
        """Take a request, and the words: who waits for the ledger means them as well."""
        self.look(peer, now_ns)
        session = peer.session.session
        lost: dict[int, int] = {}
        for queue, offset in request.offsets.items():
            lease = request.leases.get(queue, 0)
            peer.stalled_since.pop(queue, None)
            if not self._membership.commit(session, queue, lease, offset):
                lost[queue] = lease
        for queue, offset in request.started.items():
            lease = request.leases.get(queue, 0)
            if not self._start(peer, (queue, lease), offset, now_ns):
                lost[queue] = lease
        self.refuse(len(lost))
        if request.serial or lost:
            peer.outbox.append(groupwire.Committed(request.serial, lost))

    def release(self, peer: Peer, request: groupwire.Released) -> None:
        """Take a queue back at the offset that its holder names last."""
        session = peer.session.session
        if request.offset >= 0:
            self._membership.commit(session, request.queue, request.lease, request.offset)
        peer.stalled_since.pop(request.queue, None)
        self._membership.release(session, request.queue, request.lease)

    def is_stalled(self, peer: Peer, now_ns: int, stall_ns: int) -> bool:
        """Whether a message was started too long ago, and others could take the queue."""
        since = min(peer.stalled_since.values(), default=now_ns)
        if now_ns - since < stall_ns:
            return False
        groups, session = self._membership.groups, peer.session.session
        group = groups.get(self._membership.group_of.get(session, ""))
        return group is not None and len(group.members) > 1

    def refuse(self, count: int) -> None:
        """Count what was asked without a right to it."""
        if count:
            self.refused += count
            at = self._board.process_at(Role.GROUPS) + layout.PROCESS.offset("refused")
            self._board.set_word(at, self._board.word(at) + count)
