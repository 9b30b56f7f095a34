"""`gantry/checkpoint`: how far the log is durable, by the flusher. Two slots, written in turn."""

from __future__ import annotations

import zlib

from shm import layout
from shm.checkpoint import FILE, Checkpoint, newest_slot
from shm.storage import File, Storage, read_file

__all__ = ["FILE", "Checkpoint", "CheckpointFile", "read_checkpoint"]


def read_checkpoint(storage: Storage) -> Checkpoint | None:
    """The newest valid slot, or None if there is none."""
    try:
        return newest_slot(read_file(storage, FILE))
    except FileNotFoundError:
        return None


class CheckpointFile:
    """Writes slots in turn, so that a torn one leaves the older."""

    def __init__(self, storage: Storage, boot_id: bytes, epoch: int) -> None:
        last = read_checkpoint(storage)
        self._serial = last.serial if last else 0
        self._boot_id = boot_id
        self._epoch = epoch
        size = 2 * layout.GANTRY_CHECKPOINT_SLOT_BYTES
        if storage.exists(FILE) and storage.size_of(FILE) >= size:
            self._file: File = storage.open(FILE, write=True)
            return
        if storage.exists(FILE):
            storage.unlink(FILE)
        self._file = storage.create(FILE)
        self._file.truncate(size)
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
        self._serial += 1
        body = layout.GANTRY_CHECKPOINT.pack(
            magic=layout.GANTRY_CHECKPOINT_MAGIC,
            serial=self._serial,
            boot_id=self._boot_id,
            epoch=self._epoch,
            durable=durable,
            store_ms=store_ms,
            dispatched=dispatched,
            clean=int(clean),
            ledger_open=int(ledger_open),
        )[:-4]
        slot = body + zlib.crc32(body).to_bytes(4, "big")
        self._file.write_at(slot, self._serial % 2 * layout.GANTRY_CHECKPOINT_SLOT_BYTES)
        if clean or sync:
            self._file.sync()

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
