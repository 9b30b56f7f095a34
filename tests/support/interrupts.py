"""Exceptions as a signal handler raises them, at the n-th place where one may come."""

from __future__ import annotations

import contextlib
import dis
import gc
import os
import random
import re
import sys
import threading
from collections.abc import Callable
from functools import cache
from itertools import cycle
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, Self

import pytest

from tests.support.tree import ROOT

#: CPython looks for signals as a function begins, behind a call of what is no Python function, and
#: as a loop goes back. So an exception comes nowhere else. The `__exit__` of a `with` is a bound
#: method there, which is no function.
_LOOKS: Final = frozenset(
    number
    for name, number in dis.opmap.items()
    if name.startswith(("CALL", "PRECALL", "JUMP_BACKWARD"))
)
_CALL: Final = dis.opmap["CALL"]
#: Files that are interrupted: the client's, and what Python has in Python for its `with`.
_FILES: Final = (str(ROOT / "gantrymq"), contextlib.__file__, threading.__file__)
#: Functions at whose places a lock is taken, held while something is waited for, or let go.
LOCKING: Final = (
    r"Turn\.|Condition\.|_GeneratorContextManager\.|Session\._(sleep|tell|await)|_take$|_await$"
    r"|WriterLink\._(unlocked|replace|try_to_replace)|Pending\._tell"
)


#: Of the first places each so-manieth is tried, of later ones fewer; 1: all of them.
STEP: Final = int(os.environ.get("GANTRYMQ_TEST_INTERRUPT_EACH", "11"))

#: So many of the last are tried besides.
LAST: Final = 3

#: A session, or a loop, that is broken off as it is made or ended is ended by its finalizer.
FINALIZED: Final = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


@cache
def _exits(code: CodeType) -> frozenset[int]:
    """Where a `with` calls its `__exit__`, as its body ends by itself."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "PRECALL"]
    return frozenset(
        step.offset
        for number, step in enumerate(steps)
        if step.opname == "CALL"
        and all(_is_none(one) for one in steps[max(0, number - 3) : number])
    )


def _is_none(step: dis.Instruction) -> bool:
    return step.opname == "LOAD_CONST" and step.argval is None


def _is_look(frame: FrameType, last: int) -> bool:
    """Whether an exception may come behind the instruction `last`, as one before the next does.

    Where that one belongs to another `try` or `with` it cannot be told so.
    """
    code = frame.f_code
    if code.co_code[last] not in _LOOKS or code.co_code[frame.f_lasti] == _CALL:
        return False
    return _handler(code, last) == _handler(code, frame.f_lasti)


def _handler(code: CodeType, at: int) -> int:
    """Where an exception of an instruction goes on in its function; -1: it leaves that."""
    for start, end, target, _depth, _lasti in _table(code):
        if start <= at < end:
            return target
    return -1


@cache
def _table(code: CodeType) -> list[tuple[int, int, int, int, bool]]:
    parse: Any = vars(dis)["_parse_exception_table"]
    return [tuple(entry) for entry in parse(code)]


class Interrupted(BaseException):
    """As KeyboardInterrupt: what no handler of errors expects."""


class InterruptedAsAnError(
    Interrupted, TimeoutError, FileNotFoundError, FileExistsError, PermissionError, BlockingIOError,
    ValueError, RuntimeError, KeyError, IndexError, TypeError, OverflowError,
):  # fmt: skip
    """As a handler's own error: what many an `except` of ours means something else by."""


#: Those that are entered; the last one counts.
_entered: Final[list[Interrupt]] = []


def _trace(frame: FrameType, event: str, _value: object) -> Any:  # noqa: ANN401
    """One function for all: CPython 3.11 may call one that was made for a scene when it is gone."""
    return _trace if _entered and _entered[-1].follows(frame, event) else None


class Interrupt:
    """`with` it: Interrupted is raised once, at the n-th place of the client's code, and ends here.

    `was_hit` says whether there are so many; `place` where that was. `within` is a pattern of the
    functions that count. With a `handler`, that is called in its place.
    """

    def __init__(
        self,
        number: int,
        within: str = "",
        handler: Callable[[], None] | None = None,
        kind: type[Interrupted] = Interrupted,
    ) -> None:
        self._number = self._left = number
        self._kind = kind
        self._handler = handler
        self._within = re.compile(within)
        # Frames by id: one that is held outlives a generator that is thrown away amid this.
        self._last: tuple[int, int] | None = None
        self._leaving: list[int] = []  # that call an `__exit__`
        self.was_hit = False
        self.place = ""

    def follows(self, frame: FrameType, event: str) -> bool:
        """Take an event of the trace; whether this frame's are wanted. Raises as it is there to."""
        last, self._last = self._last, None
        code = frame.f_code
        if self.was_hit or not code.co_filename.startswith(_FILES):
            return False
        if not self._within.match(code.co_qualname):
            return False
        if event == "call":
            frame.f_trace_opcodes = True
            self._come(frame)
        elif event == "opcode":
            if self._is_behind_look(frame, last):
                self._come(frame)
            self._last = id(frame), frame.f_lasti
            if frame.f_lasti in _exits(code):
                self._leaving.append(id(frame))
        elif event == "line":  # comes between two opcodes
            self._last = last
        return True

    def _is_behind_look(self, frame: FrameType, last: tuple[int, int] | None) -> bool:
        """`last` is the instruction before, if that was no other function's."""
        if self._leaving and self._leaving[-1] == id(frame):
            self._leaving.pop()
            return True
        return last is not None and last[0] == id(frame) and _is_look(frame, last[1])

    def _come(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left < 0:
            self.was_hit = True
            self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            if self._handler is None:
                raise self._kind
            self._handler()

    @property
    def places(self) -> int:
        """How many there are; known where it was not hit."""
        return self._number - self._left

    def __str__(self) -> str:
        return f"{self.place}: {self._kind.__name__}"

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        _entered.append(self)
        sys.settrace(_trace)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        sys.settrace(self._before)
        _entered.remove(self)
        self._last = None
        self._leaving.clear()
        return kind is self._kind


def interrupt_each(
    scene: Callable[[Interrupt], None],
    within: str = "",
    step: int = STEP,
    handler: Callable[[], None] | None = None,
    least: int = 1,
) -> None:
    """Play a scene with an interruption at one place after the other, until there is none left.

    At the first, from one by chance on, and at the last, where all is made, and nobody has got it
    yet; a failure says which it was. With a `handler`, that is called there, and nothing is
    raised. What is raised is an error at every other place. What the scenes leave to finalizers is
    ended here, and not in a test that comes later.
    """
    kinds = cycle(random.sample([Interrupted, InterruptedAsAnError], 2))

    def play(number: int) -> Interrupt:
        interrupt = Interrupt(number, within, handler, next(kinds))
        try:
            scene(interrupt)
        except BaseException as error:
            error.add_note(f"interrupted at place {number}, {interrupt}")
            raise
        return interrupt

    number, hits = 0, 0
    while (interrupt := play(number)).was_hit:
        hits += 1
        if not number:
            number = random.randint(1, step)
        else:
            number += step if step == 1 else max(step, number // 3)
    assert hits >= least, "too little is interrupted"
    if step > 1:
        for last in range(max(0, interrupt.places - LAST), interrupt.places):
            play(last)
    gc.collect()
