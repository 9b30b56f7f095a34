"""What each process of a broker holds: descriptors, maps, threads, memory.

Of this process, the application, memory is what is in use: what its allocators keep of pages in
part free, for each arena of its many short-lived threads, comes and goes with how threads ran.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.brokers import ServingBroker


@dataclass(frozen=True)
class Footprint:
    """Counts of one process; `memory` in KiB is its own and what it was forked with, or in use."""

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


def _sizes(pid: int) -> dict[str, int]:
    """KiB of all maps of a process, by what they are."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {line.split()[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}


def footprint(pid: int) -> Footprint:
    """What a process holds now. Raises OSError if it has ended."""
    folder = Path(f"/proc/{pid}")
    sizes = _sizes(pid)
    # Not shares of pages (Pss): forks share those of the process that they came from until either
    # writes to one, and the other's share grows though it does nothing. Shared memory as well: an
    # arena's is shared with nobody once its client is gone. Mapped files are the page cache's.
    return Footprint(
        descriptors=len(os.listdir(folder / "fd")),
        maps=len((folder / "maps").read_text().splitlines()),
        threads=len(os.listdir(folder / "task")),
        memory=sizes["Anonymous:"] + sizes["Pss_Shmem:"],
    )


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc, of all arenas: uordblks and hblkhd are what is in use."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


#: Bytes of a block of Python's own allocator, which are counted, as far as can be told.
_BLOCK_BYTES = 64


def own_footprint() -> Footprint:
    """What this process holds now, once all garbage is gone."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    gc.collect()
    info = libc.mallinfo2()
    in_use = info.uordblks + info.hblkhd + _BLOCK_BYTES * sys.getallocatedblocks()
    seen = footprint(os.getpid())
    return replace(seen, memory=in_use // 1024 + _sizes(os.getpid())["Pss_Shmem:"])


def footprints(broker: ServingBroker) -> dict[str, Footprint]:
    """Of each process of a broker, by its role, and of this one, the application."""
    found = {role.name.lower(): footprint(pid) for role, pid in broker.pids().items()}
    return {**found, "application": own_footprint()}
