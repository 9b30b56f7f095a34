"""What each process of a broker holds: descriptors, maps, threads, memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.brokers import ServingBroker


@dataclass(frozen=True)
class Footprint:
    """Counts of one process; `memory` is what it has to itself, in KiB."""

    descriptors: int
    maps: int
    threads: int
    memory: int

    def exceeds(self, before: Footprint) -> bool:
        """True if it holds more by 2 % and what comes and goes (a file, Python's heap)."""
        rows = ("descriptors", 4), ("maps", 8), ("threads", 0), ("memory", 2048)
        return any(
            getattr(self, name) > 1.02 * getattr(before, name) + slack for name, slack in rows
        )


def footprint(pid: int) -> Footprint:
    """What a process holds now. Raises OSError if it has ended."""
    folder = Path(f"/proc/{pid}")
    rollup = (folder / "smaps_rollup").read_text()
    # Shared memory as well: an arena's is shared with nobody once its client is gone. Pages of
    # mapped files are the page cache's.
    sizes = {line.split()[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    return Footprint(
        descriptors=len(os.listdir(folder / "fd")),
        maps=len((folder / "maps").read_text().splitlines()),
        threads=len(os.listdir(folder / "task")),
        memory=sizes["Pss_Anon:"] + sizes["Pss_Shmem:"],
    )


def footprints(broker: ServingBroker) -> dict[str, Footprint]:
    """Of each process of a broker, by its role."""
    return {role.name.lower(): footprint(pid) for role, pid in broker.pids().items()}
