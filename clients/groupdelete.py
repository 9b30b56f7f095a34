"""An operator's hand on groups that are not wanted any more."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantrymq.clients.control import look_at
from gantrymq.clients.groupreset import ask_groups
from gantrymq.clients.session import Session
from gantrymq.shm import groupwire, wire
from gantrymq.shm.errors import Rejected

#: How long the answer of `groups` may take.
_ANSWER_NS: Final = 30_000_000_000
_SERIAL: Final = 1


@dataclass(frozen=True, slots=True)
class Deleted:
    """What went with a group: topics of its own."""

    group: str
    topics: list[str]


def delete_group(home: str | os.PathLike[str], group: str) -> Deleted:
    """Forget a group without members: how far it is, its entry, its retry topic.

    Its dead-letter topic goes if it is empty. Raises GroupIllegal while the group has members or is
    at work, Rejected if there is none, Timeout, BrokerGone, ...
    """
    session = Session(home, groups=True)
    try:
        request = groupwire.DeleteGroup(_SERIAL, group)
        answer = ask_groups(session, request, groupwire.GroupDeleted, _ANSWER_NS)
    finally:
        session.close()
    with look_at(Path(home)) as control:
        entry = control.request(wire.DeleteGroup(group), wire.GroupDeleted)
    if not (answer.known or entry.known or entry.topics):
        raise Rejected(f"there is no group {group}: `gantrymq group list` shows all", group=group)
    return Deleted(group, entry.topics)
