"""Client code as applications run it, within the simulator: what touches the world is the world's.

Threads, clocks, sleep, randomness and the store's files are the simulated machine's. The rest is
as it is: arenas, eventfds and the control socket are the kernel's, the lanes those of the product.
"""

from __future__ import annotations

import os as real_os
import pkgutil
import random
import socket
import sys
from _thread import RLock, start_new_thread
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from gantrymq import clients
from gantrymq.clients import alone, attachment, control, session
from gantrymq.clients.home import connect
from gantrymq.clients.push import consumeresult, handoff
from gantrymq.clients.push.dispatcher import Dispatcher
from gantrymq.clients.push.listener import ListenerThread
from gantrymq.shm import limits
from gantrymq.shm.kernels import poll
from gantrymq.shm.storage import PosixStorage
from tests.support import simthreads
from tests.support.interleave import interleave

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage

#: Of the parts of `clients` these do not run in the simulator.
_WITHOUT: Final = (f"{clients.__name__}.spark",)
#: Boards of brokers, by name.
BOARDS: Final[dict[str, Board]] = {}


class World:
    """What client code finds: replaced for each run."""

    def __init__(self, seed: int, storage_for: Callable[[str], Storage], share: float) -> None:
        """`share`: how likely another thread or process comes between two statements."""
        self.storage_for = storage_for
        self.dice = random.Random(seed)
        self.share = share
        self._between = random.Random(seed + 1)

    def come_between(self) -> None:
        """Perhaps let others go on."""
        if self._between.random() < self.share:
            actor = simthreads.here()
            if actor is not None:
                actor.give_way()


_worlds: Final[list[World]] = []


def modules() -> list[ModuleType]:
    """Those of `clients` that run here."""
    names = [m.name for m in pkgutil.walk_packages(clients.__path__, f"{clients.__name__}.")]
    return [import_module(name) for name in names if not name.startswith(_WITHOUT)]


def enter(world: World) -> None:
    """Let client code find this world from now on; for good, in this process."""
    if not _worlds:
        _put_in_place()
    _worlds[:] = [world]


def _put_in_place() -> None:
    found = modules()
    interleave(found, come_between)
    meant: dict[int, Any] = {
        id(real): stand_in
        for real, stand_in in (
            (sys.modules["threading"], simthreads.threading),
            (sys.modules["time"], simthreads.time),
            (sys.modules["select"], simthreads.select),
            (real_os, _Os()),
            (RLock, simthreads.RLock),
            (SimpleQueue, simthreads.SimpleQueue),
            (start_new_thread, simthreads.start_new_thread),
            (PosixStorage, _storage),
        )
    }
    for module in found:
        for name, value in list(vars(module).items()):
            if id(value) in meant:
                setattr(module, name, meant[id(value)])
    _replace(control, wire=simthreads.wire, connect=_connect)
    _replace(session, board_of=lambda home, name: BOARDS[name])
    _replace(attachment, poll=_Poll())
    _replace(alone, sys=simthreads.system)
    _replace(handoff, set=simthreads.OrderedSet)
    first = {n: v for n, v in vars(consumeresult._Wish).items() if not n.startswith("_")}
    _replace(consumeresult, _wish=simthreads.Local(**first))
    for kind in (Dispatcher, ListenerThread):
        _start_here(kind)
    _hear_of_lost_rings()
    _replace(limits, SPIN_ROUNDS=1, SPIN_DURABLE_ROUNDS=1)  # nobody else runs meanwhile


def _replace(module: ModuleType, **names: object) -> None:
    for name, value in names.items():
        setattr(module, name, value)


def _hear_of_lost_rings() -> None:
    """Whoever sleeps to the end of a long sleep and finds what it waits for was not woken."""
    plain = session.Session.wait

    def wait(self: session.Session, deadline_ns: int, ready: Callable[[], bool]) -> bool:
        simthreads.me().overslept = 0

        def is_ready() -> bool:
            found = ready()
            if found:
                simthreads.require_woken("what it waited for was there", self.bell.fileno())
            simthreads.me().overslept = 0
            return found

        return plain(self, deadline_ns, is_ready)

    changed: Any = session.Session
    changed.wait = wait


def _start_here(kind: type[Thread]) -> None:
    changed: Any = kind
    changed._actor = None
    changed.start = simthreads.Thread.start
    changed.join = simthreads.Thread.join
    changed.is_alive = simthreads.Thread.is_alive


def _connect(home: Path, timeout_s: float | None = None) -> socket.socket:
    channel = connect(home, timeout_s)
    simthreads.me().process.sockets.append(channel)
    return channel


def _storage(_root: str) -> Storage:
    return _worlds[0].storage_for(simthreads.me().process.name)


class _Os:
    """`os`, with randomness by the seed."""

    def urandom(self, count: int) -> bytes:
        """Bytes by the run's dice."""
        return _worlds[0].dice.randbytes(count)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(real_os, name)


class _Poll:
    """`shm.kernels.poll`, whose `rest` lets others go on meanwhile."""

    def rest(self, state: NDArray[np.int64], timeout_ns: int) -> int:
        """As the kernel's."""
        bell, socket = (int(state[poll.DESCRIPTORS + i]) & 0xFFFFFFFF for i in range(2))
        if not poll.arm(state):
            poll.disarm(state)
            return poll.WOKEN
        sleeper = simthreads.select.poll()
        for descriptor in (bell, socket):
            sleeper.register(descriptor, simthreads.select.POLLIN)
        ready = [descriptor for descriptor, _mask in sleeper.poll(timeout_ns / 1e6)]
        if not ready and not poll.arm(state):
            simthreads.require_woken("there was something to fetch, or to hear", bell)
        if bell in ready:
            real_os.read(bell, 4096)
        poll.disarm(state)
        if not ready:
            return poll.TIMED_OUT
        return poll.SPOKEN_TO if socket in ready else poll.WOKEN

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(poll, name)


def come_between() -> None:
    """For what is put in place of client code: here another thread may come."""
    _worlds[0].come_between()


def process_name() -> str:
    """Of the simulated process whose code runs."""
    return simthreads.me().process.name
