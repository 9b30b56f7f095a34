"""Rounds: in each one every contestant runs once, ours and peers in turn, so that drift hits all.

Ratios are taken within a round and then their median over the rounds; medians of absolute figures
stand beside them for orientation only. A contestant whose server or library is missing is skipped
with its reason; one that fails is reported as failed, and the rest goes on.
"""

from __future__ import annotations

import operator
import statistics
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bench.crew import Unavailable
from bench.measure import Measurement
from bench.memory import touch_memory
from bench.sizes import Sizes

Round = Mapping[str, Measurement]
_COMPARE: Final = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True)
class Bench:
    """What every contestant is told: the sizes, a directory on a disk, what it may do."""

    sizes: Sizes
    directory: Path
    may_install: bool = False
    """Redis may be installed by the system's package manager if it is missing."""
    broker: Literal["serve", "temporary"] = "serve"
    """`serve`: a process per agent, as in production; `temporary`: all agents in one process."""


Contestant = Callable[[Bench], Measurement]


@dataclass(frozen=True)
class Value:
    """One figure of a round: the contestants it needs and how it is computed from them."""

    label: str
    unit: str
    needs: tuple[str, ...]
    of: Callable[[Round], float]


def value(label: str, unit: str, contestant: str, metric: str) -> Value:
    """Return the plain figure `metric` of one contestant."""
    return Value(label, unit, (contestant,), lambda found: found[contestant].values[metric])


@dataclass(frozen=True)
class Bound:
    """A limit on the `ratio` ours / other, or on `ours` alone."""

    of: Literal["ratio", "ours"]
    sign: Literal["<=", ">="]
    limit: float

    def holds(self, ratio: float | None, ours: float) -> bool:
        figure = ratio if self.of == "ratio" else ours
        return figure is not None and bool(_COMPARE[self.sign](figure, self.limit))


@dataclass(frozen=True)
class Line:
    """A line of the table; `row` groups those that are run together by `--only`."""

    row: str
    what: str
    ours: Value | None = None
    against: Value | None = None
    must: Bound | None = None
    goal: Bound | None = None

    def needs(self) -> list[str]:
        """Return the contestants of this line, ours first."""
        values = [each for each in (self.ours, self.against) if each is not None]
        return [name for each in values for name in each.needs]


@dataclass
class Results:
    """All measurements of a run, and why others are missing."""

    rounds: list[dict[str, Measurement]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def missing(self, name: str) -> str | None:
        """Return why a contestant has no figures, or None if it has."""
        if name in self.failed:
            return f"{name} failed: {self.failed[name].strip().splitlines()[-1]}"
        if name in self.skipped:
            return f"{name} skipped: {self.skipped[name]}"
        return None


@dataclass(frozen=True)
class Verdict:
    """A line with its figures: medians over the rounds, also of their ratios, and what held."""

    line: Line
    ours: float | None = None
    against: float | None = None
    ratio: float | None = None
    met: Literal["goal", "must", "no", ""] = ""
    missing: str = ""


def run_rounds(
    bench: Bench, contestants: Mapping[str, Contestant], say: Callable[[str], None]
) -> Results:
    """Run every contestant once per round; every other round backwards."""
    results = Results()
    names = list(contestants)
    for number in range(bench.sizes.rounds):
        results.rounds.append({})
        for name in names if number % 2 == 0 else reversed(names):
            if results.missing(name) is None:
                say(f"round {number + 1}/{bench.sizes.rounds}: {name}")
                _run_one(bench, name, contestants[name], results)
    return results


def _run_one(bench: Bench, name: str, contestant: Contestant, results: Results) -> None:
    try:
        touch_memory(bench.sizes.touched_bytes)
        results.rounds[-1][name] = contestant(bench)
    except Unavailable as reason:
        results.skipped[name] = str(reason)
    except Exception:  # kept, shown, and the run's exit code tells of it
        results.failed[name] = traceback.format_exc()


def needed(lines: Iterable[Line]) -> list[str]:
    """Return the contestants of these lines, each once, in the order of the table."""
    return list(dict.fromkeys(name for line in lines for name in line.needs()))


def judge(line: Line, results: Results) -> Verdict:
    """Return the line's figures and whether they meet its bounds."""
    reasons = [reason for name in line.needs() if (reason := results.missing(name))]
    if reasons:
        return Verdict(line, missing="; ".join(dict.fromkeys(reasons)))
    ours = _series(line.ours, results.rounds)
    against = _series(line.against, results.rounds)
    ratios = [mine / other for mine, other in zip(ours, against, strict=False)]
    ratio, mine = _median(ratios), _median(ours)
    return Verdict(line, mine, _median(against), ratio, _met(line, ratio, mine))


def _series(wanted: Value | None, rounds: Sequence[Round]) -> list[float]:
    return [] if wanted is None else [wanted.of(each) for each in rounds]


def _median(figures: Sequence[float]) -> float | None:
    return statistics.median(figures) if figures else None


def _met(line: Line, ratio: float | None, ours: float | None) -> Literal["goal", "must", "no", ""]:
    if ours is None or (line.must is None and line.goal is None):
        return ""
    if line.goal is not None and line.goal.holds(ratio, ours):
        return "goal"
    return "must" if line.must is not None and line.must.holds(ratio, ours) else "no"


def ratio_at_least(limit: float) -> Bound:
    """A bound of ours over theirs."""
    return Bound("ratio", ">=", limit)


def ratio_at_most(limit: float) -> Bound:
    """Likewise from above."""
    return Bound("ratio", "<=", limit)


def at_most(must: float, goal: float) -> tuple[Bound, Bound]:
    """What ours must be, and what it should be."""
    return Bound("ours", "<=", must), Bound("ours", "<=", goal)


def p99_ms(found: Measurement) -> float:
    """The 99th percentile of a measurement's latencies, in milliseconds."""
    return found.values["p99_us"] / 1000
