"""What `gantry/checkpoint` says: how far the log is durable (written by brokerd/checkpoint.py)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gantrymq.shm import layout
from gantrymq.shm.valueranges import WORD_MAX, is_offset, is_store_ms

FILE = "gantry/checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One slot. `durable` is a lower bound: the slot itself is not synced each time."""

    serial: int = 0
    boot_id: bytes = bytes(16)
    epoch: int = 0
    durable: int = 0
    store_ms: int = 0
    dispatched: int = 0
    clean: bool = False
    ledger_open: bool = False


def newest_slot(data: bytes) -> Checkpoint | None:
    """The newest valid slot of the file's bytes, or None if there is none."""
    found: list[Checkpoint] = []
    for at in range(0, len(data), layout.GANTRY_CHECKPOINT_SLOT_BYTES):
        slot = data[at : at + layout.GANTRY_CHECKPOINT.size]
        if len(slot) < layout.GANTRY_CHECKPOINT.size:
            continue
        row = layout.GANTRY_CHECKPOINT.unpack(slot)
        whole = row["magic"] == layout.GANTRY_CHECKPOINT_MAGIC and _is_possible(row)
        if whole and zlib.crc32(slot[:-4]) == row["crc"]:
            found.append(
                Checkpoint(
                    row["serial"], row["boot_id"], row["epoch"], row["durable"],
                    row["store_ms"], row["dispatched"], bool(row["clean"]),
                    bool(row["ledger_open"]),
                )
            )  # fmt: skip
    return max(found, key=lambda slot: slot.serial, default=None)


def _is_possible(row: Mapping[str, Any]) -> bool:
    """Whether it is a slot that somebody may have written: others go on with its numbers."""
    numbers = (row["serial"], row["durable"], row["dispatched"])
    is_known = is_store_ms(row["store_ms"]) and row["epoch"] <= WORD_MAX
    return is_known and all(map(is_offset, numbers))
