"""A simulated consumer that wants other messages of a group's topics than its members."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gantrymq.shm import groupwire, layout
from gantrymq.workers.session import Session
from tests.support.simclients import SimConsumer
from tests.support.simmachine import SimMachine
from tests.support.storedlog import require


class SimStranger(SimConsumer):
    """Tries to join until it gets a queue; its filter matches nothing of what the others want.

    It is let in once the group has no other member; then it leaves without a word. What it is
    granted beside another member it would pass over, and the group would never see it.
    """

    digest = 9

    def __init__(
        self,
        name: str,
        machine: SimMachine,
        group: str,
        members: Callable[[], Iterable[SimConsumer]],
    ) -> None:
        super().__init__(name, machine, group)
        self._members = members
        self._tries = 30

    def session_over(self) -> None:
        """It does not come back."""
        super().session_over()
        self.machine.simulation.remove(self.name)

    def _refused(self, refused: groupwire.Refused) -> None:
        super()._refused(refused)
        self._tries -= 1
        if not self._tries:
            self.die()

    def _obey(self, notice: groupwire.AnyNotice, session: Session) -> None:
        if isinstance(notice, groupwire.Granted | groupwire.Joined):
            holders = [member.name for member in self._members() if _holds(member)]
            what = f"{self.name} was let in beside {holders}, who want other messages"
            require(not holders, "P10", what)
            self.die()
        else:
            super()._obey(notice, session)


def _holds(member: SimConsumer) -> bool:
    """Whether it has queues, and was not told that it has lost them."""
    if member.session is None or not member.owned:
        return False
    at = layout.ARENA_EVICTED
    return not member.session.arena[at : at + 4].any()
