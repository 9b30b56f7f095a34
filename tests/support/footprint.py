"""What each process of a broker holds: descriptors, maps, threads, memory."""

from __future__ import annotations

import ctypes
import gc
import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.brokers import ServingBroker


@dataclass(frozen=True)
class Footprint:
    """Counts of one process; `memory` is its own and what it was forked with, in KiB."""

    descriptors: int
    maps: int
    threads: int
    memory: int

    def exceeds(self, before: Footprint, kib: int = 0) -> bool:
        """True if it holds more by 2 %, `kib` of explained memory, and files that come and go."""
        rows = ("descriptors", 4), ("maps", 4), ("threads", 0), ("memory", kib)
        return any(
            getattr(self, name) > 1.02 * getattr(before, name) + slack for name, slack in rows
        )


def footprint(pid: int) -> Footprint:
    """What a process holds now. Raises OSError if it has ended."""
    folder = Path(f"/proc/{pid}")
    rollup = (folder / "smaps_rollup").read_text()
    # Not shares of pages (Pss): forks share those of the process that they came from until either
    # writes to one, and the other's share grows though it does nothing. Shared memory as well: an
    # arena's is shared with nobody once its client is gone. Mapped files are the page cache's.
    sizes = {line.split()[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    return Footprint(
        descriptors=len(os.listdir(folder / "fd")),
        maps=len((folder / "maps").read_text().splitlines()),
        threads=len(os.listdir(folder / "task")),
        memory=sizes["Anonymous:"] + sizes["Pss_Shmem:"],
    )


def footprints(broker: ServingBroker) -> dict[str, Footprint]:
    """Of each process of a broker, by its role, and of this one, the application."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what its allocator has of free pages is nobody's
    found = {role.name.lower(): footprint(pid) for role, pid in broker.pids().items()}
    return {**found, "application": footprint(os.getpid())}
