"""A push consumer's words (layout PROGRESS) and `groups` that looks at them, for `litmus`.

Needs the JIT off. The window is made small, so that every bit is used several times.
"""

from __future__ import annotations

import random

import numpy as np

from gantrymq.shm import atomics, layout, limits
from gantrymq.shm.arena import plan_arena
from gantrymq.shm.kernels import progress
from tests.support.memory_sessions import memory_session
from tests.support.schedules import Schedule

WINDOW = 4
MESSAGES = 14
LEASE, QUEUE = 5, 3


class Progress:
    """A client that begins and finishes messages out of order; an agent that looks."""

    def __init__(self, schedule: Schedule) -> None:
        setattr(progress, "PROGRESS_WINDOW", WINDOW)  # noqa: B010 - a constant, but here
        self.arena = memory_session(1, plan_arena(256, 256, 256, 256)).arena
        self.dice = random.Random(schedule.dice.random())
        self.handed_out = 0  # all below were handed out
        self.finishing: set[int] = set()  # `ack_messages` was called for these
        self.finished: set[int] = set()  # and has returned
        self.client_gone = False

    def client(self) -> None:
        """Begin as many as the window has room for, finish any of them."""
        try:
            at = progress.open_slot(self.arena, 0, LEASE, QUEUE, 0)
            begun, running = 0, set[int]()
            while len(self.finished) < MESSAGES:
                wanted = min(begun + self.dice.randint(0, WINDOW), MESSAGES)
                end = progress.begin_messages(self.arena, at, wanted)
                running |= set(range(begun, end))
                begun = self.handed_out = max(begun, end)
                if running:
                    done = self.dice.choice(sorted(running))
                    running.remove(done)
                    self.finishing.add(done)
                    progress.ack_messages(self.arena, at, done, done + 1)
                    self.finished.add(done)
        finally:
            self.client_gone = True

    def agent(self) -> None:
        """Look until the client is gone, then once more."""
        while not self.client_gone:
            self.look()
            atomics.fence()

    def look(self) -> tuple[int, int, set[int]]:
        """Committed, started, and what is done with; judged by what has happened."""
        seen, out = np.zeros((2, progress.SLOT_WORDS * limits.PROGRESS_MAX), np.int64)
        if not progress.changed_slots(self.arena, seen, out):
            return 0, 0, set()
        committed, started = int(out[progress.COMMITTED]), int(out[progress.STARTED])
        bits = out[progress.ACKED : progress.SLOT_WORDS]
        done = {
            offset
            for offset in range(committed, started)
            if int(bits[offset % WINDOW // 64]) >> (offset % WINDOW % 64) & 1
        }
        invented = (done | set(range(committed))) - self.finishing
        assert not invented, f"{invented} are taken for done: {committed}..{started}, {done}"
        return committed, started, done

    def check(self) -> None:
        """In the end all is committed."""
        assert self.look()[0] == MESSAGES

    def check_after_death(self) -> None:
        """What was handed out counts as started, and nothing that was finished comes again."""
        committed, started, done = self.look()
        assert started >= self.handed_out, (started, self.handed_out)
        missing = self.finished - done - set(range(committed))
        assert not missing, f"{missing} would be delivered again: {committed}..{started}, {done}"


def started_before_bits() -> None:
    """A canary: bits of a message are cleared only after `started` has passed it."""
    begin = progress.begin_messages

    def late(arena: np.ndarray, at: int, end: int) -> int:
        started_at = at + layout.PROGRESS_STARTED
        before = atomics.load_acquire(arena, started_at)
        end = min(end, atomics.load_acquire(arena, at + layout.PROGRESS_COMMITTED) + WINDOW)
        if end > before:
            atomics.store_release(arena, started_at, end)
            atomics.store_release(arena, started_at, before)
        return int(begin(arena, at, end))

    progress.begin_messages = late


def bits_before_started() -> None:
    """A canary: the agent looks at bits first, at `started` afterwards."""
    copy = progress._copy_slot

    def hasty(arena: np.ndarray, at: int, out: np.ndarray, row: int) -> int:
        early = out.copy()
        copy(arena, at, early, row)
        held = copy(arena, at, out, row)
        bits = slice(row + progress.ACKED, row + progress.SLOT_WORDS)
        out[bits] = early[bits]
        return int(held)

    progress._copy_slot = hasty
