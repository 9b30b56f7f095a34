"""What a test may not leave behind: shared memory of ours, and processes.

Other brokers, and other runs of the suite, may live or have died on this machine: what is theirs is
neither seen nor removed. Each run has a name, which its processes inherit as a variable of the
environment. A region is ours if its name ends with it, as the names of boards do that brokers with
that variable make. Processes are the descendants of this one, and orphans with that variable.
"""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from dataclasses import dataclass
from pathlib import Path

PREFIX = "gantrymq"
SHARED_MEMORY = Path("/dev/shm")
PROC = Path("/proc")

MARK = "GANTRYMQ_TEST_RUN"
#: Processes that were there before this run had any child, by number and inode in /proc: no orphans
#: of ours. A number that comes again has another inode.
_older: set[tuple[str, int]] = set()
#: Helpers of the tests' own, by number.
_helpers: set[int] = set()
#: Helpers of Python that end with this process.
_PYTHONS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
#: Spark's Java and its Python workers: they belong to the run, not to a test. A worker whose daemon
#: Spark has replaced is nobody's child.
_SPARKS = ("org.apache.spark", "tests/support/spark_python.py")


def mark_this_run() -> None:
    """Give all later children a variable by which they and their regions are recognised."""
    os.environ[MARK] = uuid.uuid4().hex[:16]
    _older.update(_numbered())


def excuse(pid: int) -> None:
    """Take a process, and what it has started, for a part of the run that ends with it."""
    _helpers.add(pid)


def mark_this_process() -> None:
    """The same for a fork of the run and its children: the variables in /proc stay as they were."""
    (PROC / "self" / "comm").write_text(_comm())


def region_name(what: str) -> str:
    """A name in shared memory that counts as this run's."""
    return f"{PREFIX}-{what}-{this_run()}"


def this_run() -> str:
    """The name of this run: letters and digits."""
    return os.environ[MARK]


def _comm() -> str:
    return f"gmq{this_run()[:12]}"


@dataclass(frozen=True)
class Traces:
    """What exists at one moment."""

    regions: frozenset[str]
    processes: frozenset[int]

    def describe(self) -> str:
        """Name every region and process, one a line."""
        lines = [f"/dev/shm/{name}" for name in sorted(self.regions)]
        lines += [f"process {pid}: {command_line(pid)[:200]}" for pid in sorted(self.processes)]
        return "\n".join(lines)


NOTHING = Traces(frozenset(), frozenset())


def take(orphans: bool = False) -> Traces:
    """Look at shared memory and descendants; with `orphans` (costs a scan) at lost ones too."""
    processes = descendants(os.getpid())
    if orphans:
        processes |= _orphans(processes)
    return Traces(frozenset(regions()), frozenset(processes))


def left_since(before: Traces, orphans: bool = False, spark: bool = True) -> Traces:
    """Return what came since `before`, apart from what lives under something older.

    `spark`: Spark may live on, which is stopped at the end of the run.
    """
    now = take(orphans)
    permitted = _PYTHONS + _SPARKS if spark else _PYTHONS
    newer = now.processes - before.processes
    fresh = {pid for pid in newer if not _is_excused(pid, before, permitted)}
    return Traces(now.regions - before.regions, frozenset(fresh))


def clear(traces: Traces) -> None:
    """Remove what a failed test left, so that the next ones start clean."""
    for pid in traces.processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for name in traces.regions:
        (SHARED_MEMORY / name).unlink(missing_ok=True)


def regions() -> set[str]:
    """Names in shared memory of this run."""
    names = os.listdir(SHARED_MEMORY)
    return {name for name in names if name.startswith(PREFIX) and name.endswith(this_run())}


def descendants(pid: int) -> set[int]:
    """Return the living processes below `pid`; zombies hold nothing and are left out."""
    found: set[int] = set()
    for task in _read(PROC / str(pid) / "task", listing=True).split():
        for child in map(int, _read(PROC / str(pid) / "task" / task / "children").split()):
            found |= descendants(child)
            if _is_living(child):
                found.add(child)
    return found


def seconds_of(pid: int) -> float:
    """Processor seconds of a process, with those of its children that it has seen end."""
    return sum(map(int, _stat(pid)[11:15])) / os.sysconf("SC_CLK_TCK")


def _is_living(pid: int) -> bool:
    """False for zombies; arguments tell nothing: a process that begins a program has none yet."""
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def _stat(pid: int) -> list[str]:
    """What /proc says of a process, from its state on; nothing if it has gone."""
    return _read(PROC / str(pid) / "stat").rpartition(")")[2].split()


def command_line(pid: int) -> str:
    """Return the arguments joined by blanks; empty if the process has ended."""
    return _read(PROC / str(pid) / "cmdline").replace("\0", " ").strip()


def _read(path: Path, listing: bool = False) -> str:
    """Read a file of /proc, or name a folder's entries; empty if the process has gone."""
    try:
        return " ".join(os.listdir(path)) if listing else path.read_text(errors="replace")
    except OSError:
        return ""


def _orphans(known: set[int]) -> set[int]:
    mark = f"{MARK}={this_run()}"
    fresh = {int(name) for name, _inode in _numbered() - _older}
    others = fresh - known - {os.getpid()}
    return {pid for pid in others if _is_marked(pid, mark) and _is_living(pid)}


def _numbered() -> set[tuple[str, int]]:
    """Each process that there is: its number, and the inode of its folder in /proc."""
    with os.scandir(PROC) as entries:
        return {(entry.name, entry.inode()) for entry in entries if entry.name.isdigit()}


def _is_marked(pid: int, mark: str) -> bool:
    if _read(PROC / str(pid) / "comm").strip() == _comm():
        return True
    return mark in _read(PROC / str(pid) / "environ").split("\0")


def _is_excused(pid: int, before: Traces, permitted: tuple[str, ...]) -> bool:
    """True for helpers of the run, and for what an older process (a wider fixture) has started."""
    while pid > 1 and pid != os.getpid():
        if pid in before.processes | _helpers or any(m in command_line(pid) for m in permitted):
            return True
        fields = _stat(pid)
        pid = int(fields[1]) if len(fields) > 1 else 0
    return False
