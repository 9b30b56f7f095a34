"""Deaths of single agents, for runs of any kind of clients."""

from __future__ import annotations

import random
from typing import Protocol

from gantrymq.shm import marks
from tests.support.simmachine import ROLES, SimMachine
from tests.support.simulation import Simulation


class Run(Protocol):
    """What a run works on."""

    @property
    def simulation(self) -> Simulation:
        """Its scheduler."""
        ...

    @property
    def machine(self) -> SimMachine:
        """Its broker and disk."""
        ...

    @property
    def dice(self) -> random.Random:
        """Its dice."""
        ...


def kill_an_agent(run: Run) -> None:
    """Between two of its steps."""
    run.machine.kill_agent(run.dice.choice(ROLES))


def kill_at_a_mark(run: Run) -> None:
    """Where the product says that it matters."""
    mark = run.dice.choice(sorted(marks.MARKS))
    run.simulation.note(f"plan: die at {mark}")
    run.simulation.kill_at_mark(mark, run.dice.randint(1, 6))
