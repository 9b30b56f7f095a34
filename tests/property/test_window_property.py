"""A push consumer's window against a set of offsets: rows are finished in any order, some fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gantrymq.clients.assigned import Assigned
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.push.chunks import Chunk, Run
from gantrymq.clients.push.window import Window
from gantrymq.shm.kernels import poll
from gantrymq.shm.limits import PROGRESS_WINDOW

START = 700  # bits are used round: offset 1024 has that of 512


class WindowMachine(RuleBasedStateMachine):
    """The model: rows that are not done with, each with the offset where its part begins."""

    def __init__(self) -> None:
        super().__init__()
        self.assigned = Assigned(3, MessageQueue("t", 0), 1, START)
        self.window = Window(self.assigned)
        self.fetched = START
        self.covered = START
        self.undone: dict[int, int] = {}
        self.done: set[int] = set()
        self.waiting: list[Chunk] = []
        self.working: list[tuple[Chunk, int]] = []  # with the row behind its last
        self.failed: list[tuple[int, int]] = []

    @rule(
        pattern=st.lists(st.booleans(), min_size=1, max_size=300),
        size=st.integers(min_value=1, max_value=64),
    )
    def fetch(self, pattern: list[bool], size: int) -> None:
        """Some are rows; the others were filtered away."""
        end = int(self.assigned.words[poll.END])
        fetched = min(self.fetched + len(pattern), end)
        offsets = [o for o in range(self.fetched, fetched) if pattern[o - self.fetched]]
        if offsets:
            start = self.window.cover(offsets[-1])
            run = Run(cast("Any", SimpleNamespace()), offsets, self.window, 0, start)
            for at in range(0, len(offsets), size):
                self.waiting.append(Chunk(run, range(at, min(at + size, len(offsets)))))
            for offset, before in zip(offsets, [self.covered - 1, *offsets], strict=False):
                self.undone[offset] = before + 1
            self.covered = offsets[-1] + 1
        self.fetched = fetched
        self.window.settle(fetched)
        self._pass()

    @precondition(lambda self: self.waiting)
    @rule()
    def begin(self) -> None:
        chunk = self.waiting.pop(0)
        assert chunk.begin()
        self.working.append((chunk, chunk.rows[-1] + 1))

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        """A thread comes some rows further; some of them fail."""
        index = data.draw(st.integers(min_value=0, max_value=len(self.working) - 1))
        chunk, end = self.working[index]
        upto = data.draw(st.integers(min_value=chunk.settled + 1, max_value=end))
        bad = set(data.draw(st.lists(st.integers(chunk.settled, upto - 1), max_size=3)))
        for row in range(chunk.settled, upto):
            if row in bad:
                chunk.failed.append(row)
                self.failed.append((chunk.run.low(row), chunk.run.offsets[row]))
            else:
                self._finish(chunk.run.offsets[row])
        assert chunk.settle(upto) == 0
        if upto == end:
            self.working.pop(index)

    @precondition(lambda self: self.failed)
    @rule(data=st.data())
    def send_back(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(min_value=0, max_value=len(self.failed) - 1))
        first, offset = self.failed.pop(index)
        assert self.window.finish([(first, offset + 1)])
        self._finish(offset)

    def _finish(self, offset: int) -> None:
        self.done.update(range(self.undone.pop(offset), offset + 1))
        self._pass()

    def _pass(self) -> None:
        if not self.undone:
            self.covered = self.fetched

    @invariant()
    def says_what_is_done(self) -> None:
        committed = min(self.undone.values(), default=self.fetched)
        assert self.window.committed == committed
        assert self.assigned.words[poll.END] == committed + PROGRESS_WINDOW
        ranges = self.window.done()
        said = {offset for first, end in ranges for offset in range(first, end)}
        assert said == {offset for offset in self.done if offset >= committed}
        assert all(a < b for a, b in ranges)


WindowMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestWindow = WindowMachine.TestCase
