"""A session's end of things, as `groups` sees it: its lane, and what it is still to be told."""

from __future__ import annotations

from collections import deque

from shm import groupwire, layout
from shm.controllane import ControlLane, End
from workers.session import Session

_WORD_MAX = (1 << 64) - 1


class Peer:
    """One attached session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lane = ControlLane(session.arena, session.plan.groups, End.AGENT)
        self.outbox: deque[groupwire.AnyNotice] = deque()
        self.joined: list[int] = []  # serials to be answered once queues are dealt out
        self.stalled_since: dict[int, int] = {}  # queue -> when its oldest message was started

    def adopt(self) -> bool:
        """Count this takeover in the lane; True if another `groups` served it before."""
        at = self.session.plan.groups.control + layout.LANE_ADOPTED
        before = int(self.session.arena[at : at + 8].view("<u8")[0])
        self.session.arena[at : at + 8].view("<u8")[0] = (
            before + 1
        ) & _WORD_MAX  # it may be garbage
        return before > 0

    def bump_revoked(self) -> None:
        """Tell the client's hot path that there is a notice to read first."""
        word = self.session.arena[layout.ARENA_REVOKED : layout.ARENA_REVOKED + 8].view("<u8")
        word[0] += 1
