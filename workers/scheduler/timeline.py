"""What time it is for a delay, and for a point in time (design: time).

A point in time has come once the largest wall clock seen has reached it: a clock that steps back
holds, and repeats nothing. A delay passes by CLOCK_BOOTTIME, which no step moves; its records know
only the wall clock that they were stored at. So this keeps a wall of its own, which goes on evenly
from the agent's first look, and how far the machine's was from it, and since when.

What is not known in this way is not guessed: a clock that is set twice between two looks has shown
times that nobody saw. What was stored then counts from the look that found it out. The note hands
on what is known, for a successor reads again what waits; of what came since the note it knows less.

Each boot has an even wall of its own. What is in buckets outlives a boot: it is filed by a time
that goes on over boots, and never back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gantrymq.shm.clock import Clock

NS: Final = 1_000_000
#: The two clocks count milliseconds at different moments, and are corrected a little all the time.
STEP_MS: Final = 5
#: So often both clocks are looked at until nobody has come in between.
LOOKS_MAX: Final = 5
#: Steps of the wall clock that are remembered.
STEPS_MAX: Final = 64


@dataclass(slots=True)
class _Pace:
    """A time during which the wall clock ran evenly: what it showed, and how far ahead it was."""

    ahead_ms: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Steps:
    """What the agent before knew of steps of the wall clock; all but `frozen` of this boot."""

    frozen: Sequence[int] = ()  # storeTimestamps that stood still
    paces: Sequence[Sequence[int]] = ()  # `_Pace`
    unsure: Sequence[Sequence[int]] = ()  # `Timeline.unsure`
    stamped_ms: int = 0  # the newest storeTimestamp at its last look, or before


_NOTHING: Final = Steps()


def shift_after_boot(wall_ms: int, filed_ms: int, ahead_ms: int) -> int:
    """`shift_ms` of a boot in which the even wall begins with `wall_ms`.

    Of the boot before the note knows the buckets' time at some moment, and how far the wall was
    ahead of it. That the machine's wall has gone on evenly since is the best that is known; where
    it was set back, that time at least has been.
    """
    if abs(ahead_ms) <= STEP_MS and wall_ms >= filed_ms:
        return 0
    return max(-ahead_ms - STEP_MS - 1, filed_ms - wall_ms)


class Timeline:
    """Two clocks in milliseconds, both of which never go back."""

    def __init__(
        self,
        clock: Clock,
        base_ns: int | None = None,
        seen_ms: int = 0,
        stamp: Callable[[], int] = int,
        steps: Steps = _NOTHING,
        shift_ms: int = 0,
    ) -> None:
        """`base_ns`: as in `base_ns` of the agent before, in the same boot of the machine.

        `stamp` gives the newest storeTimestamp, at which records are stamped until the wall clock
        is there again. `steps`: as the agent before has left it. `shift_ms`: how far the time by
        which buckets are filed is ahead of the even wall.
        """
        self._clock = clock
        self._stamp = stamp
        wall_ms = clock.wall_ms()
        self.base_ns = wall_ms * NS - clock.monotonic_ns() if base_ns is None else base_ns
        self.shift_ms = shift_ms
        self._seen_ms = seen_ms
        self._paces = [_Pace(*pace) for pace in steps.paces]
        self.stamped_ms = stamp()
        if self._paces:
            self.stamped_ms = min(self.stamped_ms, steps.stamped_ms)  # since then nobody has looked
        else:
            self._begin(seen_ms)
        self.frozen = list(steps.frozen)  # storeTimestamps that stood still
        #: First and last storeTimestamp of records that came while the clock was set, perhaps more
        #: than once, and a moment of the even wall by which all of them were there: of these nobody
        #: knows whether they stood still, or by which of the wall's times they were stored.
        self.unsure = [list(entry) for entry in steps.unsure]
        self.look()

    def _begin(self, seen_ms: int) -> None:
        """Before the boot's first agent the wall may have run either way: the later time counts."""
        wall_ms, least, most = self._both()
        self._paces.append(_Pace(0, 0, max(wall_ms, seen_ms)))
        if least > STEP_MS or most < -STEP_MS:
            self._paces.append(_Pace(least - 1, 0, wall_ms))

    def _both(self) -> tuple[int, int, int]:
        """The wall, and how far it is ahead of the even one: at least, and at most.

        This process may have to wait for a processor between a look at one clock and at the other.
        """
        for _ in range(LOOKS_MAX):
            before_ms = self.delay_ms()
            wall_ms = self._clock.wall_ms()
            after_ms = self.delay_ms()
            if after_ms - before_ms <= 1:
                break
        return wall_ms, wall_ms - after_ms, wall_ms - before_ms

    def steps(self) -> Steps:
        """What a successor has to know."""
        paces = [[pace.ahead_ms, pace.first_ms, pace.last_ms] for pace in self._paces]
        unsure = [list(entry) for entry in self.unsure]
        return Steps(list(self.frozen), paces, unsure, self.stamped_ms)

    def delay_ns(self) -> int:
        """The even wall, in nanoseconds."""
        return self._clock.monotonic_ns() + self.base_ns

    def delay_ms(self) -> int:
        """The even wall, by which delays pass."""
        return self.delay_ns() // NS

    def filed_ns(self) -> int:
        """The time by which delays are filed in buckets, in nanoseconds."""
        return self.delay_ns() + self.shift_ms * NS

    def filed_ms(self) -> int:
        """The time by which delays are filed in buckets."""
        return self.filed_ns() // NS

    def since_boot(self, moments: NDArray[np.int64], now_ms: int) -> NDArray[np.int64]:
        """Milliseconds of one of these times as CLOCK_BOOTTIME has them; `now_ms` of that time."""
        return moments + (self._clock.monotonic_ns() // NS - now_ms)

    def ahead_ms(self) -> int:
        """How far the machine's wall is ahead, at most, of the time by which delays are filed."""
        return self._both()[2] - self.shift_ms

    def wall_ms(self) -> int:
        """The largest wall clock seen."""
        return self._seen_ms

    def until_wall_ns(self, due_ms: int) -> int:
        """How long a point in time is away, 0 if it has come: a clock that was set back is late."""
        return 0 if due_ms <= self._seen_ms else (due_ms - self._clock.wall_ms()) * NS

    def look(self) -> None:
        """Notice steps of the wall clock. To be called in each cycle, and before times are told."""
        stamp = (
            self._stamp()
        )  # before the clock: what is stored between the two is none that was set
        wall_ms, least, most = self._both()
        now = self._paces[-1]
        stepped = least > now.ahead_ms + STEP_MS or most < now.ahead_ms - STEP_MS
        if stepped or self._is_of_another_time(stamp, wall_ms):
            # The stamp anew: what was stored up to now, the moment after it, may be of any time.
            self.unsure.append([self.stamped_ms, self._stamp(), self.delay_ms() + 1])
            del self.unsure[:-STEPS_MAX]
        if stepped:
            self._paces.append(_Pace(least - 1, wall_ms, wall_ms))  # ahead to the millisecond
            del self._paces[:-STEPS_MAX]
        else:
            now.last_ms = max(now.last_ms, wall_ms)
            if most - least <= 1:  # else who knows
                now.ahead_ms = min(now.ahead_ms, least)  # a small step: the later time counts
        self._seen_ms = max(self._seen_ms, wall_ms)
        self.stamped_ms = stamp
        if stamp > wall_ms and stamp not in self.frozen:
            self.frozen.append(stamp)  # what is stored now says this (design: time)
            del self.frozen[:-STEPS_MAX]

    def _is_of_another_time(self, stamp: int, wall_ms: int) -> bool:
        """Whether records since the last look bear a time that this pace has not shown.

        Their clock was set to and fro since, or they were on their way when it was set before.
        """
        first_ms = self._paces[-1].first_ms - STEP_MS
        return stamp > self.stamped_ms and not first_ms <= stamp <= wall_ms

    def due_after(self, stored_ms: NDArray[np.int64], delay_ms: int) -> NDArray[np.int64]:
        """When a delay has passed since records were stored, by `delay_ms()`; never too early.

        A millisecond is added, for they were stored within one. Where the wall clock has shown the
        same time twice, the later one counts. The records are in the log by now: so this looks at
        the clock once more, for they may be younger than the last look, and than a step since.
        """
        self.look()
        latest = self.delay_ms()
        ahead = np.full(len(stored_ms), np.iinfo(np.int64).max)
        for pace in self._paces:
            fits = (stored_ms >= pace.first_ms - STEP_MS) & (stored_ms <= pace.last_ms + STEP_MS)
            ahead[fits] = np.minimum(ahead[fits], pace.ahead_ms)
        unknown = ahead == np.iinfo(np.int64).max
        ahead[unknown] = 0
        stored = np.minimum(stored_ms - ahead, latest)
        stored[unknown] = latest
        for first_ms, last_ms, until_ms in self.unsure:
            among = (stored_ms >= first_ms) & (stored_ms <= last_ms)
            stored[among] = np.maximum(stored[among], until_ms)
        if self.frozen:
            stored[np.isin(stored_ms, self.frozen)] = latest
        due: NDArray[np.int64] = stored + delay_ms + 1
        return due
