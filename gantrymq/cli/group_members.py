"""Who is in a group, as the supervisor knows it. Needs no parser of options."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from gantrymq.cli.leave import complain
from gantrymq.cli.records import local_time
from gantrymq.clients.control import look_at
from gantrymq.shm import wire
from gantrymq.shm.errors import GantryError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_CHARACTERS: Final = 60
_ANSWER_S: Final = 3.0


def members_of(home: Path, group: str = "") -> list[wire.Member]:
    """Members of a group, of all for "", by session.

    Those that are known, with a word to standard error, if the supervisor does not answer soon:
    what else there is to be seen needs no answer.
    """
    found: list[wire.Member] = []
    try:
        with look_at(home, _ANSWER_S) as control:
            more = True
            while more:
                after = found[-1].session if found else 0
                answer = control.request(wire.ShowMembers(group, after), wire.Members)
                found += answer.members
                more = answer.more
    except (GantryError, OSError) as error:
        complain(f"{error}; members without queues are not shown")
    return found


def member_rows(members: Iterable[wire.Member], holders: Iterable[int]) -> list[dict[str, Any]]:
    """A row for each member; `holders` are the sessions that own queues, one for each queue.

    A holder that is no member has just ended: its queues are about to go to others.
    """
    held = Counter(holders)
    rows = {member.session: _row(member, held[member.session]) for member in members}
    for session in held.keys() - rows.keys():
        rows[session] = dict.fromkeys(_FIELDS) | {
            "session": session,
            "queues": held[session],
        }
    return [rows[session] for session in sorted(rows)]


_FIELDS: Final = (
    "session", "pid", "queues", "by_hand", "joined_ms", "subscription", "orderly", "max_attempts",
    "assignment",
)  # fmt: skip


def _row(member: wire.Member, queues: int) -> dict[str, Any]:
    return {
        "session": member.session,
        "pid": member.pid,
        "queues": queues,
        "by_hand": member.by_hand,
        "joined_ms": member.joined_ms,
        "subscription": member.subscription,
        "orderly": member.orderly,
        "max_attempts": member.max_attempts or None,
        "assignment": member.assignment or None,
    }


def member_for_people(row: dict[str, Any]) -> dict[str, Any]:
    """What of a row fits into a line."""
    text = row["subscription"] or "-"
    line = "".join(c if c.isprintable() else " " for c in text)
    joined_ms = row["joined_ms"]
    return {
        "session": row["session"],
        "pid": row["pid"] or "-",
        "queues": row["queues"],
        "joined": "-" if joined_ms is None else local_time(joined_ms),
        "subscription": line if len(line) <= _CHARACTERS else line[: _CHARACTERS - 3] + "...",
    }
