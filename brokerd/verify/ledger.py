"""`gantry/ledger`, entry by entry, and `consumerOffset.json` against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.brokerd.checkpoint import read_checkpoint
from gantrymq.brokerd.ledgerend import CLOSED_SINCE
from gantrymq.shm.errors import Corrupt, Incompatible
from gantrymq.shm.storage import read_file
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.ledgerentries import NAME, Names, closed_epoch, is_torn
from gantrymq.workers.groups.offsetfile import (
    FILE,
    TRANSACTIONS_GROUP,
    checksum_of,
    offsets_of,
    read_offsets,
)

if TYPE_CHECKING:
    from gantrymq.brokerd.verify.report import Report
    from gantrymq.brokerd.verify.scope import Scope
    from gantrymq.shm.storage import Storage

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
        ledger = Ledger(self._storage)
        if not self._is_sound(ledger, data) or not exact or version < CLOSED_SINCE:
            return
        if self._is_closed(data):
            self._compare_offsets(ledger)
        else:
            text = "its end is missing"
            self._report.add(NAME, len(data), "no closing entry", "one of the last life", text)

    def _is_sound(self, ledger: Ledger, data: bytes) -> bool:
        """Whether it can be read up to the entry of its stop; tells of damage."""
        try:
            end = ledger.replay(data, Names())
        except Incompatible as error:
            place = int(error.fields["position"])
            self._report.add(NAME, place, "entry of an unknown kind", "one that this program knows")
            return False
        except Corrupt as error:
            place = int(error.fields["position"])
            self._report.add(NAME, place, "damaged entry", "one that can be", str(error))
            return False
        checkpoint = read_checkpoint(self._storage)
        is_open = checkpoint is not None and checkpoint.ledger_open  # by a stop on a full disk
        # A kill, or such a stop, may leave a torn entry, which the next start cuts.
        if end < len(data) and (not is_torn(data, end) or (self._scope.whole and not is_open)):
            found = f"{len(data) - end} bytes left"
            self._report.add(NAME, end, "damaged entry", "an entry with its CRC", found)
        return end == len(data) and not is_open

    def _is_closed(self, data: bytes) -> bool:
        """Whether the last entry is of the clean stop that the checkpoint knows."""
        checkpoint, epoch = read_checkpoint(self._storage), closed_epoch(data)
        return epoch == checkpoint.epoch if checkpoint else epoch >= 0

    def _compare_offsets(self, ledger: Ledger) -> None:
        """A clean stop exports all offsets."""
        wanted = offsets_of(ledger.groups)
        if not self._storage.exists(_OFFSETS):
            if ledger.exports:
                self._report.add(_OFFSETS, None, "missing file")
            return
        try:
            found = read_offsets(self._storage)
        except (ValueError, AttributeError, TypeError):
            self._report.add(
                _OFFSETS, 0, "no table of offsets", "a number for each queue of topic@group"
            )
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
