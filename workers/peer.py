"""A session's end of things, as `groups` sees it: its lane, and what it is still to be told."""

from __future__ import annotations

from collections import deque

import numpy as np

from shm import groupwire, layout, limits
from shm.controllane import ControlLane, End
from shm.kernels import progress
from workers.session import Session

DISK_FULL = (
    "the disk of the store is full: offsets and shares are not stored; they are as soon as there is"
    " room, if the broker lives until then"
)
#: Notices that say nothing of what is stored.
_TRUE_ANYHOW = (groupwire.Refused, groupwire.Left)
_WORD_MAX = (1 << 64) - 1


class Peer:
    """One attached session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lane = ControlLane(session.arena, session.plan.groups, End.AGENT)
        self.outbox: deque[groupwire.AnyNotice] = deque()
        self.joined: list[int] = []  # serials to be answered once queues are dealt out
        self.slots_seen = np.zeros(progress.SLOT_WORDS * limits.PROGRESS_MAX, np.int64)
        self.stalled_since: dict[int, int] = {}  # queue -> when its oldest message was started

    @property
    def uses_words(self) -> bool:
        """Whether there may be offsets in the session's progress table."""
        at = layout.ARENA_PROGRESS_COUNT
        return bool(self.session.arena[at : at + 4].any())

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
            if isinstance(notice, groupwire.Committed | groupwire.Joined) and notice.serial:
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
