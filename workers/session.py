"""Sessions as an agent sees them: arenas to serve, and who has come or gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm.arena import ArenaPlan
from gantrymq.shm.bell import Bell

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """One client's (or broker agent's) arena, mapped, and the bell towards it."""

    session: int
    arena: NDArray[np.uint8]
    plan: ArenaPlan
    bell: Bell
    pid: int
    producer: bytes  # 10 bytes, or empty
    groups: bool = False
    scheduler: bool = False
    transactions: bool = False
    owner: int = 0  # Role of the agent whose own session it is; 0: a client's


@dataclass(frozen=True, slots=True)
class Attached:
    """A session to serve from now on."""

    session: Session


@dataclass(frozen=True, slots=True)
class Detached:
    """A session that is over; drop its arena."""

    session: int


class SessionTable(Protocol):
    """An agent's view of who is attached. After an agent's restart all are told again."""

    def poll(self) -> Sequence[Attached | Detached]:
        """What has changed since the last call."""
        ...

    def stopping(self) -> bool:
        """The supervisor wants a clean stop: finish what was accepted."""
        ...

    def cut_off(self, session: int, why: str) -> None:
        """Ask the supervisor to end a session that broke the rules."""
        ...

    def failed(self, errno: int, what: str) -> None:
        """Tell the supervisor that the store failed."""
        ...

    def note(self, level: str, event: str, **fields: object) -> None:
        """A line for the broker's log."""
        ...


def pass_turn(peers: dict[int, T], served: int) -> None:
    """Put the first so many sessions behind the others, whose turn comes next."""
    for number in list(islice(peers, served)):
        peers[number] = peers.pop(number)


def follow(table: SessionTable, clients: dict[int, Session]) -> None:
    """Keep `clients` (by session id) at who is attached now."""
    for event in table.poll():
        if isinstance(event, Attached):
            clients[event.session.session] = event.session
        else:
            clients.pop(event.session, None)
