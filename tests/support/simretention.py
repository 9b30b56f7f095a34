"""Tells the oracle what goes with segments: whose unread records, and whether that was said."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.workers.groups.agent import Groups
from gantrymq.workers.groups.progress import UNSET
from gantrymq.workers.sparetime import InSpareTime
from tests.support.simstorage import SimStorage

if TYPE_CHECKING:
    from tests.support.simmachine import SimMachine
    from tests.support.storedlog import QueueName


def expire(machine: SimMachine, low: int) -> None:
    """Segments below `low` are about to go: who has met them may need them no more, or is named."""
    ledger = _ledger(machine)
    held: dict[tuple[str, QueueName], int] = {
        (group, key): progress.committed
        for group, known in (ledger.groups.items() if ledger else ())
        for key, progress in known.queues.items()
        if progress.committed != UNSET
    }
    told = _told(machine, low) if ledger else None
    assert machine.board is not None, "its agents run"
    span = (low, machine.board.word(layout.BOARD_APPENDED))
    machine.model.expire(SimStorage(machine.disk, "oracle"), span, held, told)


def _ledger(machine: SimMachine) -> Any:  # noqa: ANN401 - workers.groups.ledger.Ledger, None if it died
    agent = machine.agent_of(Role.GROUPS)
    groups = agent._first if isinstance(agent, InSpareTime) else None
    return groups.ledger if isinstance(groups, Groups) else None


def _told(machine: SimMachine, low: int) -> Counter[tuple[str, str]]:
    """Losses by who has them and topic, as the agent has said before it raised `low`."""
    told: Counter[tuple[str, str]] = Counter()
    table = machine.tables.get(Role.GROUPS)
    fresh = (
        [f for _level, event, f in table.notes if event == "removed_while_needed"] if table else []
    )
    for fields in machine.told_losses + fresh:
        if fields["low"] == low:
            who, what = str(fields["who"]), str(fields["what"])
            count = fields["count"]
            assert isinstance(count, int)
            told[who.removeprefix("group "), what.removeprefix("messages of ")] += count
    return told
