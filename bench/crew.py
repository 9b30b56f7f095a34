"""Worker processes: each does one job, in phases that start on a word and end with an outcome.

Every worker is a process of its own, started by `spawn` so that nothing is inherited from the
parent. It builds its job (connect, allocate), waits, runs the warm-up, waits, runs what is
measured. Processor time is taken around a phase, over all threads of the process. A watchdog bounds
every wait, and a worker that fails ends the whole measurement with its own traceback.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing import connection, reduction
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Final, Protocol, Self

_CONTEXT: Final = multiprocessing.get_context("spawn")
_STOP_S: Final = 10.0


class BenchError(Exception):
    """A measurement failed; its text says where and why."""


class Unavailable(Exception):
    """A contestant cannot run on this machine; its text says what is missing."""


@dataclass(frozen=True)
class Phase:
    """One run of a job: how many messages, and at how many per second if it is paced (else 0).

    A job that runs for a time has `seconds` instead of a count.
    """

    count: int
    per_second: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What one worker did in one phase. Times are nanoseconds of CLOCK_MONOTONIC."""

    started_ns: int
    ended_ns: int
    count: int
    checksum: int = 0
    latencies_ns: array[int] = field(default_factory=lambda: array("q"))
    cpu_s: float = 0.0
    marks: array[int] = field(default_factory=lambda: array("q"))
    """Times and counts in turn: so many messages had come by then (see `Progress`)."""
    beside_ns: int = 0
    """Of that time: what the job did in turns with its own, as often, to be compared with."""


class Progress:
    """Marks of a phase: how many messages had come when, at most one in MARK_NS."""

    MARK_NS: Final = 10_000_000

    def __init__(self) -> None:
        self.marks = array("q")
        self._next_ns = 0

    def mark(self, now_ns: int, count: int) -> None:
        """Keep that `count` messages had come by `now_ns`."""
        if now_ns >= self._next_ns:
            self.marks.extend((now_ns, count))
            self._next_ns = now_ns + self.MARK_NS


class Job(Protocol):
    """What a worker does; it is built inside the worker, from picklable arguments."""

    def run(self, phase: Phase) -> Outcome: ...

    def close(self) -> None: ...


JobFactory = Callable[..., Job]
"""A class of jobs, found by name in the spawned process."""


class _Duplicate(Protocol):
    """A descriptor on its way to another process."""

    def detach(self) -> int: ...


class SharedFd:
    """A descriptor that travels to a worker as an argument and is a descriptor there."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __getstate__(self) -> object:
        return reduction.DupFd(self.fd)

    def __setstate__(self, duplicate: _Duplicate) -> None:
        self.fd = duplicate.detach()


def _serve(
    pipe: connection.Connection, cpu: int | None, factory: JobFactory, args: tuple[object, ...]
) -> None:
    """Life of a worker: build, then one phase per word, until the word is None."""
    try:
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})
        job = factory(*args)
        pipe.send(None)
        while (phase := pipe.recv()) is not None:
            before = time.process_time()
            outcome = job.run(phase)
            pipe.send(replace(outcome, cpu_s=time.process_time() - before))
        job.close()
    except Exception:  # the parent raises it, with this text
        pipe.send(traceback.format_exc())


class Crew:
    """The workers of one measurement, as a context manager that leaves none of them behind.

    `pinned` gives each worker a processor of its own, round robin over those allowed.
    """

    def __init__(self, timeout_s: float, *, pinned: bool = False) -> None:
        self.timeout_s = timeout_s
        self._cpus = sorted(os.sched_getaffinity(0)) if pinned else []
        self._processes: dict[str, SpawnProcess] = {}
        self._pipes: dict[str, connection.Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for role, process in self._processes.items():
            if kind is None:
                self._pipes[role].send(None)
                process.join(_STOP_S)
            if process.is_alive():
                process.kill()
                process.join()
            self._pipes[role].close()

    def start(self, role: str, factory: JobFactory, *args: object) -> None:
        """Start a worker and wait until its job is built."""
        ours, theirs = _CONTEXT.Pipe()
        cpu = self._cpus[len(self._processes) % len(self._cpus)] if self._cpus else None
        process = _CONTEXT.Process(target=_serve, args=(theirs, cpu, factory, args), daemon=True)
        process.start()
        theirs.close()
        self._processes[role], self._pipes[role] = process, ours
        self._collect({role})

    def run(self, phase: Phase) -> dict[str, Outcome]:
        """Run one phase in every worker, begun in the order of their start; outcomes by role."""
        for pipe in self._pipes.values():
            pipe.send(phase)
        return self._collect(set(self._pipes))

    def _collect(self, roles: set[str]) -> dict[str, Outcome]:
        """Wait for one word of each role, whichever comes first, so that a failure is seen."""
        deadline = time.monotonic() + self.timeout_s
        waiting = {self._pipes[role]: role for role in roles}
        outcomes: dict[str, Outcome] = {}
        while waiting:
            ready = connection.wait(list(waiting), deadline - time.monotonic())
            if not ready:
                late = ", ".join(sorted(waiting.values()))
                raise BenchError(f"no word within {self.timeout_s:.0f} s from: {late}")
            for pipe in ready:
                assert isinstance(pipe, connection.Connection)
                role = waiting.pop(pipe)
                if (outcome := self._receive(role, pipe)) is not None:
                    outcomes[role] = outcome
        return outcomes

    def _receive(self, role: str, pipe: connection.Connection) -> Outcome | None:
        try:
            word: Outcome | str | None = pipe.recv()
        except EOFError:
            self._processes[role].join(_STOP_S)
            code = self._processes[role].exitcode
            raise BenchError(f"the {role} died with exit code {code}") from None
        if isinstance(word, str):
            raise BenchError(f"the {role} failed:\n{word}")
        return word
