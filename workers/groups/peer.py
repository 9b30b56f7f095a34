"""A session's end of things, as `groups` sees it: its lane, and what it is still to be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import groupwire, layout, limits
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.kernels import progress
from gantrymq.workers.session import Session

DISK_FULL = (
    "the disk of the store is full: offsets and shares are not stored; they are as soon as there is"
    " room, if the broker lives until then"
)
#: Of what an operator asks for meanwhile: it is not begun.
NOT_BEGUN = "the disk of the store is full, and nothing was changed: make room, and ask again"
#: Answers that say that something is stored.
_SAY_STORED = (groupwire.Committed, groupwire.Joined, groupwire.WasReset, groupwire.GroupDeleted)
#: Notices that say nothing of what is stored.
_TRUE_ANYHOW = (groupwire.Refused, groupwire.Left)
_WORD_MAX = (1 << 64) - 1


class Begun:
    """When messages of a queue were started, to the grain of a look's marks."""

    def __init__(self) -> None:
        self._marks: deque[list[int]] = deque()  # end, when it was reached last, and first

    def note(self, committed: int, started: int, now_ns: int, grain_ns: int) -> None:
        """What a look has seen; marks closer than the grain are one, at the later time."""
        if self._marks and self._marks[-1][0] > started:
            self._marks.clear()  # a seek
        while self._marks and self._marks[0][0] <= committed:
            self._marks.popleft()
        end = self._marks[-1][0] if self._marks else committed
        if started <= end:
            return
        if self._marks and now_ns - self._marks[-1][2] < grain_ns:
            self._marks[-1][:2] = started, now_ns
        else:
            self._marks.append([started, now_ns, now_ns])

    def since(self, now_ns: int) -> int:
        """When the oldest message that is not done with was started; now if there is none."""
        return self._marks[0][1] if self._marks else now_ns


class Taken:
    """Sessions whose requests were taken; they stay in the rings until all is in the ledger.

    Otherwise a successor of this process would answer what stands behind those that died with it.
    """

    def __init__(self) -> None:
        self._peers: dict[Peer, None] = {}

    def add(self, peer: Peer) -> None:
        """A request of this session was taken."""
        self._peers[peer] = None

    def publish(self, *, stored: bool) -> None:
        """Give the rings' room back. While nothing can be stored only to who is short of it.

        It has to hear that it is refused; what it put before may be lost then with this process.
        """
        for peer in list(self._peers):
            lane = peer.lane
            if peer.work is not None:
                continue  # a successor of this process begins with it anew
            if stored or 4 * lane.unpublished_bytes > lane.plan.up_bytes:
                if lane.publish_taken():
                    peer.session.bell.ring()
                del self._peers[peer]


class Peer:
    """One attached session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lane = ControlLane(session.arena, session.plan.groups, End.AGENT)
        self.outbox: deque[groupwire.AnyNotice] = deque()
        self.joined: list[int] = []  # serials to be answered once queues are dealt out
        self._slots_seen = np.empty(0, np.int64)
        self.begun: dict[int, Begun] = {}  # queue -> when its messages were started
        #: Words that say what is done with above `committed`: queue -> (lease, bits).
        self.acked: dict[int, tuple[int, int]] = {}
        #: Queues of `acked` whose bits are on their way into the ledger.
        self.unfinished: dict[int, None] = {}
        #: Words that were looked at and have not been taken yet.
        self.rows: NDArray[np.int64] = np.empty((0, progress.SLOT_WORDS), np.int64)
        #: What is left of a request that goes over several cycles: steps that yield their cost.
        self.work: Iterator[float] | None = None
        self.serial = 0  # of that request
        self.stuck_from_ns = 0  # before that no message can be stuck
        self.stuck = (-1, -1)  # queue and offset that were reported last
        self.acked_ns = 0  # when they went into the ledger last
        self._end_at = -1  # ended by its client: where its last request ends at most
        self.is_over = False  # nothing of it is heard any more
        self.believed = True  # False: what its words say has ended agents

    @property
    def uses_words(self) -> bool:
        """Whether there may be offsets in the session's progress table."""
        at = layout.ARENA_PROGRESS_COUNT
        return bool(self.session.arena[at : at + 4].any())

    @property
    def slots_seen(self) -> NDArray[np.int64]:
        """What was seen of the slots of the progress table; room for those that are used.

        Few sessions have many queues, and many end before they have one.
        """
        at = layout.ARENA_PROGRESS_COUNT
        used = int.from_bytes(self.session.arena[at : at + 4].tobytes(), "little")
        words = progress.SLOT_WORDS * min(used, limits.PROGRESS_MAX)
        if words > len(self._slots_seen):
            room = np.zeros(max(words, 2 * len(self._slots_seen)), np.int64)
            room[: len(self._slots_seen)] = self._slots_seen
            self._slots_seen = room[: progress.SLOT_WORDS * limits.PROGRESS_MAX]
        return self._slots_seen

    def forget(self, queue: int) -> None:
        """It has given a queue back: what was seen of that means nothing any more."""
        self.begun.pop(queue, None)
        self.acked.pop(queue, None)
        if len(self.rows):
            self.rows = self.rows[self.rows[:, progress.QUEUE] != queue]

    @property
    def ended(self) -> bool:
        """Whether its client has ended it: of its requests only what was done before counts."""
        return self._end_at >= 0

    def end(self) -> None:
        """Its client has ended it; what is put into the ring from now on is not heard."""
        self._end_at = self.lane.seen + self.lane.plan.up_bytes

    @property
    def is_heard(self) -> bool:
        """Whether a request of it may be taken."""
        return not self.is_over and (self._end_at < 0 or self.lane.seen < self._end_at)

    @property
    def has_more(self) -> bool:
        """Whether there is a request to be taken, or to go on with."""
        return self.work is not None or (self.is_heard and self.lane.has_more)

    def adopt(self) -> bool:
        """Count this takeover in the lane; True if another `groups` served it before."""
        at = self.session.plan.groups.control + layout.LANE_ADOPTED
        before = int(self.session.arena[at : at + 8].view("<u8")[0])
        self.session.arena[at : at + 8].view("<u8")[0] = (
            before + 1
        ) & _WORD_MAX  # it may be garbage
        return before > 0

    def hold_back(self) -> None:
        """Nothing can be stored: refuse what would say that it is, keep the rest for later.

        What may be told nevertheless comes first.
        """
        told: list[groupwire.AnyNotice] = []
        kept: list[groupwire.AnyNotice] = []
        for notice in self.outbox:
            if isinstance(notice, _SAY_STORED) and notice.serial:
                told.append(groupwire.Refused(notice.serial, "DiskFull", DISK_FULL))
            else:
                (told if isinstance(notice, _TRUE_ANYHOW) else kept).append(notice)
        self.outbox = deque(told + kept)

    def take_notice(self, *, stored: bool) -> groupwire.AnyNotice | None:
        """The next notice if it may be told; `stored`: all changes are in the ledger."""
        if not self.outbox or not (stored or isinstance(self.outbox[0], _TRUE_ANYHOW)):
            return None
        return self.outbox[0]

    def bump_revoked(self) -> None:
        """Tell the client's hot path that there is a notice to read first."""
        word = self.session.arena[layout.ARENA_REVOKED : layout.ARENA_REVOKED + 8].view("<u8")
        word[0] += 1
