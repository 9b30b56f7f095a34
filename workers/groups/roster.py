"""Telling the supervisor who is in which group: it answers those who ask, and `groups` works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.shm import wire

if TYPE_CHECKING:
    from gantrymq.shm.groupwire import Join
    from gantrymq.workers.groups.membership import Topics
    from gantrymq.workers.session import SessionTable


def tell_joined(sessions: SessionTable, session: int, request: Join, topics: Topics) -> None:
    """A session is a member now, or has changed what it wants."""
    named = ", ".join(sorted(topics.by_slot[slot].name for slot in request.topics))
    sessions.note(
        "debug",
        wire.GROUP_JOINED,
        group=request.group,
        session=session,
        subscription=(request.subscription or named)[: wire.MEMBER_CHARACTERS],
        orderly=request.orderly,
        max_attempts=request.max_attempts,
        assignment=request.assignment,
        by_hand=request.queues is not None,
    )


def tell_left(sessions: SessionTable, session: int) -> None:
    """A session is a member no more, though it goes on."""
    sessions.note("debug", wire.GROUP_LEFT, session=session)
