"""What each kind of test uses of the processor and of the clock, beside its budget."""

from __future__ import annotations

import json
import os
import resource
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import leaks
from tests.support.tree import ROOT

TESTS = ROOT / "tests"
#: Processor seconds that a kind of test should use in all, its processes included; the report shows
#: them beside those of the clock, which another run at the same time makes more. Nothing fails.
BUDGET_S = {
    "unit": 100,
    "property": 60,
    "sim": 240,
    "golden": 30,
    "meta": 40,
    "crash": 130,
    "system": 150,
    "spark": 60,
}


def kind_of(path: Path) -> str:
    """Return the folder below tests/ that a test file is in."""
    inside = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    return inside[0] if len(inside) > 1 else "other"


def processor_seconds() -> float:
    """What this process has used, and all that it has started: those that live, too.

    Else what a process of wider scope uses would be the last test's, which sees it end.
    """
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own = sum(part.ru_utime + part.ru_stime for part in parts)
    return own + sum(map(leaks.seconds_of, leaks.descendants(os.getpid())))


@dataclass
class Times:
    """Seconds by kind, of one run or of several."""

    processor: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    clock: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, other: Times) -> None:
        """Count another run's, too."""
        for mine, theirs in ((self.processor, other.processor), (self.clock, other.clock)):
            for kind, used in theirs.items():
                mine[kind] += used

    def write(self, path: Path) -> None:
        """Keep them for whoever adds runs up."""
        path.write_text(json.dumps([self.processor, self.clock]))

    @classmethod
    def read(cls, path: Path) -> Times:
        """What `write` has kept."""
        return cls(*json.loads(path.read_text()))

    def lines(self) -> Iterator[str]:
        """A table."""
        for kind, used in sorted(self.processor.items()):
            budget = BUDGET_S.get(kind)
            allowed = f"of {budget:4d} s" if budget else "without a budget"
            over = ", over budget" if budget and used > budget else ""
            clock = f"{self.clock[kind]:.1f} s by the clock"
            yield f"{kind:10s} {used:7.1f} s {allowed}, {clock}{over}"
