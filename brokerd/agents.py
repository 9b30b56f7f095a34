"""The one place that builds the broker's agents."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Final, Protocol, cast

from gantrymq.brokerd.config import Settings
from gantrymq.shm.bell import EventBell
from gantrymq.shm.board import Board
from gantrymq.shm.clock import Clock
from gantrymq.shm.codes import Role
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.storage import Storage, is_failed_change
from gantrymq.workers.agent import Agent, Bells
from gantrymq.workers.channel import Descriptor, EpollWaiter, SocketSessionTable
from gantrymq.workers.failure import declare_failed
from gantrymq.workers.host import Host, Seat
from gantrymq.workers.session import SessionTable

#: Where each agent's constructor is. The order is that of a clean stop.
CONSTRUCTORS: Final = {
    Role.SCHEDULER: ("gantrymq.workers.scheduler.agent", "Scheduler"),
    Role.TXN_CHECKER: ("gantrymq.workers.transactions.agent", "TxnChecker"),
    Role.WRITER: ("gantrymq.brokerd.writer", "open_writer"),
    Role.FLUSHER: ("gantrymq.brokerd.flusher", "Flusher"),
    Role.READER: ("gantrymq.workers.reader.agent", "Reader"),
    Role.GROUPS: ("gantrymq.workers.groups.agent", "open_groups"),
    Role.HOUSEKEEPER: ("gantrymq.workers.housekeeper.agent", "Housekeeper"),
}
#: Agents that send: each has a session of its own with the writer, for all of the broker's life.
SENDERS: Final = (Role.SCHEDULER, Role.GROUPS, Role.TXN_CHECKER)
#: Where files are replaced by others that are renamed.
_RENAMED_IN: Final = ("config", "gantry")
#: What works in their spare time. All of these import kernels: not before they are compiled.
SECONDS: Final = ("gantrymq.brokerd.retention", "gantrymq.workers.sparetime")


class _Constructor(Protocol):
    def __call__(
        self,
        storage: Storage,
        clock: Clock,
        board: Board,
        sessions: SessionTable,
        bells: Bells,
        settings: Settings,
    ) -> Agent: ...


@dataclass(frozen=True, slots=True)
class AgentEnv:
    """What an agent is given; `sessions` is set for each."""

    storage: Storage
    clock: Clock
    board: Board
    bells: Bells
    settings: Settings
    sessions: SessionTable | None = None


def load_all() -> None:
    """Import every agent's module, and with them the kernels that `shm.jit.warm` compiles."""
    for module, name in CONSTRUCTORS.values():
        getattr(import_module(module), name)
    for module in SECONDS:
        import_module(module)


def build(role: Role, env: AgentEnv) -> Agent:
    """Open one agent; it may read the store and the board, but writes nothing yet."""
    module, name = CONSTRUCTORS[role]
    constructor = cast(_Constructor, getattr(import_module(module), name))
    if env.sessions is None:
        raise ValueError("an agent needs a session table")
    _keep_names(env, env.sessions)
    agent = constructor(env.storage, env.clock, env.board, env.sessions, env.bells, env.settings)
    return _with_second(role, agent, env, env.sessions)


def _keep_names(env: AgentEnv, sessions: SessionTable) -> None:
    """Make names of files durable, which the agent is to count on. Raises OSError.

    Whoever gave one last may have been killed before its folder was synced. A sync that fails is
    final, as each is: the next one does not say what this one has lost.
    """
    for folder in _RENAMED_IN:
        if env.storage.list(folder):
            try:
                env.storage.sync_directory(folder)
            except OSError as error:
                require_ours(error)
                if is_failed_change(error):  # it came as far as the sync
                    declare_failed(env.board, sessions, [], error.errno or errno.EIO, str(error))
                raise


def _with_second(role: Role, agent: Agent, env: AgentEnv, sessions: SessionTable) -> Agent:
    """The agent, together with the one that has its spare time."""
    from gantrymq.brokerd.retention import open_retention
    from gantrymq.workers.groups.agent import Groups
    from gantrymq.workers.sparetime import InSpareTime

    if isinstance(agent, Groups) and env.settings.profile != "temporary":
        ledger = agent.ledger
        return InSpareTime(
            agent,
            open_retention(env.storage, env.clock, env.board, sessions, env.settings, ledger),
        )
    return agent


def build_host(
    roles: Sequence[Role], env: AgentEnv, table: SocketSessionTable, *also: Descriptor
) -> Host:
    """Open the agents of one process, fed by `table`; they sleep on it, their bells and `also`."""
    seats = []
    for role in roles:
        events = table.view()
        seats.append(Seat(build(role, replace(env, sessions=events)), events))
    waiter = EpollWaiter([bell_of(env.bells, role) for role in roles], [table, *also])
    return Host(seats, table, waiter)


def bell_of(bells: Bells, role: Role) -> EventBell:
    """The bell that the agent of a role waits on."""
    bell = getattr(bells, role.name.lower())
    if not isinstance(bell, EventBell):
        raise TypeError(f"{role.name} has no bell of the operating system")
    return bell
