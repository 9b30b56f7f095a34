"""Handlers of signals that come back, and forks beside threads that do not come about."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from gantrymq.brokerd.children import fork_child
from gantrymq.clients.signals import heard
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import GantryError
from tests.support.trials import mends

SET, GET = signal.signal, signal.getsignal


#: A start that Python is amid a callback of its own when a signal comes; the argument is its end.
STARTS = """
import signal, sys, weakref
from gantrymq.brokerd.signals import Interrupted, Signals

dropped, told = [], []
sys.unraisablehook = lambda what: dropped.append(type(what.exc_value))
signals = Signals()
tell = signals.telling(lambda _done, _total, what: told.append(what))
tell(0, 1, "before")
thing = set()
known = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
del thing
assert dropped == [Interrupted], dropped
try:
    tell(1, 1, "behind") if sys.argv[1] == "progress" else signals.hold()
except Interrupted as error:
    print(error, told)
"""


@mends("S321")
@pytest.mark.parametrize("ended_by", ["progress", "hold"])
def test_a_signal_amid_a_callback_of_pythons_own_ends_a_start_later(ended_by: str) -> None:
    """Python drops what is raised there; all further signals were ignored from then on."""
    start = [sys.executable, "-c", STARTS, ended_by]
    ran = subprocess.run(start, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("SIGTERM ['before']\n", "")


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
