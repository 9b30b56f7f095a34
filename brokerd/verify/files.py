"""The small files: `gantry/`, `config/`, RocketMQ's checkpoint, and what belongs to nobody."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.brokerd import checkpoint as gantry_checkpoint
from gantrymq.brokerd import producers, reserve, storefiles
from gantrymq.brokerd.ledgerend import version_of
from gantrymq.brokerd.queuestarts import FILE as STARTS_FILE
from gantrymq.brokerd.queuestarts import read_starts
from gantrymq.brokerd.verify.config import ConfigCheck, read_object
from gantrymq.brokerd.verify.ledger import LedgerCheck
from gantrymq.shm import imported, indexnote, layout
from gantrymq.shm.errors import Corrupt, shown
from gantrymq.shm.imported import read_imported
from gantrymq.shm.indexnote import DIRECTORY as INDEX
from gantrymq.shm.indexnote import NOTE_FILE as INDEX_FILE
from gantrymq.shm.indexnote import safe_time
from gantrymq.shm.storage import read_file
from gantrymq.workers.groups import deadletternote
from gantrymq.workers.housekeeper.progress import PROGRESS_FILE
from gantrymq.workers.scheduler import note as schedulenote
from gantrymq.workers.scheduler.note import FILE as SCHEDULE_FILE
from gantrymq.workers.transactions import note as transactionnote
from gantrymq.workers.transactions.note import FILE as TRANSACTIONS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.brokerd.verify.queues import Queue
    from gantrymq.brokerd.verify.report import Report
    from gantrymq.brokerd.verify.scope import Scope
    from gantrymq.shm.storage import Storage

CHECKPOINT: Final = "checkpoint"
_KNOWN: Final = frozenset(
    {
        *("commitlog", "consumequeue", "config", "gantry", "checkpoint", "abort", "lock"),
        *("index", "consumequeue_ext", "batchconsumequeue", "timerlog", "timerwheel"),
        *("compaction", "rocksdbstore", "abort.bak"),
    }
)
#: Times of RocketMQ's checkpoint that are findings above the log's last time.
_TOLD_ABOVE: Final = ("physic_msg_timestamp", "logics_msg_timestamp")


@dataclass(frozen=True, slots=True)
class Found:
    """What the walk over the log has found, for comparison."""

    log_end: int
    last_ms: int
    topics: frozenset[str]
    queues: tuple[Queue, ...]
    lossy: bool
    all_ours: bool


class FileCheck:
    """Checks all files but log, queues and sidecars."""

    def __init__(self, storage: Storage, scope: Scope, report: Report, found: Found) -> None:
        self._storage = storage
        self._scope = scope
        self._report = report
        self._found = found

    def run(self) -> None:
        """Check them all."""
        self._check_strays()
        config = ConfigCheck(self._storage, self._scope, self._report)
        config.run(self._found.topics, exact=self._is_exact())
        self._check_checkpoint()
        if self._scope.ours:
            self._check_gantry_checkpoint()
            self._check_progress()
            self._check_producers()
            self._check_reserve()
            self._check_notes()
            self._check_imported()
            self._check_dead_letters()
            self._check_starts()
            version = version_of(self._storage)
            ledger = LedgerCheck(self._storage, self._scope, self._report)
            ledger.run(exact=self._is_exact(), version=version)

    # ---------------------------------------------------------------------------------- strays

    def _check_strays(self) -> None:
        if not self._scope.ours:
            return
        for name in self._storage.list(""):
            if name not in _KNOWN:
                self._report.add(name, None, "stray file")
        known = storefiles.KNOWN.union(() if self._scope.whole else storefiles.UNDER_WAY)
        for name in self._storage.list(storefiles.FOLDER):
            under_way = not self._scope.whole and name.endswith(".new")
            if name not in known and not under_way:
                self._report.add(f"gantry/{name}", None, "stray file")

    def _check_imported(self) -> None:
        """`gantry/imported.json`: what it says of another broker's records is whole."""
        try:
            read_imported(self._storage)
        except Corrupt as error:
            self._report.add(imported.FILE, 0, "damaged", found=str(error))

    def _check_dead_letters(self) -> None:
        """What was done with dead letters is whole."""
        try:
            deadletternote.read_note(self._storage)
        except Corrupt as error:
            self._report.add(deadletternote.FILE, 0, "damaged", found=str(error))

    def _check_starts(self) -> None:
        """Where queues begin is told by the file that is there."""
        there = read_object(self._storage, STARTS_FILE, self._report)
        if there is not None and read_starts(self._storage) is None:
            self._report.add(STARTS_FILE, 0, "damaged", found=shown(there))

    # ----------------------------------------------------------------------------- checkpoints

    def _check_checkpoint(self) -> None:
        """SF-84: length, and times that the log has reached."""
        data = self._read(CHECKPOINT)
        if data is None:
            return
        if len(data) != layout.CHECKPOINT_FILE_BYTES:
            expected = str(layout.CHECKPOINT_FILE_BYTES)
            self._report.add(CHECKPOINT, None, "wrong length", expected, f"{len(data)} bytes")
            return
        if not self._scope.whole or not self._scope.ours or self._found.lossy:
            return
        row = layout.CHECKPOINT.unpack(data)
        for name in _TOLD_ABOVE:
            if row[name] > self._found.last_ms:
                self._report.add(
                    CHECKPOINT, layout.CHECKPOINT.offset(name), f"{name} is behind the log",
                    f"at most {self._found.last_ms}", str(row[name]),
                )  # fmt: skip
        if self._is_exact() and self._found.all_ours:
            self._check_own_checkpoint(row, data)

    def _check_own_checkpoint(self, row: dict[str, int], data: bytes) -> None:
        """As the reader writes it at a clean stop: the log's last time and its end."""
        wanted = {
            "physic_msg_timestamp": self._found.last_ms,
            "logics_msg_timestamp": self._found.last_ms,
            "master_flushed_offset": self._found.log_end,
            "confirm_phy_offset": 0,
        }
        if not self._storage.exists(INDEX_FILE) or indexnote.read_note(self._storage):
            wanted["index_msg_timestamp"] = safe_time(self._storage)
        for name, value in wanted.items():
            if row[name] < value or (row[name] > value and name not in _TOLD_ABOVE):
                at = layout.CHECKPOINT.offset(name)
                self._report.add(CHECKPOINT, at, f"wrong {name}", str(value), str(row[name]))
        rest = data[layout.CHECKPOINT.size :]
        if any(rest):
            at = len(data) - len(rest.lstrip(b"\0"))
            self._report.add(CHECKPOINT, at, "bytes behind the last field", "zeroes")

    def _read(self, path: str) -> bytes | None:
        """A file's bytes; None without it, and one that a clean stop leaves is a finding then."""
        try:
            return read_file(self._storage, path)
        except FileNotFoundError:
            self._lacks(path)
            return None

    def _lacks(self, path: str) -> bool:
        """Whether a file is not there. One that every clean stop leaves is a finding then."""
        if self._storage.exists(path):
            return False
        if self._is_exact() and self._scope.ours:
            self._report.add(path, None, "missing file", "one that a start makes again")
        return True

    def _check_gantry_checkpoint(self) -> None:
        path, step = gantry_checkpoint.FILE, layout.GANTRY_CHECKPOINT_SLOT_BYTES
        if not self._storage.exists(path):
            self._report.add(path, None, "missing file")
            return
        data = read_file(self._storage, path)
        sizes = gantry_checkpoint.FILE_BYTES, 2 * step  # of a store that was made before
        if len(data) not in sizes:
            self._report.add(path, None, "wrong length", f"{sizes[0]}", f"{len(data)} bytes")
        self._check_slots(path, data, step)
        newest = gantry_checkpoint.read_checkpoint(self._storage)
        if newest is None:
            self._report.add(path, 0, "no valid slot")
            return
        at = newest.serial % 2 * step
        for name in ("durable", "dispatched"):
            value, end = getattr(newest, name), self._found.log_end
            wrong = value != end if self._is_exact() else value > end and not self._is_bounded()
            if wrong and not self._found.lossy:
                place = at + layout.GANTRY_CHECKPOINT.offset(name)
                self._report.add(path, place, f"wrong {name} position", str(end), str(value))

    def _check_slots(self, path: str, data: bytes, step: int) -> None:
        for at in range(0, len(data), step):
            padding = data[at + layout.GANTRY_CHECKPOINT.size : at + step]
            if any(padding):
                place = at + step - len(padding.lstrip(b"\0"))
                self._report.add(path, place, "bytes behind a slot", "zeroes")
            slot = data[at : at + layout.GANTRY_CHECKPOINT.size]
            if self._scope.whole and any(slot) and not _is_slot(slot):
                self._report.add(path, at, "damaged slot", "its CRC")

    def _is_exact(self) -> bool:
        """Whether our files must say the log's very end: nobody has gone on behind ours."""
        gone_on = self._scope.passed_on and self._found.log_end > self._scope.written.end
        return self._scope.whole and not gone_on and not self._scope.visited

    def _is_bounded(self) -> bool:
        """Whether the log was walked to a bound only, so that files may say more."""
        return self._scope.log_end is not None

    # --------------------------------------------------------------------------- derived tables

    def _check_progress(self) -> None:
        """`gantry/queues.json`: the log's end and each queue's units, at a clean stop."""
        if self._lacks(PROGRESS_FILE):
            return
        content = read_object(self._storage, PROGRESS_FILE, self._report)
        if content is None:
            return
        try:
            position = int(content["position"])
            units = {name: int(count) for name, count in content["queues"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            what = "position or queues are missing"
            self._report.add(PROGRESS_FILE, 0, what, found=shown(content))
            return
        if not self._is_exact() or self._found.lossy:
            return
        if position != self._found.log_end:
            self._report.add(
                PROGRESS_FILE, 0, "wrong position", str(self._found.log_end), str(position)
            )
        self._compare_units(units)

    def _compare_units(self, units: dict[str, int]) -> None:
        """What a clean stop has noted of each queue against the log."""
        # A queue whose records have all expired goes on where retention has noted.
        noted = read_starts(self._storage)
        firsts = noted[1] if noted else {}
        wanted = {f"{topic}@{queue_id}": first for (topic, queue_id), first in firsts.items()}
        wanted |= {f"{queue.topic}@{queue.queue_id}": queue.next for queue in self._found.queues}
        if noted is None and self._report.log_start:  # of other queues nothing is known
            units = {name: count for name, count in units.items() if name in wanted}
        for name in sorted(wanted.keys() | units.keys()):
            left, right = wanted.get(name, 0), units.get(name, 0)
            if left != right:
                self._report.add(
                    PROGRESS_FILE, 0, f"wrong number of units in {name}", f"{left}", f"{right}"
                )

    def _check_notes(self) -> None:
        """Notes of agents: with their checksums, and each the note of that name.

        That of the index is there if there are index files; of the others a store may lack any.
        """
        if self._storage.list(INDEX):
            self._lacks(INDEX_FILE)
        notes: tuple[tuple[str, Callable[[Storage], object | None]], ...] = (
            (INDEX_FILE, indexnote.read_note),
            (SCHEDULE_FILE, schedulenote.read_note),
            (TRANSACTIONS_FILE, transactionnote.read_note),
        )
        for path, read in notes:
            content = read_object(self._storage, path, self._report)
            if content is not None and read(self._storage) is None:
                self._report.add(path, 0, "no note of this name", found=str(sorted(content)))

    def _check_reserve(self) -> None:
        """`gantry/reserve`, if it is there: nothing but room."""
        try:
            data = read_file(self._storage, reserve.NAME)
        except FileNotFoundError:  # a full disk takes it, amid a check as well
            return
        # After a power cut it may be short: the next start makes it again.
        if len(data) != reserve.RESERVE_BYTES and self._scope.whole:
            wanted, found = f"{reserve.RESERVE_BYTES} bytes", f"{len(data)} bytes"
            self._report.add(reserve.NAME, 0, "wrong length", wanted, found)
        at = len(data) - len(data.lstrip(b"\0"))
        if at < len(data):
            self._report.add(reserve.NAME, at, "not empty", "zeroes", f"{data[at]:#x}")

    def _check_producers(self) -> None:
        path = producers.FILE
        data = self._read(path)
        if data is None:
            return
        size = layout.PRODUCERS_HEAD.size
        head = layout.PRODUCERS_HEAD.unpack(data) if len(data) >= size else {"magic": 0, "count": 0}
        length = size + head["count"] * layout.PRODUCER.size
        if head["magic"] != layout.PRODUCERS_MAGIC or len(data) != length:
            self._report.add(path, 0, "damaged header", f"{length} bytes", f"{len(data)} bytes")
            return
        bare = layout.PRODUCERS_HEAD.pack(**{**head, "crc": 0})
        crc = zlib.crc32(bare + data[size:])
        if crc != head["crc"]:
            at = layout.PRODUCERS_HEAD.offset("crc")
            self._report.add(path, at, "wrong CRC", f"{crc:#010x}", f"{head['crc']:#010x}")
        elif head["position"] > self._found.log_end and not self._is_bounded():
            at = layout.PRODUCERS_HEAD.offset("position")
            end = f"at most {self._found.log_end}"
            self._report.add(path, at, "position behind the log", end, str(head["position"]))


def _is_slot(slot: bytes) -> bool:
    if len(slot) < layout.GANTRY_CHECKPOINT.size:
        return False
    row = layout.GANTRY_CHECKPOINT.unpack(slot)
    whole = row["magic"] == layout.GANTRY_CHECKPOINT_MAGIC
    return bool(whole and zlib.crc32(slot[:-4]) == row["crc"])
