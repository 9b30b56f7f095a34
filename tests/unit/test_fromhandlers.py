"""Whose an error is: a signal handler's, or what our own calls raise."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import pytest

from gantrymq.shm.fromhandlers import Suppressed, is_ours, require_ours
from gantrymq.shm.jsontext import parse_object
from tests.support.trials import mends

Handler = Callable[..., None]


def fail() -> NoReturn:
    raise TimeoutError("a handler's")


class _Callable:
    def __call__(self, _number: int, _frame: object) -> None:
        fail()

    def method(self, *_given: object) -> None:
        fail()


HANDLERS: dict[str, Handler] = {
    "function": lambda _number, _frame: fail(),
    "any arguments": lambda *_given: fail(),
    "object": _Callable(),
    "method": _Callable().method,
    "partial": functools.partial(lambda _own, _number, _frame: fail(), "own"),
}


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def call(work: Callable[[], object]) -> bool:
    try:
        work()
    except OSError as error:
        return is_ours(error)
    raise AssertionError("nothing was raised")


@mends("S133")
@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.parametrize("depth", range(3))
def test_what_a_handler_raises_is_its_own(name: str, depth: int) -> None:
    work: Callable[[], object] = interrupt
    for _ in range(depth):
        work = functools.partial(lambda inner: inner(), work)
    with handled_by(HANDLERS[name]):
        assert not call(work)


@pytest.mark.parametrize("work", [fail, lambda: os.stat("/nowhere/at/all")])
def test_what_a_call_raises_is_ours(work: Callable[[], object]) -> None:
    assert call(work)


def test_a_handlers_comes_out_of_what_suppresses_the_same() -> None:
    with Suppressed(OSError):
        fail()
    with handled_by(HANDLERS["function"]), pytest.raises(TimeoutError), Suppressed(OSError):
        interrupt()


def test_what_is_raised_again_is_in_no_cycle() -> None:
    def again() -> None:
        try:
            interrupt()
        except OSError as error:
            require_ours(error)

    with handled_by(HANDLERS["function"]), pytest.raises(TimeoutError) as raised:
        again()
    frames = [entry.frame.f_locals for entry in raised.traceback if entry.name == "require_ours"]
    assert ["error" in one for one in frames] == [False]


class HandledAt:
    """`with` it: a handler raises as the n-th function of Python's begins, whoever's that is."""

    def __init__(self, number: int) -> None:
        self.left = number

    def _come(self, _frame: FrameType, _event: str, _value: object) -> None:
        self.left -= 1
        if self.left < 0:
            sys.settrace(None)
            raise ValueError("a handler's")

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._come)

    def __exit__(self, *_error: object) -> None:
        sys.settrace(self._before)


@mends("S142")
def test_what_a_handler_raises_amid_the_reading_of_json_is_its_own() -> None:
    number, is_left = 0, True
    taken_for_ours: list[int] = []
    while is_left:
        handled = HandledAt(number)
        try:
            with handled:
                assert parse_object(b'\xef\xbb\xbf{"a": 1.5}') == {"a": 1.5}
        except ValueError as error:
            taken_for_ours += [number] if is_ours(error) else []
        number, is_left = number + 1, handled.left < 0
    assert number > len(("parse_object", "parse_json", "decode", "_number"))
    assert not taken_for_ours
