"""Two agents that share a process and its sessions: the second works while the first would rest."""

from __future__ import annotations

from typing import Final

from gantrymq.shm import limits
from gantrymq.workers.agent import Agent

#: A second agent that has waited so long for its turn gets a step, whatever the first has to do.
PATIENCE_NS: Final = 2_000_000


class InSpareTime:
    """An `Agent` made of two. The second's steps are short; it neither polls sessions nor arms.

    While the first naps, so that more comes together, the second has the time to itself; while the
    first would sleep, each step of the second is followed by a look of the first. A first that
    never rests leaves it a step now and then: a twentieth of the time.
    """

    def __init__(self, first: Agent, second: Agent) -> None:
        self.name = first.name
        self._first = first
        self._second = second
        self._rests_until = 0
        self._turn_ns = 0

    def do_work(self, now_ns: int) -> int:
        """A duty cycle of the first; if it had nothing to do, a step of the second."""
        if now_ns < self._rests_until:
            work = self._second.do_work(now_ns)
            if work:
                return work
            self._rests_until = 0
        work = self._first.do_work(now_ns)
        if work:
            if now_ns - self._turn_ns > PATIENCE_NS:
                self._turn_ns = now_ns
                self._second.do_work(now_ns)
            return work
        self._turn_ns = now_ns
        work = self._second.do_work(now_ns)
        if work:
            sleep_ns = self._first.arm(now_ns)
            self._first.disarm()
            self._rests_until = now_ns + sleep_ns if sleep_ns <= limits.FLOOD_NAP_NS else 0
        return work

    def arm(self, now_ns: int) -> int:
        """Announce sleep for both; the shorter sleep counts."""
        return min(self._first.arm(now_ns), self._second.arm(now_ns))

    def disarm(self) -> None:
        """Take the announcements back."""
        self._first.disarm()
        self._second.disarm()

    def close(self) -> None:
        """Close both."""
        self._first.close()
        self._second.close()
