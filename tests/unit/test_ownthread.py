"""A client's own thread lives through what is raised in it, and is begun again if it never ran."""

from __future__ import annotations

import threading

import pytest

from gantrymq.clients.ownthread import OwnThread
from tests.support.trials import mends
from tests.support.watchdog import poll_until


class Work:
    """Numbers to be taken in their order by a helper, one a step."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.left: list[int] = []
        self.done: list[int] = []
        self.helper = OwnThread("helper", self.lock, lambda: bool(self.left), self.step)

    def add(self, number: int) -> None:
        """Begin, then add."""
        with self.lock:
            self.helper.begin()
            self.left.append(number)

    def step(self) -> None:
        """Negative numbers end a thread that lets itself be ended."""
        number = self.left.pop(0)
        self.done.append(number)
        if number < 0:
            raise SystemExit(number)


@mends("S70")
def test_what_is_raised_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    with work.lock:
        for number in (-1, 2):
            work.add(number)
    poll_until(lambda: work.done == [-1, 2], "all is done")
    assert "helper goes on" in caplog.text


@mends("S70")
@pytest.mark.parametrize("has_started", [False, True])
def test_a_start_that_was_interrupted_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch, has_started: bool
) -> None:
    """A handler raises before or amid the start: what is added later has one thread, no more."""

    class Interrupted(threading.Thread):
        def start(self) -> None:
            monkeypatch.undo()
            if has_started:
                super().start()
            raise KeyboardInterrupt

    work = Work()
    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        work.add(1)
    assert work.left == []
    for number in range(2, 5):
        work.add(number)
    poll_until(lambda: work.done == [2, 3, 4], "what comes later is done")
    poll_until(lambda: not _helpers(), "it ends")


def _helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "helper"]
