"""Faults of the simulator: which call of which process dies or fails, and how."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

PAGE_BYTES = 4096

#: Calls that change files, by the names that faults and the operation log use.
CHANGES = (
    "create", "write", "sync", "allocate", "truncate", "rename", "unlink", "make_directory",
    "sync_directory",
)  # fmt: skip


class KilledError(BaseException):
    """The simulated process is dead (SIGKILL). Not an Exception: no agent may survive it."""


class Moment(Enum):
    """When, relative to a call's effect, something happens."""

    BEFORE = "before"
    MIDDLE = "middle"  # of a write: a page boundary that the plan's dice choose
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at the `at`-th counted call (from 1); `kinds` empty = every change counts."""

    at: int
    moment: Moment = Moment.BEFORE
    error: int = 0  # errno; 0 = the process dies
    kinds: tuple[str, ...] = ()
    persistent: bool = False  # the error also meets all later calls of these kinds
    under: str = ""  # only files whose name starts so


@dataclass(slots=True)
class FaultPlan:
    """The faults that one process's calls meet. Counts calls, so that a test can ask for all n."""

    faults: Iterable[Fault] = ()
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    calls: int = 0
    met: list[str] = field(default_factory=list)
    _counts: dict[Fault, int] = field(default_factory=dict)

    def around(
        self,
        kind: str,
        name: str,
        effect: Callable[[], None],
        half: Callable[[], None] | None = None,
    ) -> None:
        """Run one call's effect, or what a fault leaves of it."""
        self.calls += 1
        fault = self._due(kind, name)
        if fault is None:
            effect()
            return
        self.met.append(f"{kind} {name}: {fault.moment.value} {_what(fault)}")
        if fault.moment is Moment.AFTER:
            effect()
        elif fault.moment is Moment.MIDDLE:
            (half or _nothing)()
        if fault.error:
            raise OSError(fault.error, _what(fault), name)
        raise KilledError(f"{kind} {name}")

    def look(self, name: str, kind: str = "read") -> None:
        """A call that only looks at a file, or opens it: it fails where a fault names the kind."""
        fault = self._due(kind, name)
        if fault is not None:
            self.met.append(f"{kind} {name}: {_what(fault)}")
            raise OSError(fault.error, _what(fault), name)

    def _due(self, kind: str, name: str) -> Fault | None:
        for fault in self.faults:
            counted = fault.kinds or CHANGES
            if kind not in counted or not name.startswith(fault.under):
                continue
            count = self._counts.get(fault, 0) + 1
            self._counts[fault] = count
            if count == fault.at or (fault.persistent and count > fault.at):
                return fault
        return None


def _nothing() -> None:
    """A call without a middle has no effect if it is interrupted."""


def _what(fault: Fault) -> str:
    return errno.errorcode.get(fault.error, str(fault.error)) if fault.error else "killed"


def kill_at(call: int, moment: Moment = Moment.BEFORE, kinds: tuple[str, ...] = ()) -> Fault:
    """The process dies at its `call`-th change."""
    return Fault(call, moment, kinds=kinds)


def fail_at(call: int, error: int, kinds: tuple[str, ...], *, persistent: bool = False) -> Fault:
    """The `call`-th call of these kinds fails, once or from then on."""
    return Fault(call, Moment.BEFORE, error, kinds, persistent)
