"""Handlers of signals that come back, and forks beside threads that do not come about."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from gantrymq.brokerd.children import fork_child
from gantrymq.brokerd.signals import Interrupted, Signals
from gantrymq.clients.signals import heard
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import GantryError
from tests.support.trials import mends

SET, GET = signal.signal, signal.getsignal


@pytest.fixture
def own_signals() -> Iterator[None]:
    """What the test sets of them is taken back."""
    before = {number: GET(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        SET(number, handler)


@mends("S321")
@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("ended_by", ["progress", "hold"])
def test_a_signal_amid_a_callback_of_pythons_own_ends_a_start_later(
    monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    """Python drops what is raised there; all further signals were ignored from then on."""
    dropped: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda what: dropped.append(what.exc_value))
    signals, told = Signals(), list[str]()
    tell = signals.telling(lambda _done, _total, what: told.append(what))
    tell(0, 1, "before")
    thing = set[int]()
    known = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
    del thing
    assert known() is None
    assert [type(error) for error in dropped] == [Interrupted]
    with pytest.raises(Interrupted, match="SIGTERM"):
        tell(1, 1, "behind") if ended_by == "progress" else signals.hold()
    assert told == ["before"]


@mends("H10.2")
def test_a_handler_that_python_does_not_know_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a program in C has set one before it began Python: Python shows None for it."""
    touched: list[int] = []

    def get(number: int) -> Any:  # noqa: ANN401
        return None if number == signal.SIGTERM else GET(number)

    def replace(number: int, handler: Any) -> Any:  # noqa: ANN401
        if handler is None:
            raise TypeError("signal handler must be signal.SIG_IGN, SIG_DFL, or a callable object")
        touched.append(number)
        before = SET(number, handler)
        return None if number == signal.SIGTERM else before

    monkeypatch.setattr(signal, "getsignal", get)
    monkeypatch.setattr(signal, "signal", replace)
    before = GET(signal.SIGINT)
    kept = GET(signal.SIGTERM)
    try:
        with heard(lambda: None):
            assert GET(signal.SIGINT) is not before
        assert GET(signal.SIGINT) is before
        assert GET(signal.SIGTERM) is kept
        assert signal.SIGTERM not in touched
    finally:
        SET(signal.SIGINT, before)
        SET(signal.SIGTERM, kept)


def test_handlers_come_back() -> None:
    def mine(_number: int, _frame: FrameType | None) -> None: ...

    before = [SET(number, mine) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        with heard(lambda: None):
            assert GET(signal.SIGTERM) is not mine
        assert GET(signal.SIGTERM) is GET(signal.SIGINT) is mine
    finally:
        SET(signal.SIGTERM, before[0])
        SET(signal.SIGINT, before[1])


@mends("H10.3")
def test_agents_are_not_forked_beside_a_thread() -> None:
    """Also where Python drops what is asserted."""
    go_on = threading.Event()
    beside = threading.Thread(target=go_on.wait)
    beside.start()
    gc.collect()  # what agents of other tests have left would go amid this one
    children = os.listdir("/proc/self/fd")
    try:
        with pytest.raises(GantryError, match="one thread only, and this process has"):
            fork_child([Role.WRITER], None, [])  # type: ignore[arg-type]
    finally:
        go_on.set()
        beside.join()
    assert len(os.listdir("/proc/self/fd")) == len(children)
