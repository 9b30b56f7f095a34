"""Run a broker in the foreground until it is told to stop."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from gantrymq.brokerd import config, temporaryhome
from gantrymq.brokerd.broker import Broker, Progress, open_broker
from gantrymq.brokerd.children import Resident
from gantrymq.brokerd.config import Configuration
from gantrymq.brokerd.log import Log
from gantrymq.brokerd.notify import EXTEND_S, ServiceManager
from gantrymq.brokerd.signals import Interrupted, Signals
from gantrymq.brokerd.startable import require_startable
from gantrymq.brokerd.supervisor import Supervisor
from gantrymq.shm import readonly
from gantrymq.shm.codes import BrokerState, ExitCode
from gantrymq.shm.errors import GantryError, StoreBusy
from gantrymq.shm.exitcode import exit_code
from gantrymq.shm.storage import is_disk_full
from gantrymq.workers.agent import Agent, Waiter, run
from gantrymq.workers.channel import EpollWaiter

_PROGRESS_EVERY_S: Final = 1.0


def serve(home: Path, configuration: Configuration, *, lifeline: str = "") -> ExitCode:
    """Run the broker at `home`; returns what the process should exit with.

    With `lifeline`, the word of a temporary home, it also stops when standard input ends or its
    parent is gone, and then removes `home`: nobody else is left to do so.
    """
    log = Log(configuration.settings.log_level)
    for name in configuration.unknown:
        log.warning("unknown_variable", name=name)
    manager = ServiceManager(*config.service_manager())
    try:
        try:
            supervisor = _open(home, configuration, log, manager)
        except (GantryError, OSError) as error:
            return _refuse(log, manager, error)
    except Interrupted:
        return ExitCode.OK
    return _serve(supervisor, manager, Lifeline(home, lifeline) if lifeline else None)


def _open(
    home: Path, configuration: Configuration, log: Log, manager: ServiceManager
) -> Supervisor:
    """A broker that stops by signals, and has not begun yet. Raises Interrupted for an early one.

    If this raises anything, store and run directory say what they said before.
    """
    signals = Signals()
    os.umask(0o077)
    require_startable(home, configuration)
    manager.extend("starting", configuration.settings.lock_timeout + EXTEND_S)
    progress = signals.telling(_progress(log, manager))
    broker = open_broker(home, configuration, log, progress, signals.hold)
    try:
        supervisor = Supervisor(broker, manager)
        signals.watch(supervisor.reactor, supervisor.stop)
    except BaseException:
        broker.close(clean=False)
        raise
    return supervisor


def _refuse(log: Log, manager: ServiceManager, error: GantryError | OSError) -> ExitCode:
    why = _reason(error)
    log.error("not_started", error=type(error).__name__, why=why)
    manager.show(f"not started: {why}")
    return exit_code(error)


def _reason(error: GantryError | OSError) -> str:
    """What to do about it, too."""
    if isinstance(error, OSError) and error.filename is not None and is_disk_full(error):
        needs = "a start needs some KiB and a few inodes on the disk of the store"
        return f"{error}: {needs}; make room, start again"
    return readonly.told(error) if isinstance(error, OSError) else str(error)


def _serve(supervisor: Supervisor, manager: ServiceManager, lifeline: Lifeline | None) -> ExitCode:
    broker = supervisor.broker
    clean = False
    try:
        if lifeline:
            lifeline.watch(supervisor)
        agent, waiter = _in_one_loop(supervisor, supervisor.start(), lifeline)
        run(
            agent,
            clock=broker.env.clock,
            waiter=waiter,
            keep_running=lambda: not supervisor.finished,
        )
        clean = supervisor.clean
    except (GantryError, OSError) as error:
        if broker.state == BrokerState.STARTING:
            supervisor.exit_code = _refuse(broker.log, manager, error)
        else:
            broker.log.error("failed", error=type(error).__name__, why=str(error))
            supervisor.exit_code = exit_code(error)
    finally:
        broker.set_state(BrokerState.STOPPED)
        clean = _close(broker, supervisor, clean=clean)
    broker.log.info("stopped", clean=clean)
    if lifeline:
        lifeline.clear()
    return supervisor.exit_code


def _close(broker: Broker, supervisor: Supervisor, *, clean: bool) -> bool:
    """Whether the store says that the stop was clean."""
    try:
        broker.close(clean=clean)
    except (StoreBusy, OSError) as error:
        why = f"{error}; the next start finds the store as after a kill"
        broker.log.error("failed", error=type(error).__name__, why=why)
        if supervisor.exit_code == ExitCode.OK:  # else why it stops says more
            supervisor.exit_code = exit_code(error)
        return False
    return clean


class Lifeline:
    """Ends a temporary broker with the process that wanted it."""

    def __init__(self, home: Path, word: str) -> None:
        self._home = home
        self._word = word
        self._broken = False
        self._parent = os.getppid()
        self._supervisor: Supervisor | None = None

    def watch(self, supervisor: Supervisor) -> None:
        """Stop the broker when standard input ends."""
        self._supervisor = supervisor
        os.set_blocking(0, False)
        supervisor.reactor.watch(0, self._hear)

    def check_parent(self) -> None:
        """Some child of the parent may have inherited the pipe's other end."""
        if os.getppid() != self._parent:
            self._break()

    def clear(self) -> None:
        """Remove the home when nobody is left who could."""
        if self._broken:
            temporaryhome.remove(self._home, self._word)

    def _hear(self) -> None:
        if not os.read(0, 4096):
            self._break()

    def _break(self) -> None:
        if self._supervisor and not self._broken:
            self._broken = True
            self._supervisor.reactor.forget(0)
            self._supervisor.stop("the parent is gone")


class _Loop:
    """Supervisor, resident agents and lifeline as one agent."""

    name = "broker"

    def __init__(self, agents: list[Agent], lifeline: Lifeline | None) -> None:
        self._agents = agents
        self._lifeline = lifeline

    def do_work(self, now_ns: int) -> int:
        return sum(agent.do_work(now_ns) for agent in self._agents)

    def arm(self, now_ns: int) -> int:
        if self._lifeline:
            self._lifeline.check_parent()
        return min(agent.arm(now_ns) for agent in self._agents)

    def disarm(self) -> None:
        for agent in self._agents:
            agent.disarm()

    def close(self) -> None:
        for agent in self._agents:
            agent.close()


def _in_one_loop(
    supervisor: Supervisor, resident: Resident | None, lifeline: Lifeline | None
) -> tuple[Agent, Waiter]:
    if resident is None:
        return _Loop([supervisor], lifeline), EpollWaiter([], [supervisor.reactor])
    return _Loop([supervisor, resident.host], lifeline), resident.host.waiter


def _progress(log: Log, manager: ServiceManager) -> Progress:
    """Says how a long step of the start is getting on, at most once a second.

    A service manager is told each time that the start goes on, so that it waits.
    """
    spoke = time.monotonic()
    step = ""

    def say(done: int, total: int, what: str) -> None:
        nonlocal spoke, step
        now = time.monotonic()
        if now - spoke >= _PROGRESS_EVERY_S:
            spoke = now
            log.info("starting", done=done, total=total, what=what)
        elif what.partition(" ")[0] == step:
            return
        step = what.partition(" ")[0]
        manager.extend(f"starting: {what} ({done} of {total})")

    return say
