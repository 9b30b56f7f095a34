"""Threads of simulated processes: client code runs on stacks of its own, a step at a time.

What the client code finds in place of `threading`, `time`, `select` and queues. A thread that waits
is an actor that sleeps; all of a process's threads end at the same moment when it is killed, and
nothing of them, no `finally` either, runs any more.
"""

from __future__ import annotations

import select as real_select
import socket
import sys
import threading as real_threading
import time as real_time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty
from types import FrameType
from typing import Any, Final

from greenlet import getcurrent, greenlet

from gantrymq.shm import wire as real_wire
from tests.support.simulation import AgentActor, LostWakeupError, Simulation

NEVER_NS: Final = 1 << 62
#: Stacks of the dead. To give one back would run what it had still to do.
_BURIED: Final[list[object]] = []


class Process:
    """A simulated process. `stopped` is SIGSTOP."""

    def __init__(self, name: str, simulation: Simulation) -> None:
        self.name = name
        self.simulation = simulation
        self.stopped = False
        self.is_alive = True
        self.threads: list[ThreadActor] = []
        self.sockets: list[socket.socket] = []  # which the kernel closes when it dies
        self._begun = 0

    def begin(self, name: str, call: Callable[[], object], thread: object) -> ThreadActor:
        """Let one more thread take part."""
        self._begun += 1
        actor = ThreadActor(self, f"{self.name}/{self._begun} {name}", call, thread)
        self.threads.append(actor)
        self.simulation.add(actor)
        return actor

    def kill(self) -> None:
        """SIGKILL: no thread takes another step."""
        self.is_alive = False
        for actor in self.threads:
            self.simulation.remove(actor.name)
        for channel in self.sockets:
            channel.close()
        _BURIED.append(self)

    @property
    def is_idle(self) -> bool:
        """Whether every thread waits for something that is not there."""
        now_ns = self.simulation.clock.monotonic_ns()
        return all(actor.has_ended or actor.ready_at(now_ns) > now_ns for actor in self.threads)


class _Stack(greenlet):  # type: ignore[misc] # which has no types
    """That of a thread."""

    actor: ThreadActor


class ThreadActor:
    """One thread, as an actor of the simulation."""

    def __init__(
        self, process: Process, name: str, call: Callable[[], object], thread: object
    ) -> None:
        self.name = name
        self.process = process
        self.thread = thread
        self.number = (len(_NUMBERS) + 1) * 16
        _NUMBERS.append(name)
        self.overslept = 0  # in the step with this number it has slept to the end, not woken
        self.has_ended = False
        self.locals: dict[object, dict[str, object]] = {}
        self._stack = _Stack(call, _hub())
        self._stack.actor = self
        self._is_ready: Callable[[], bool] | None = None
        self._until_ns = 0

    def ready_at(self, now_ns: int) -> int:
        """Now, or when its wait ends."""
        if self.process.stopped:
            return NEVER_NS
        if self._is_ready is None or self._until_ns <= now_ns or self._is_ready():
            return now_ns
        return self._until_ns

    def step(self, now_ns: int) -> None:
        """Go on until it waits, or lets others go first. What a thread raises ends the run."""
        self._stack.switch()
        if self._stack.dead:
            self.has_ended = True
            self.process.threads.remove(self)
            self.process.simulation.remove(self.name)

    def killed(self) -> None:
        """Its stack stays as it is."""

    @property
    def waits(self) -> bool:
        """Whether it goes on when something is there, and not before."""
        return self._is_ready is not None

    def wait(self, is_ready: Callable[[], bool], until_ns: int) -> bool:
        """On its own stack: until something is ready; False when the time is up."""
        clock = self.process.simulation.clock
        while not is_ready():
            if clock.monotonic_ns() >= until_ns:
                return False
            self._is_ready, self._until_ns = is_ready, until_ns
            self._stack.parent.switch()
            self._is_ready = None
        return True

    def give_way(self) -> None:
        """On its own stack: let others go first."""
        self._stack.parent.switch()


_NUMBERS: Final[list[str]] = []


def _hub() -> greenlet:
    """The stack of the simulation, to which each thread's step returns."""
    stack = getcurrent()
    while stack.parent is not None:
        stack = stack.parent
    return stack


def here() -> ThreadActor | None:
    """The thread whose stack this is; None outside of all."""
    stack = getcurrent()
    return stack.actor if isinstance(stack, _Stack) else None


def me() -> ThreadActor:
    """The thread whose stack this is."""
    actor = here()
    assert actor is not None, "waits, and is no thread of a simulated process"
    return actor


def wait(is_ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
    """Let this thread wait; False when the time is up."""
    if is_ready():
        return True
    actor = me()
    return actor.wait(is_ready, _until(actor, timeout_s))


def sleep(seconds: float) -> None:
    """Let this thread rest."""
    wait(lambda: False, seconds)


def now_ns() -> int:
    """The machine's monotonic time."""
    return me().process.simulation.clock.monotonic_ns()


def _until(actor: ThreadActor, timeout_s: float | None) -> int:
    if timeout_s is None or timeout_s < 0:
        return NEVER_NS
    now = actor.process.simulation.clock.monotonic_ns()
    return min(NEVER_NS, now + int(min(timeout_s, 1e9) * 1e9))


# ------------------------------------------------------------------------------------- `threading`


class Lock:
    """`threading.Lock`."""

    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; False if somebody else keeps it."""
        if self._held and not (blocking and wait(lambda: not self._held, timeout)):
            return False
        self._held = True
        return True

    def release(self) -> None:
        """Give it back."""
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class RLock:
    """`threading.RLock`."""

    def __init__(self) -> None:
        self._owner: object = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, or take it once more."""
        mine = getcurrent()
        is_taken = self._owner not in (None, mine)
        if is_taken and not (blocking and wait(lambda: self._owner is None, timeout)):
            return False
        self._owner = mine
        self._count += 1
        return True

    def release(self) -> None:
        """Give it back once."""
        if self._owner is not getcurrent():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()

    def _release_save(self) -> int:
        count, self._count, self._owner = self._count, 0, None
        return count

    def _acquire_restore(self, count: int) -> None:
        self.acquire()
        self._count = count

    def _is_owned(self) -> bool:
        return self._owner is getcurrent()


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it is."""
        return self._is_set

    def set(self) -> None:
        """From now on."""
        self._is_set = True

    def clear(self) -> None:
        """No longer."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is."""
        return wait(self.is_set, timeout)


class Thread:
    """`threading.Thread`; `start`, `join` and `is_alive` also serve classes derived from that."""

    _actor: ThreadActor | None = None

    def __init__(
        self, target: Callable[[], object] | None = None, name: str = "", daemon: bool = False
    ) -> None:
        self.name, self.daemon = name, daemon
        self._target = target

    def run(self) -> None:
        """What it does."""
        if self._target is not None:
            self._target()

    def start(self) -> None:
        """Begin to run, in the process that starts it."""
        self._actor = me().process.begin(self.name, self.run, self)

    def join(self, timeout: float | None = None) -> None:
        """Until it has ended."""
        wait(lambda: not self.is_alive(), timeout)

    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        return self._actor is not None and not self._actor.has_ended


def start_new_thread(act: Callable[..., object], given: tuple[object, ...]) -> None:
    """`_thread.start_new_thread` of what starts another one, and does not wait: at once."""
    act(*given)


class Local:
    """`threading.local`: attributes of each thread, and what they are at first."""

    def __init__(self, **first: object) -> None:
        self.__dict__["_first"] = first

    def _mine(self) -> dict[str, object]:
        return me().locals.setdefault(self, dict(self.__dict__["_first"]))

    def __getattr__(self, name: str) -> object:
        return self._mine()[name]

    def __setattr__(self, name: str, value: object) -> None:
        self._mine()[name] = value


class SimpleQueue:
    """`queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def put(self, item: object) -> None:
        """Behind the others."""
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401
        """The first; waits."""
        assert block, "asked without waiting by nobody"
        if not wait(lambda: bool(self._items), timeout):
            raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        """Whether there is none."""
        return not self._items


class OrderedSet:
    """A set whose order is that of its making, wherever its items lie in memory."""

    def __init__(self) -> None:
        self._items: dict[int, Any] = {}

    def add(self, item: object) -> None:
        """Have an item."""
        self._items[id(item)] = item

    def discard(self, item: object) -> None:
        """Have it no longer."""
        self._items.pop(id(item), None)

    def __iter__(self) -> Any:  # noqa: ANN401
        return iter(list(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)


class _Facade:
    """A module of which some names mean something else."""

    def __init__(self, real: object, **names: object) -> None:
        self.__dict__.update(names)
        self._real = real

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._real, name)


def _get_ident() -> int:
    actor = here()
    return actor.number if actor is not None else real_threading.get_ident()


def _current_thread() -> object:
    actor = here()
    return actor.thread if actor is not None else real_threading.current_thread()


def _current_frames() -> dict[int, FrameType]:
    """The newest frame of each thread of this process."""
    found: dict[int, FrameType] = {}
    for actor in me().process.threads:
        frame = sys._getframe() if actor is here() else actor._stack.gr_frame
        if frame is not None:  # else it has not begun, or has ended
            found[actor.number] = frame
    return found


#: For those who ask which calls are under way.
system: Final[Any] = _Facade(sys, _current_frames=_current_frames)

threading: Final[Any] = _Facade(
    real_threading, Lock=Lock, RLock=RLock, Event=Event, Thread=Thread,
    get_ident=_get_ident, current_thread=_current_thread,
)  # fmt: skip


# ------------------------------------------------------------------------------ `time` and `select`


def _wall_ns() -> int:
    clock = me().process.simulation.clock
    return clock.wall_ms() * 1_000_000


time: Final[Any] = _Facade(
    real_time,
    clock_gettime_ns=lambda _clock: now_ns(),
    monotonic_ns=now_ns,
    monotonic=lambda: now_ns() / 1e9,
    time_ns=_wall_ns,
    time=lambda: _wall_ns() / 1e9,
    sleep=sleep,
)


class _Poll:
    """`select.poll()` over real descriptors, of which nobody but the simulation makes one ready."""

    def __init__(self) -> None:
        self._poll = real_select.poll()

    def register(self, descriptor: int, mask: int) -> None:
        """Ask for a descriptor, too."""
        self._poll.register(descriptor, mask)

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        """What can be read, by rising number."""
        if here() is not None and (timeout_ms is None or timeout_ms > 0):
            seconds, deaths = None if timeout_ms is None else timeout_ms / 1e3, Deaths.count
            woken = wait(lambda: bool(self._poll.poll(0)), seconds)
            simulation = me().process.simulation
            me().overslept = 0 if woken or deaths != Deaths.count else simulation.steps
            if woken:
                me().give_way()  # a call of the system: others run, and may be what it is about
        return sorted(self._poll.poll(0))


def _select(
    wanted: set[int], _write: object, _special: object, timeout_s: float | None = None
) -> tuple[list[int], list[int], list[int]]:
    poll = _Poll()
    for descriptor in sorted(wanted):
        poll.register(descriptor, real_select.POLLIN)
    ready = poll.poll(None if timeout_s is None else timeout_s * 1e3)
    return [descriptor for descriptor, _mask in ready], [], []


select: Final[Any] = _Facade(real_select, poll=_Poll, select=_select)


def readable(descriptor: int) -> bool:
    """Whether a descriptor can be read at this moment."""
    poll = real_select.poll()
    poll.register(descriptor, real_select.POLLIN)
    return bool(poll.poll(0))


def _receive(channel: socket.socket) -> object:
    if not wait(lambda: readable(channel.fileno()), channel.gettimeout()):
        raise TimeoutError
    return real_wire.receive_owned(channel)


wire: Final[Any] = _Facade(real_wire, receive_owned=_receive)


#: Verdicts: client code may survive an exception, the run must not.
VERDICTS: Final[list[BaseException]] = []


@contextmanager
def judged() -> Iterator[None]:
    """Within, what the oracle finds ends the run, whoever catches it."""
    try:
        yield
    except AssertionError as error:
        VERDICTS.append(error)
        raise


class Deaths:
    """How many agents have died: each may have owed somebody a ring."""

    count = 0


def require_woken(what: str, bell: int) -> None:
    """To be called where a thread finds that it has something to do.

    Raises LostWakeupError if its sleep has ended in this very step without a ring, and nobody is
    between what he has done and the ring for it.
    """
    actor = me()
    overslept, actor.overslept = actor.overslept, 0
    is_now = overslept == actor.process.simulation.steps
    if is_now and not readable(bell) and not _is_anybody_amid(actor):
        with judged():
            raise LostWakeupError(f"{actor.name} slept while {what}")


def _is_anybody_amid(mine: ThreadActor) -> bool:
    """Whether an agent, or another thread of this process, is within a step."""
    actors = mine.process.simulation.actors.values()
    agents = (actor for actor in actors if isinstance(actor, AgentActor))
    others = (actor for actor in mine.process.threads if actor is not mine)
    return any(agent.is_amid for agent in agents) or any(not other.waits for other in others)
