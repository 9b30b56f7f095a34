"""Threads of a client that wait on one session: whose sleep ends when."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

import pytest

from gantrymq.clients.session import NEVER_NS, Session
from gantrymq.shm.bell import EventBell


class Asleep(Session):
    """A session of which nothing but waiting is there."""

    def __init__(self) -> None:
        self.bell = EventBell()
        self.is_open = True
        self._turn = threading.RLock()
        self._beside = deque()
        self._poller = self._turns = 0
        self.asked = 0  # how often somebody has slept on the bell

    def check(self) -> None:
        """It is never over."""

    def _readable(self, timeout_ns: int, *, amid: bool = False) -> list[int]:
        self.asked += 1
        assert self.asked == 1, "sleeps on a ring that another has taken"
        return [self.bell.descriptor]


@pytest.fixture(name="session")
def session_fixture() -> Iterator[Asleep]:
    session = Asleep()
    yield session
    session.bell.close()


def test_a_ring_that_another_thread_takes_between_a_look_and_the_sleep_is_no_loss(
    session: Asleep,
) -> None:
    """Both wait for something; the one ring that comes is for both."""
    there: list[str] = []

    def another() -> None:
        assert session.wait(NEVER_NS, lambda: session.asked > 0)

    def look() -> bool:
        found = bool(there)
        if not found:  # it comes behind the look, and the other thread wakes of its ring
            there.append("what this thread waits for")
            session.bell.ring()
            thread = threading.Thread(target=another)
            thread.start()
            thread.join()
        return found

    assert session.wait(NEVER_NS, look)
