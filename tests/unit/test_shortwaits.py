"""No wait of the main thread leaves a sleep without an end to C: shortwaits says why."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from gantrymq.clients import shortwaits
from gantrymq.clients.push import consumer as consumermodule
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.shortwaits import LOOK_S, join, start, take
from tests.support.interrupts import Interrupt, Interrupted, InterruptedAsAnError
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S

SLEEPS = 3


class Queue(SimpleQueue[str]):
    """Has something at the fourth look only; `slept` says how long each sleep might have been."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def get(self, block: bool = True, timeout: float | None = None) -> str:
        assert block
        assert timeout is not None
        self.slept.append(timeout)
        if len(self.slept) <= SLEEPS:
            raise Empty
        return "it"


class Thread(threading.Thread):
    """Ends at the fourth look only."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def is_alive(self) -> bool:
        return len(self.slept) < SLEEPS

    def join(self, timeout: float | None = None) -> None:
        assert timeout is not None
        self.slept.append(timeout)


@mends("S93")
def test_waits_wake_up_to_hear() -> None:
    queue, thread = Queue(), Thread()
    assert take(queue) == "it"
    assert queue.slept == [LOOK_S] * (SLEEPS + 1)
    join(thread)
    assert thread.slept == [LOOK_S] * SLEEPS


@mends("S93")
def test_run_waits_so(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(consumermodule, "take", taken.append)
    monkeypatch.setattr(PushConsumer, "start", lambda of: setattr(of, "_dispatcher", True))
    monkeypatch.setattr(PushConsumer, "stop", lambda _consumer: None)
    consumer = PushConsumer("g", {"t": "*"}, lambda _message: None)
    consumer.run()
    assert taken == [consumer._events]


class Late(threading.Thread):
    """It does not begin before whoever starts it waits for that, or has been broken off."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.is_given_up = False

    def _bootstrap_inner(self) -> None:
        inner: Any = super()
        started: Any = vars(self)["_started"]
        while not started._cond._waiters and not self.is_given_up:
            os.sched_yield()
        inner._bootstrap_inner()


@mends("S99")
def test_what_a_handler_raises_as_a_thread_starts_is_what_comes_out() -> None:
    """Also amid the wait for it, where CPython would let go of a lock twice."""
    places, number, is_left = set(), 0, True
    while is_left:
        thread = Late()
        interrupt = Interrupt(number)
        raised = False
        with interrupt:
            try:
                start(thread)
            except Interrupted:
                raised = True
        thread.is_given_up = True
        assert raised == interrupt.was_hit, interrupt.place
        places.add(interrupt.place.partition(":")[0])
        number, is_left = number + 1, interrupt.was_hit
        if thread.ident is not None:
            thread.join()
    assert "take" in places


class Begun(threading.Thread):
    """Says so once Python has noted that it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.has_begun = threading.Event()

    def run(self) -> None:
        self.has_begun.set()


@mends("S144")
def test_a_handler_that_raises_as_the_new_thread_runs_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`Thread.start` takes what is raised there for a thread that did not begin, and forgets it."""
    begin: Any = vars(threading)["_start_new_thread"]
    thread = Begun()

    def begin_and_handle(*given: Any) -> Any:  # noqa: ANN401
        number = begin(*given)
        thread.has_begun.wait()
        if threading.current_thread() is threading.main_thread():
            raise TimeoutError("a handler's")  # none runs elsewhere
        return number

    monkeypatch.setattr(threading, "_start_new_thread", begin_and_handle)
    with suppress(TimeoutError):
        start(thread)
    assert thread.has_begun.is_set()
    thread.join()
    assert thread not in threading.enumerate()


@mends("S144")
def test_what_a_handler_raises_ends_no_thread(recwarn: pytest.WarningsRecorder) -> None:
    """One that Python has forgotten would end by KeyError as it begins."""
    number, is_left, begun = 0, True, 0
    while is_left:
        thread = Begun()
        interrupt = Interrupt(number, kind=InterruptedAsAnError)
        with interrupt:
            start(thread)
        if "take" in interrupt.place or not interrupt.was_hit:
            assert thread.has_begun.wait(PATIENCE_S)
            thread.join()
            begun += 1
        number, is_left = number + 1, interrupt.was_hit
    assert begun > 1
    assert not recwarn.list


def test_a_thread_that_cannot_be_started_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("can't start new thread")

    thread = threading.Thread(target=lambda: None)
    monkeypatch.setattr(thread, "start", fail)
    with pytest.raises(RuntimeError, match="can't start"):
        start(thread)


@mends("S151")
def test_a_thread_that_dies_before_its_first_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython tells nobody of it: here it never runs."""
    monkeypatch.setattr(shortwaits, "start_new_thread", lambda _act, _given: 1)
    monkeypatch.setattr(shortwaits, "START_S", 0.0)
    monkeypatch.setattr(shortwaits, "LOOK_S", 0.001)
    with pytest.raises(RuntimeError, match="thread gone does not begin: memory is short"):
        start(threading.Thread(name="gone", target=lambda: None))
