"""A receipt's future is decided once, whoever looks at the same time, and whatever callbacks do."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from gantrymq.clients.receipts import Page, Pending
from gantrymq.shm.codes import Status
from gantrymq.shm.errors import BrokerGone, Closed, MessageIllegal
from gantrymq.shm.kernels import frames
from tests.support.trials import mends

SEQ = 5


class _Met(Pending[str]):
    """Lets threads meet where one has seen that it is pending and has not yet decided it."""

    meet = threading.Barrier(1)

    def _outcome(self) -> str:
        self.meet.wait()
        return threading.current_thread().name

    def _refusal(self, status: Status) -> BaseException:
        self.meet.wait()
        return MessageIllegal(status.name)


def _pending(threads: int, status: Status = Status.OK) -> _Met:
    future = _Met()
    future._page = Page(_Nobody())  # type: ignore[arg-type]
    future._seq, future._topic, future.meet = SEQ, "t", threading.Barrier(threads)
    at = SEQ * frames.COMPLETION_WORDS
    future._page.words[at], future._page.words[at + frames.OUT_STATUS] = SEQ, status
    return future


class _Nobody:
    """Completions are there; nobody has to be asked for them."""

    def watch(self, _receipt: Pending[Any]) -> None:
        """Let the threads of a test decide it."""

    def look(self) -> None:
        """All has come."""


@mends("H7")
@pytest.mark.parametrize("status", [Status.OK, Status.ILLEGAL_SIZE])
def test_threads_that_decide_at_once_agree_and_call_back_once(status: Status) -> None:
    future, told = _pending(4, status), list[object]()
    future.add_done_callback(told.append)
    with ThreadPoolExecutor(4) as pool:
        assert [asked.result() for asked in [pool.submit(future.settle) for _ in range(4)]] == [
            True
        ] * 4
    assert told == [future]
    assert (future.exception(0) is None) == (status == Status.OK)
    if status == Status.OK:
        assert future.result(0) == future.result(0)


@mends("S250")
@pytest.mark.parametrize("timeout", [None, 30.0, 30])
def test_a_result_that_is_there_takes_few_calls(timeout: float | None) -> None:
    """It is asked for once a message: judging its timeout is two calls of Python's."""
    future, calls = _pending(1), list[str]()
    future.settle()

    def note(frame: FrameType, event: str, _what: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        future.result(timeout)
    finally:
        sys.setprofile(None)
    assert len(calls) <= {type(None): 2, float: 4, int: 7}[type(timeout)], calls


@mends("H7")
def test_what_is_decided_stays_so() -> None:
    """A watcher that gives up and a completion may come at the same time."""
    future = _pending(1)
    assert future.settle()
    future.set_exception(BrokerGone("too late"))
    assert future.exception(0) is None
    failed, told = _pending(1), list[object]()
    failed.add_done_callback(told.append)
    failed.set_exception(Closed("first"))
    failed.set_exception(BrokerGone("second"))
    assert failed.settle()
    with pytest.raises(Closed, match="first"):
        failed.result(0)
    assert told == [failed]


@mends("H7")
@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_all_callbacks_are_called_though_one_raises(error: type[BaseException]) -> None:
    future, told = _pending(1), list[object]()

    def fail(_future: object) -> None:
        raise error("of a callback")

    future.add_done_callback(fail)
    future.add_done_callback(told.append)
    if issubclass(error, Exception):
        assert future.settle()
    else:
        with pytest.raises(error):
            future.settle()
    assert told == [future]
    assert future.done()
