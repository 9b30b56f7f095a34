"""`gantry/ledger`, entry by entry, and `consumerOffset.json` against it."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from brokerd.checkpoint import read_checkpoint
from shm import layout
from shm.storage import read_file
from workers.groups.ledger import Ledger
from workers.groups.ledgerentries import NAME, Kind, Names
from workers.groups.offsetfile import (
    FILE,
    TRANSACTIONS_GROUP,
    checksum_of,
    offsets_of,
    read_offsets,
)

if TYPE_CHECKING:
    from brokerd.verify.report import Report
    from brokerd.verify.scope import Scope
    from shm.storage import Storage

#: `version` of store.json from which on a clean stop puts a closing entry.
CLOSED_SINCE: Final = 2
_OFFSETS: Final = f"config/{FILE}"


class LedgerCheck:
    """Checks the ledger of a store of ours."""

    def __init__(self, storage: Storage, scope: Scope, report: Report) -> None:
        self._storage = storage
        self._scope = scope
        self._report = report

    def run(self, *, exact: bool, version: int) -> None:
        """Check it; with `exact` nobody else was here since our clean stop."""
        if not self._storage.exists(NAME):
            if exact:
                self._report.add(NAME, None, "missing file")
            return
        data = read_file(self._storage, NAME)
        end, last_at = self._walk(data)
        checkpoint = read_checkpoint(self._storage)
        if checkpoint and checkpoint.ledger_open:
            return  # the disk was full at the stop; the next start cuts what is torn
        if end < len(data):  # a kill may leave a torn entry, which the next start cuts
            if self._scope.whole:
                found = f"{len(data) - end} bytes left"
                self._report.add(NAME, end, "damaged entry", "an entry with its CRC", found)
            return
        if not exact or version < CLOSED_SINCE:
            return
        if self._is_closed(data, last_at):
            self._compare_offsets(data)
        else:
            text = "its end is missing"
            self._report.add(NAME, len(data), "no closing entry", "one of the last life", text)

    def _walk(self, data: bytes) -> tuple[int, int]:
        """Where the sound entries end, and where the last one begins (-1: there is none)."""
        size, crc_at = layout.LEDGER.size, layout.LEDGER.offset("crc")
        at, last = 0, -1
        while at + size <= len(data):
            row = layout.LEDGER.unpack(data, at)
            end = at + size + (row["name_bytes"] + 7) // 8 * 8
            entry = bytearray(data[at:end])
            entry[crc_at : crc_at + 4] = bytes(4)
            if end > len(data) or zlib.crc32(entry) != row["crc"]:
                break
            at, last = end, at
        return at, last

    def _is_closed(self, data: bytes, last_at: int) -> bool:
        """Whether the last entry is of the clean stop that the checkpoint knows."""
        if last_at < 0:
            return False
        row = layout.LEDGER.unpack(data, last_at)
        checkpoint = read_checkpoint(self._storage)
        of_last_life = checkpoint is None or row["value"] == checkpoint.epoch
        return row["kind"] == Kind.CLOSED and of_last_life

    def _compare_offsets(self, data: bytes) -> None:
        """A clean stop exports all offsets."""
        ledger = Ledger(self._storage)
        ledger.replay(data, Names())
        wanted = offsets_of(ledger.groups)
        if not self._storage.exists(_OFFSETS):
            if ledger.exports:
                self._report.add(_OFFSETS, None, "missing file")
            return
        try:
            found = read_offsets(self._storage)
        except (ValueError, AttributeError, TypeError) as error:
            self._report.add(_OFFSETS, 0, "no table of offsets", found=repr(error))
            return
        for key in [key for key in found if key[1] == TRANSACTIONS_GROUP]:
            found.pop(key)  # derived from the log by the txn-checker: no group of the ledger
        wanted = {key: value for key, value in wanted.items() if key[1] != TRANSACTIONS_GROUP}
        if checksum_of(found) != checksum_of(wanted):
            differing = sorted(
                f"{topic}@{group}"
                for topic, group in wanted.keys() | found.keys()
                if wanted.get((topic, group)) != found.get((topic, group))
            )
            names = ", ".join(differing)
            self._report.add(_OFFSETS, 0, "offsets that the ledger does not have", found=names)
