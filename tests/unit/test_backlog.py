"""What waits for the broker: who comes later is told why it waits, too."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.clients.backlog import SENDS_MAX, Backlog
from gantrymq.clients.session import NEVER_NS
from gantrymq.shm.errors import BrokerGone, GantryError, QueueFull
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S, poll_until


@mends("S73")
@pytest.mark.parametrize(
    ("is_live", "kind", "text"),
    [(True, QueueFull, "still being handed over"), (False, BrokerGone, "the broker is away")],
)
def test_who_waits_behind_others_is_told_whether_the_broker_is_there(
    is_live: bool, kind: type[GantryError], text: str
) -> None:
    goes_on = threading.Event()

    def put(_seconds: float) -> None:
        assert goes_on.wait(PATIENCE_S)

    link: Any = SimpleNamespace(session=SimpleNamespace(is_live=is_live), fast=None)
    backlog = Backlog(link)
    for _ in range(SENDS_MAX):
        backlog.add(put, None, "t", 1, NEVER_NS)
    with pytest.raises(QueueFull, match=text):
        backlog.add(put, None, "t", 1, NEVER_NS)
    with pytest.raises(kind, match=text):
        backlog.wait(0)
    goes_on.set()
    poll_until(lambda: not backlog, "all are handed over")
