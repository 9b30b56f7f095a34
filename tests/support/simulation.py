"""All agents, clients, disk and clock of one machine under one seeded schedule.

Nothing here sleeps, forks or looks at the real world: the same seed gives the same run. What may
happen next is chosen by the dice among those that can go on, and among faults.
"""

from __future__ import annotations

import contextlib
import errno
import math
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import ClassVar, Protocol

from greenlet import getcurrent, greenlet

from gantrymq.shm import marks
from gantrymq.shm.clock import Clock
from gantrymq.workers.agent import IDLE_NS, Agent
from tests.support.faults import KilledError
from tests.support.simbell import SimBell
from tests.support.simclock import SimClock
from tests.support.simstops import stopping_at_lanes

STEP_NS_MAX = 20_000
#: How often somebody is drawn before all are asked who can go on.
DRAWS = 2
#: A full minute that every run goes over, unless somebody sets the clock, and how soon.
BORDER_MS = 1_700_000_040_000
BEFORE_BORDER_MS = 1_300
#: Half of the seeds have whole steps; in others an actor may stop amid one.
PAUSE_SHARES = (0.0, 0.02, 0.0, 0.2)
#: Longer than any timer of an agent, shorter than any patience.
STALL_NS = 60_000_000_000
#: Looks of an agent in a row that find nothing to do, and before a sleep that there is: it may
#: be amid being published.
SLEEPLESS_MAX = 50


class LostWakeupError(AssertionError):
    """An agent found work only because its sleep ran out."""


class SpinningError(AssertionError):
    """An agent takes a processor for itself: it has nothing to do, and it does not sleep."""


class StalledError(AssertionError):
    """Nobody has anything to do any more, and the goal is not reached."""


class Actor(Protocol):
    """Something that takes steps."""

    name: str

    def ready_at(self, now_ns: int) -> int:
        """When it can go on; `now_ns` or less = now."""
        ...

    def step(self, now_ns: int) -> None:
        """Go on a little."""
        ...

    def killed(self) -> None:
        """It is dead: whatever it was amid never goes on."""
        ...


class Strand:
    """A call that other actors may come in between of: it stops at `Simulation.pause`.

    What it calls knows nothing of that; it is a stack of its own within the one thread.
    """

    def __init__(self) -> None:
        self._stack: greenlet | None = None

    @property
    def is_amid(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._stack is not None

    def go_on(self, call: Callable[[], int]) -> int | None:
        """Begin the call, or let it go on. What it returned, None if it stopped amid something."""
        stack = self._stack = self._stack or greenlet(call)
        try:
            result = stack.switch()
        except BaseException:
            self._stack = None
            raise
        if not stack.dead:
            return None
        self._stack = None
        return int(result)

    def kill(self) -> None:
        """End a call that is amid something, as SIGKILL does: nothing of it has an effect."""
        stack, self._stack = self._stack, None
        if stack is not None:
            with contextlib.suppress(KilledError):
                stack.throw(KilledError("killed amid a step"))


class AgentActor:
    """The one loop of workers.agent.run, cut where another process may come in between."""

    def __init__(self, agent: Agent, bell: SimBell, progress: Callable[[], int]) -> None:
        """`progress` counts what the agent has done; it must not move after a sleep run out."""
        self.name = agent.name
        self.agent = agent
        self.bell = bell
        self._progress = progress
        self._wake_at = 0
        self._deep = False  # the sleep has no timer of the agent behind it
        self._overslept = False
        self.idle_cycles = 0
        self._asleep = False
        self._sleepless = 0  # looks in a row that found nothing, and no reason to sleep
        self._strand = Strand()
        self.began_ns = 0  # when the last work began
        self._before = 0  # progress at that time
        #: Whether another is amid a step, at whose end it may ring.
        self.may_be_rung: Callable[[], bool] = lambda: False
        self._next: Callable[[int], None] = self._work

    @property
    def is_at_rest(self) -> bool:
        """Whether it has found nothing to do twice, and is not amid another look."""
        return self.idle_cycles >= 2 and not self._strand.is_amid

    @property
    def is_amid(self) -> bool:
        """Whether it has stopped within a step."""
        return self._strand.is_amid

    def killed(self) -> None:
        """The work that it is amid never goes on."""
        self._strand.kill()

    def excuse(self) -> None:
        """Time is about to jump, perhaps before another has rung: it may oversleep that."""
        self._deep = False

    def ready_at(self, now_ns: int) -> int:
        """Now, or when its sleep ends."""
        return self._wake_at if self._asleep and not self.bell.rung else now_ns

    def step(self, now_ns: int) -> None:
        """One of: work, go to sleep, wake up. An agent without descriptors ends itself."""
        try:
            self._next(now_ns)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise KilledError(str(error)) from error

    def _work(self, now_ns: int) -> None:
        if not self._strand.is_amid:
            self.began_ns, self._before = now_ns, self._progress()
        if self._overslept:  # nobody comes in between: the work would be his
            done: int | None = self.agent.do_work(now_ns)
        else:
            done = self._strand.go_on(partial(self.agent.do_work, now_ns))
        if done is None:
            return
        if done:
            self.idle_cycles = self._sleepless = 0
        else:
            self.idle_cycles += 1
            self._next = self._arm
        if self._overslept and self._progress() != self._before:
            raise LostWakeupError(f"{self.name} slept while it had work")
        self._overslept = False

    def _arm(self, now_ns: int) -> None:
        sleep_ns = self._strand.go_on(partial(self.agent.arm, now_ns))
        if sleep_ns is None:
            return
        rests = sleep_ns > 0 or self._progress() != self._before
        self._sleepless = 0 if rests else self._sleepless + 1
        if self._sleepless > SLEEPLESS_MAX:
            raise SpinningError(f"{self.name} does nothing and does not sleep")
        self._deep = sleep_ns >= IDLE_NS
        self._wake_at = now_ns + sleep_ns
        self._asleep = True
        self._next = self._wake

    def _wake(self, now_ns: int) -> None:
        unrung = self._deep and not self.bell.rung and now_ns >= self._wake_at
        self._overslept = unrung and not self.may_be_rung()
        self.bell.clear()
        self._asleep = False
        if self._overslept:  # at once: what comes in between is not what it slept over
            self.agent.disarm()
            self._next = self._work
            self._work(now_ns)
        else:
            self._next = self._disarm
            self._disarm(now_ns)

    def _disarm(self, _now_ns: int) -> None:
        if self._strand.go_on(self._take_flags_down) is not None:
            self._next = self._work

    def _take_flags_down(self) -> int:
        self.agent.disarm()
        return 0


class Simulation:
    """The scheduler."""

    #: The newest one, for whoever reports a run that failed.
    latest: ClassVar[Simulation | None] = None

    def __init__(self, seed: int) -> None:
        Simulation.latest = self
        self.seed = seed
        self.dice = random.Random(seed)
        self.clock = SimClock(BORDER_MS - BEFORE_BORDER_MS)
        #: How likely an agent stops at a call of storage, board, lane or mark, amid its step.
        self.pause_share = PAUSE_SHARES[seed % len(PAUSE_SHARES)]
        self._pauses = random.Random(seed + 1)
        self._until_pause = self._draw_pause()
        self.actors: dict[str, Actor] = {}
        self._removed: list[Actor] = []
        self._everybody: list[Actor] = []  # in `actors`
        self.steps = 0
        self._stops = 0  # steps that have stopped amid something: the next of the same is its rest
        self.current = ""  # who is taking a step
        self.trace: list[str] = []
        self.on_death: Callable[[str], None] = lambda name: None
        self.after_step: Callable[[str], None] = lambda name: None  # who has taken it
        self._mark: tuple[str, int] | None = None
        self.marks_passed: set[str] = set()
        _: Clock = self.clock

    def add(self, actor: Actor) -> None:
        """Let an actor take part; it replaces one of the same name."""
        if isinstance(actor, AgentActor):
            actor.may_be_rung = self._is_anybody_amid
        self.actors[actor.name] = actor
        self._everybody = list(self.actors.values())

    def remove(self, name: str) -> None:
        """Take an actor out. What it is amid stays so until `bury`."""
        actor = self.actors.pop(name, None)
        if actor is not None:
            self._removed.append(actor)
        self._everybody = list(self.actors.values())

    def _is_anybody_amid(self) -> bool:
        return any(isinstance(actor, AgentActor) and actor.is_amid for actor in self._everybody)

    def is_amid(self, name: str) -> bool:
        """Whether an agent is there, and has stopped amid a step."""
        actor = self.actors.get(name)
        return isinstance(actor, AgentActor) and actor.is_amid

    @contextmanager
    def held(self, name: str, lives: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """An agent is stopped amid a step, as by SIGSTOP, and goes on behind this if it `lives`."""
        actor = self.actors.pop(name)
        self._everybody = list(self.actors.values())
        yield
        if lives() and name not in self.actors:
            self.add(actor)
        else:
            actor.killed()

    def bury(self) -> None:
        """Those that were taken out, and whose ways to the world are cut, are dead."""
        removed, self._removed = self._removed, []
        for actor in removed:
            actor.killed()

    def pause(self) -> None:
        """Perhaps let others go on, if this is within a step that may stop."""
        self._until_pause -= 1
        if self._until_pause > 0:
            return
        self._until_pause = self._draw_pause()
        stack = getcurrent()
        if stack.parent is not None:
            self._stops += 1
            stack.parent.switch()

    def _draw_pause(self) -> int:
        """How many calls there are to the next pause: each is as likely as the others."""
        if not self.pause_share:
            return 1 << 62
        return 1 + int(math.log(1.0 - self._pauses.random()) / math.log(1.0 - self.pause_share))

    def note(self, text: str) -> None:
        """A line of the story that a failing seed prints."""
        self.trace.append(f"{self.steps:6d} {self.clock.monotonic_ns() / 1e9:.6f} {text}")

    def kill_at_mark(self, name: str, passing: int) -> None:
        """Whoever passes the mark for the n-th time from now on dies there."""
        self._mark = (name, passing)

    def has_reached(self, step: int) -> bool:
        """Whether so many steps were taken."""
        return self.steps >= step

    def run_until(self, goal: Callable[[], bool], most_steps: int, every: int = 1) -> None:
        """Take steps until the goal is reached. Raises StalledError after so many whole ones.

        It is looked for after `every` so many moves: some goals cost more than a step.
        """
        marks.set_hook(self._pass_mark)
        try:
            with self._stopping():
                self._take_steps(goal, most_steps, every)
        finally:
            marks.set_hook(None)

    def _stopping(self) -> AbstractContextManager[None]:
        return stopping_at_lanes(self.pause) if self.pause_share else nullcontext()

    def _take_steps(self, goal: Callable[[], bool], most_steps: int, every: int) -> None:
        last = self.steps - self._stops + most_steps
        while not goal():
            if self.steps - self._stops >= last:
                raise StalledError(f"the goal is not reached after {most_steps} steps")
            for _ in range(every):
                self.step()

    def step(self) -> None:
        """Let one actor go on; if all sleep, time passes until the first wakes."""
        clock = self.clock
        now_ns = clock.monotonic_ns()
        actor = self._draw(now_ns) or self._choose(now_ns)
        if actor is None:
            return
        self.steps += 1
        now_ns = clock.advance(1 + int(self.dice.random() * STEP_NS_MAX))
        self.current = name = actor.name
        try:
            actor.step(now_ns)
        except KilledError as death:
            self._died(name, str(death))
        self.current = ""
        self.after_step(name)

    def _draw(self, now_ns: int) -> Actor | None:
        """One of those that can go on; None if the first that were drawn sleep.

        Each is as likely as the others, as if all were asked, which costs more.
        """
        actors, random = self._everybody, self.dice.random
        for _ in range(DRAWS):
            actor = actors[int(random() * len(actors))]
            if actor.ready_at(now_ns) <= now_ns:
                return actor
        return None

    def _choose(self, now_ns: int) -> Actor | None:
        """Ask all. If all sleep, time passes, and nobody is chosen."""
        ready, first = [], now_ns + STALL_NS
        for actor in self._everybody:
            when = actor.ready_at(now_ns)
            if when <= now_ns:
                ready.append(actor)
            elif when < first:
                first = when
        if ready:
            return ready[int(self.dice.random() * len(ready))]  # half the price of `choice`
        if first - now_ns >= STALL_NS:
            raise StalledError("everybody sleeps for ever")
        self.clock.advance(first - now_ns)
        return None

    def _died(self, name: str, how: str) -> None:
        self.note(f"{name} dies: {how}")
        self.remove(name)
        self.on_death(name)

    def _pass_mark(self, name: str) -> None:
        self.marks_passed.add(name)
        self.pause()
        if self._mark is None or self._mark[0] != name:
            return
        left = self._mark[1] - 1
        self._mark = (name, left) if left else None
        if not left:
            raise KilledError(f"mark {name}")
