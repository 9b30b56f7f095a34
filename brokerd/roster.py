"""Who is in which group, as `groups` says it: for those who look, nothing depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gantrymq.shm import wire

if TYPE_CHECKING:
    from gantrymq.brokerd.sessions import Sessions
    from gantrymq.shm.clock import Clock


class Roster:
    """Members by session. It outlives a `groups` that dies: its successor says who is there."""

    def __init__(self, sessions: Sessions, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._members: dict[int, wire.Member] = {}

    def joined(self, said: Mapping[str, Any]) -> None:
        """A session has joined, or said again what it wants; nothing if it has ended meanwhile."""
        record = self._sessions.get(said["session"])
        if record is None:
            return
        known = self._members.get(record.session)
        again = known is not None and known.group == said["group"]
        joined_ms = known.joined_ms if known and again else self._clock.wall_ms()
        whole = {**said, "pid": record.pid, "joined_ms": joined_ms}
        self._members[record.session] = msgspec.convert(whole, wire.Member)

    def left(self, session: int) -> None:
        """A session is a member no more."""
        self._members.pop(session, None)

    def page(self, group: str, after: int) -> wire.Members:
        """Members of a group, of all for "", by session, from the one behind `after` on."""
        found = [
            member
            for session, member in sorted(self._members.items())
            if session > after and group in ("", member.group)
        ]
        most = wire.MEMBERS_PER_FRAME
        return wire.Members(found[:most], len(found) > most)
