"""Schedule explorer: threads pass one baton at each atomic access, in an order given by a seed.

Needs the JIT off (NUMBA_DISABLE_JIT=1): the atomics' Python twins call a hook before each access.
With store buffers, a store becomes visible some steps after it was made unless a fence waits for
it, as on x86 (TSO): that is what a missing full fence lets happen. Release and acquire themselves
are covered by review and by compiled stress tests.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import atomics
from gantrymq.shm.jit import JIT_OFF
from tests.support.faults import KilledError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

STEPS_MAX = 200_000
_BUFFERED_MAX = 8


class LostWakeupError(AssertionError):
    """All threads sleep, and nobody is left to wake them."""


class EndlessError(AssertionError):
    """A schedule that does not come to an end."""


@dataclass(slots=True)
class _Store:
    memory: Bytes
    at: int
    size: int
    value: int

    def land(self) -> None:
        word = (self.value & ((1 << 8 * self.size) - 1)).to_bytes(self.size, "little")
        self.memory[self.at : self.at + self.size] = np.frombuffer(word, np.uint8)

    def is_at(self, memory: Bytes, at: int) -> bool:
        return self.at == at and np.shares_memory(self.memory[:1], memory[:1])


@dataclass(slots=True)
class _Thread:
    name: str
    body: Callable[[], None]
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    buffer: deque[_Store] = field(default_factory=deque)
    sleeping: ScheduledBell | None = None
    over: bool = False
    steps: int = 0
    kill_at: int = 0  # 0 = never


class ScheduledBell:
    """`shm.bell.Bell`; `wait` gives the baton away until somebody has rung."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.rung = False

    def ring(self) -> None:
        """Wake the owner. A system call: it comes when it comes, and drains no buffer."""
        self._schedule.step()
        self.rung = True

    def ring_from_outside(self) -> None:
        """What somebody else does at a thread's end, also at one that is killed."""
        self.rung = True

    def clear(self) -> None:
        """Forget rings so far."""
        self.rung = False

    def wait(self) -> None:
        """Sleep until rung."""
        self._schedule.sleep(self)


class Schedule:
    """One run of a few threads in the order of one seed."""

    def __init__(self, seed: int, *, store_buffers: bool = False) -> None:
        if not JIT_OFF:
            raise RuntimeError("the explorer needs NUMBA_DISABLE_JIT=1")
        self.dice = random.Random(seed)
        self.trace: deque[str] = deque(maxlen=12)
        self._buffering = store_buffers
        self._threads: list[_Thread] = []
        self._current: _Thread | None = None
        self._steps = 0
        self._failure: BaseException | None = None
        self._finished = threading.Semaphore(0)

    def thread(self, name: str, body: Callable[[], None], *, kill_at: int = 0) -> None:
        """Add a thread; with `kill_at`, it dies before its n-th access (from 1)."""
        self._threads.append(_Thread(name, body, kill_at=kill_at))

    def bell(self) -> ScheduledBell:
        """A bell for one of the threads to wait on."""
        return ScheduledBell(self)

    def steps_of(self, name: str) -> int:
        """Accesses that a thread made."""
        return next(thread.steps for thread in self._threads if thread.name == name)

    def run(self) -> None:
        """Run all threads. Raises what a thread raised, LostWakeupError or EndlessError."""
        workers = [
            threading.Thread(target=self._live, args=[thread], name=thread.name, daemon=True)
            for thread in self._threads
        ]
        with _installed(self):
            for worker in workers:
                worker.start()
            self._hand_on()
            self._finished.acquire()
            for worker in workers:
                worker.join()
        if self._failure is not None:
            raise self._failure

    # ----------------------------------------------------------------------- called by the threads

    def step(self) -> None:
        """Before an access: somebody else may go first."""
        me = self._me()
        if me is None:
            return
        me.steps += 1
        self._steps += 1
        if self._failure is not None:
            raise KilledError("the schedule is over")
        if me.steps == me.kill_at:
            raise KilledError(me.name)
        if self._steps > STEPS_MAX:
            raise EndlessError(f"{STEPS_MAX} steps and no end: {list(self.trace)}")
        self._land_some()
        self._hand_on()
        me.baton.acquire()
        if self._failure is not None:
            raise KilledError("the schedule is over")

    def sleep(self, bell: ScheduledBell) -> None:
        """Give the baton away until the bell is rung."""
        me = self._me()
        assert me is not None, "only scheduled threads sleep"
        self.step()
        if not bell.rung:
            me.sleeping = bell
            self._hand_on()
            me.baton.acquire()
            me.sleeping = None
            if self._failure is not None:
                raise KilledError("the schedule is over")
        bell.rung = False

    def load(self, memory: Bytes, at: int, size: int, *, signed: bool) -> int:
        """A load sees the thread's own buffered stores first."""
        self.step()
        me = self._me()
        for store in reversed(me.buffer if me else ()):
            if store.is_at(memory, at):
                return store.value
        return int.from_bytes(memory[at : at + size].tobytes(), "little", signed=signed)

    def store(self, memory: Bytes, at: int, size: int, value: int) -> None:
        """A store lands at once, or some steps later."""
        self.step()
        me = self._me()
        store = _Store(memory, at, size, int(value))
        if me is None or not self._buffering:
            store.land()
            return
        me.buffer.append(store)
        if len(me.buffer) > _BUFFERED_MAX:
            me.buffer.popleft().land()

    def fence(self) -> None:
        """All stores of this thread are visible before it goes on."""
        self.step()
        me = self._me()
        if me is not None:
            self._land_all(me)

    # ------------------------------------------------------------------------------------- inside

    def _me(self) -> _Thread | None:
        current = self._current
        return current if current and threading.current_thread().name == current.name else None

    def _live(self, thread: _Thread) -> None:
        thread.baton.acquire()
        try:
            if self._failure is None:
                thread.body()
        except KilledError:
            self.trace.append(f"{thread.name} dies")
        except BaseException as error:
            self._failure = self._failure or error
        self._land_all(thread)  # what a processor has executed becomes visible, dead or not
        thread.over = True
        self._hand_on()

    def _hand_on(self) -> None:
        """Give the baton to a thread that can go on, or end the run."""
        ready = [t for t in self._threads if not t.over and (not t.sleeping or t.sleeping.rung)]
        if not ready and any(not thread.over for thread in self._threads):
            if self._failure is None:
                names = [thread.name for thread in self._threads if not thread.over]
                self._failure = LostWakeupError(f"{names} sleep for ever: {list(self.trace)}")
            ready = [thread for thread in self._threads if not thread.over]
        if not ready:
            self._finished.release()
            return
        chosen = self.dice.choice(ready)
        if chosen is not self._current:
            self.trace.append(chosen.name)
        self._current = chosen
        chosen.baton.release()

    def _land_some(self) -> None:
        for thread in self._threads:
            while thread.buffer and self.dice.random() < 0.2:
                thread.buffer.popleft().land()

    def _land_all(self, thread: _Thread) -> None:
        while thread.buffer:
            thread.buffer.popleft().land()


class _installed:
    """Puts a schedule's accesses in the place of the atomics' twins."""

    _NAMES = ("load_acquire", "load_acquire32", "store_release", "store_release32", "fence")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._before = {name: getattr(atomics, name) for name in self._NAMES}

    def __enter__(self) -> None:
        schedule = self._schedule
        if not schedule._buffering:
            atomics.set_hook(schedule.step)
            return
        twins: dict[str, Callable[..., object]] = {
            "load_acquire": lambda memory, at: schedule.load(memory, at, 8, signed=True),
            "load_acquire32": lambda memory, at: schedule.load(memory, at, 4, signed=False),
            "store_release": lambda memory, at, value: schedule.store(memory, at, 8, value),
            "store_release32": lambda memory, at, value: schedule.store(memory, at, 4, value),
        }
        if self._before["fence"].__module__ == atomics.__name__:
            twins["fence"] = schedule.fence  # a canary that left it out stays as it is
        for name, twin in twins.items():
            setattr(atomics, name, twin)

    def __exit__(self, *_: object) -> None:
        atomics.set_hook(None)
        for name, twin in self._before.items():
            setattr(atomics, name, twin)
