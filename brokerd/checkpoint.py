"""`gantry/checkpoint`: how far the log is durable, by the flusher.

Two slots are written in turn, without a sync. A power cut may tear both; a third one is synced
before either is written again.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Final

from gantrymq.shm import layout
from gantrymq.shm.checkpoint import FILE, Checkpoint, newest_slot
from gantrymq.shm.storage import File, Storage, made_anew, read_file

__all__ = ["FILE", "Checkpoint", "CheckpointFile", "read_checkpoint"]

_STEP: Final = layout.GANTRY_CHECKPOINT_SLOT_BYTES
_IN_TURN: Final = 2
FILE_BYTES: Final = (_IN_TURN + 1) * _STEP


def read_checkpoint(storage: Storage) -> Checkpoint | None:
    """The newest valid slot, or None if there is none."""
    try:
        return newest_slot(read_file(storage, FILE))
    except FileNotFoundError:
        return None


class CheckpointFile:
    """Writes slots in turn, so that a torn one leaves the older; see `keep` for a torn pair."""

    def __init__(self, storage: Storage, boot_id: bytes, epoch: int) -> None:
        last = read_checkpoint(storage)
        self._last = last or Checkpoint()
        self._boot_id = boot_id
        self._epoch = epoch
        if storage.exists(FILE) and storage.size_of(FILE) >= _IN_TURN * _STEP:
            self._file: File = storage.open(FILE, write=True)
            if self._file.size() != FILE_BYTES:
                self._file.truncate(FILE_BYTES)
            return
        if storage.exists(FILE):
            storage.unlink(FILE)
        self._file = storage.create(FILE)
        self._file.truncate(FILE_BYTES)
        self.write(0, 0, 0)
        self._file.sync()
        storage.sync_directory("gantry")

    def write(
        self,
        durable: int,
        store_ms: int,
        dispatched: int,
        *,
        clean: bool = False,
        sync: bool = False,
        ledger_open: bool = False,
    ) -> None:
        """Write the next slot; it is synced at a clean stop, and with `sync`."""
        slot = Checkpoint(
            self._last.serial + 1, self._boot_id, self._epoch, durable, store_ms, dispatched,
            clean, ledger_open,
        )  # fmt: skip
        self._put(slot, slot.serial % _IN_TURN)
        self._last = slot
        if clean or sync:
            self._file.sync()

    @made_anew()
    def keep(self) -> None:
        """Have what was written last outlive a power cut, whatever that does to later slots.

        Raises OSError: a full disk is no failure, what was kept before is a lower bound as well.
        """
        self._file.sync()
        # What lies behind it may be of this life, which has not been stopped.
        self._put(replace(self._last, clean=False, ledger_open=False), _IN_TURN)
        self._file.sync()

    def _put(self, slot: Checkpoint, number: int) -> None:
        body = layout.GANTRY_CHECKPOINT.pack(
            magic=layout.GANTRY_CHECKPOINT_MAGIC,
            serial=slot.serial,
            boot_id=slot.boot_id,
            epoch=slot.epoch,
            durable=slot.durable,
            store_ms=slot.store_ms,
            dispatched=slot.dispatched,
            clean=int(slot.clean),
            ledger_open=int(slot.ledger_open),
        )[:-4]
        self._file.write_at(body + zlib.crc32(body).to_bytes(4, "big"), number * _STEP)

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
