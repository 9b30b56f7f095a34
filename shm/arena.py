"""Edge to the operating system: one session's shared memory, a sealed memfd.

The supervisor makes it and passes its descriptor; clients and agents map it. The seals keep its
size, so nobody can make another process fault by truncating it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout, limits
from gantrymq.shm.errors import Incompatible


@dataclass(frozen=True, slots=True)
class LanePlan:
    """Where one lane's words and rings are in the arena; both sides compute it, none reads it."""

    control: int
    up: int
    up_bytes: int
    down: int
    down_bytes: int


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Layout of an arena of given ring sizes (powers of two)."""

    writer: LanePlan
    groups: LanePlan
    scheduler: LanePlan
    transactions: LanePlan
    size: int


def plan_arena(
    writer_up: int = limits.WRITER_UP_BYTES,
    writer_down: int = limits.WRITER_DOWN_BYTES,
    groups_up: int = limits.GROUPS_UP_BYTES,
    groups_down: int = limits.GROUPS_DOWN_BYTES,
) -> ArenaPlan:
    """Compute the layout of an arena."""
    scheduler, checker = limits.SCHEDULER_RING_BYTES, limits.TRANSACTION_RING_BYTES
    sizes = (
        writer_up, writer_down, groups_up, groups_down, scheduler, scheduler, checker, checker,
    )  # fmt: skip
    if any(size & (size - 1) or size < 256 for size in sizes):
        raise ValueError(f"ring sizes must be powers of two from 256: {sizes}")
    starts = [layout.RINGS_AT]
    for size in sizes:
        starts.append(starts[-1] + size)
    page = mmap.PAGESIZE
    return ArenaPlan(
        LanePlan(layout.WRITER_LANE_AT, starts[0], writer_up, starts[1], writer_down),
        LanePlan(layout.GROUPS_LANE_AT, starts[2], groups_up, starts[3], groups_down),
        LanePlan(layout.SCHEDULER_LANE_AT, starts[4], scheduler, starts[5], scheduler),
        LanePlan(layout.TRANSACTIONS_LANE_AT, starts[6], checker, starts[7], checker),
        (starts[8] + page - 1) // page * page,
    )


def write_header(arena: NDArray[np.uint8], epoch: int, session: int) -> None:
    """Fill in a fresh arena's constant words."""
    header = layout.ARENA.pack(
        magic=layout.ARENA_MAGIC,
        fingerprint=layout.FINGERPRINT,
        epoch=epoch,
        session=session,
        bytes=arena.size,
    )
    arena[: len(header)] = np.frombuffer(header, np.uint8)


def create_arena(plan: ArenaPlan, epoch: int, session: int) -> int:
    """Make an arena; returns its descriptor, which the caller owns."""
    descriptor = os.memfd_create("gantrymq-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, plan.size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        write_header(map_arena(descriptor, plan.size), epoch, session)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_arena(descriptor: int, size: int) -> NDArray[np.uint8]:
    """Map an arena; the map outlives the descriptor. Raises Incompatible if it is too short."""
    if os.fstat(descriptor).st_size < size:
        raise Incompatible(f"arena has {os.fstat(descriptor).st_size} bytes, not {size}")
    return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)


def mark_evicted(arena: NDArray[np.uint8]) -> None:
    """Tell a session that it has ended; nothing of its client counts from here on."""
    arena[layout.ARENA_EVICTED] = 1


def check_header(arena: NDArray[np.uint8]) -> dict[str, int]:
    """The header's words. Raises Incompatible if another version made it."""
    header = layout.ARENA.unpack(arena)
    if header["magic"] != layout.ARENA_MAGIC or header["fingerprint"] != layout.FINGERPRINT:
        raise Incompatible(
            "the broker uses another layout of shared memory: restart broker and application"
            " with the same version of gantrymq"
        )
    return header
