"""What an agent is, and the one loop that every broker process runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Protocol, Self

from gantrymq.shm import limits
from gantrymq.shm.bell import Bell
from gantrymq.shm.clock import Clock

#: How long an idle agent sleeps at most before it looks at its timers and peers again.
IDLE_NS = 1_000_000_000
#: And while something is awaited that rings no bell, as room in a client's ring.
UNRUNG_NS = 1_000_000


class Agent(Protocol):
    """A step function over interfaces; the simulator drives it like the loop below."""

    name: str

    def do_work(self, now_ns: int) -> int:
        """One bounded duty cycle; returns how much was done (0 = idle)."""
        ...

    def arm(self, now_ns: int) -> int:
        """Announce sleep (flags with a full fence), then look once more.

        Returns nanoseconds to sleep at most, 0 if there is work after all.
        """
        ...

    def disarm(self) -> None:
        """Take the announcement back after waking."""
        ...

    def close(self) -> None:
        """Give everything back. Does not finish work: a clean stop is a phase of `do_work`."""
        ...


def is_busy(records: int, since_ns: int) -> bool:
    """Whether more is likely on its way: a batch of it then costs less than a wake-up for each.

    `records` were met in one cycle, `since_ns` after the last that met any.
    """
    return records >= limits.NAP_RECORDS or since_ns < limits.NAP_WITHIN_NS


@dataclass(frozen=True, slots=True)
class Bells:
    """The bell of each agent: everybody may ring, only its agent waits."""

    scheduler: Bell
    txn_checker: Bell
    writer: Bell
    flusher: Bell
    reader: Bell
    groups: Bell
    housekeeper: Bell

    @classmethod
    def each(cls, make: Callable[[], Bell]) -> Self:
        """A bell of its own for every agent."""
        return cls(*(make() for _ in fields(cls)))


class Waiter(Protocol):
    """How a loop sleeps: on the agent's bell and its channel to the supervisor."""

    def wait(self, timeout_ns: int) -> None:
        """Sleep until rung, spoken to, or timed out; clears the bell."""
        ...


def run(agent: Agent, *, clock: Clock, waiter: Waiter, keep_running: Callable[[], bool]) -> None:
    """Drive an agent until told to stop; every broker process runs this loop and no other."""
    try:
        while keep_running():
            if agent.do_work(clock.monotonic_ns()):
                continue
            sleep_ns = agent.arm(clock.monotonic_ns())
            if sleep_ns > 0:
                waiter.wait(sleep_ns)
            agent.disarm()
    except BaseException:
        with suppress(Exception):  # it may stand amid anything: what has ended it is to be told
            agent.close()
        raise
    agent.close()
