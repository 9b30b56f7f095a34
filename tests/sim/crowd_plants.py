"""Known leaks that can be put into a run of tests.sim.crowds."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.brokerd.lanes import LaneTable
from gantrymq.workers.transactions.desk import Desk
from tests.sim.plants import put_over


def sessions_kept() -> None:
    """The txn-checker never forgets a session, nor does the writer its lane."""
    put_over(Desk, "detach", lambda *_: None)
    put_over(LaneTable, "remove", lambda *_: None)


PLANTS: dict[str, Callable[[], None]] = {sessions_kept.__name__: sessions_kept}
