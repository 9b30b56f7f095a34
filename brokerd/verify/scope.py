"""How much of a store has to hold: it depends on whether it was stopped, killed, or is running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantrymq.brokerd.checkpoint import FILE as CHECKPOINT_FILE
from gantrymq.brokerd.checkpoint import read_checkpoint
from gantrymq.clients.home import store_of
from gantrymq.clients.running import find_board
from gantrymq.shm import layout
from gantrymq.shm.errors import BrokerGone, Corrupt, Incompatible, NotPermitted, StoreBusy
from gantrymq.shm.lognames import bases_of
from gantrymq.shm.ranges import EVERYTHING, FILE, Ranges, read_ranges
from gantrymq.shm.storage import Storage
from gantrymq.shm.storelock import is_held
from gantrymq.workers.housekeeper.progress import read_progress

if TYPE_CHECKING:
    from gantrymq.brokerd.verify.report import Report
    from gantrymq.shm.board import Board

STORE_FILE: Final = "gantry/store.json"


def _nothing_goes() -> int:
    """Of a store that nobody has: what lies there stays."""
    return 0


@dataclass(frozen=True, slots=True)
class Scope:
    """Bounds in log positions; None = to the end.

    Records below `log_end` must be sound, records below `units_end` must have their units. With
    `whole` nothing else may be there: neither bytes behind the log's end nor further units.
    `written`: where trailers are binding. `passed_on`: another broker may have gone on behind it.
    `visited`: one has written its files, if not records, since our clean stop. `sure`: where the
    log ended when we were stopped; it may go on, and not end before. `low` says where a running
    broker's log begins by now: what is of records below goes, or is gone. It is asked after a look
    at files, never before: retention raises it first.
    """

    state: str
    ours: bool
    log_end: int | None = None
    units_end: int | None = None
    written: Ranges = EVERYTHING
    passed_on: bool = False
    visited: bool = False
    sure: int = 0
    low: Callable[[], int] = _nothing_goes

    @property
    def whole(self) -> bool:
        """True for a store that was stopped cleanly."""
        return self.state == "stopped"


def find_scope(storage: Storage, root: Path) -> Scope:
    """Judge a store by its lock and its `abort` file.

    A running broker's store is judged below what its board calls dispatched; nothing there changes
    any more. Raises StoreBusy if the board of whoever holds the lock is not to be found.
    """
    ours = any(storage.exists(path) for path in (STORE_FILE, FILE, CHECKPOINT_FILE))
    if is_held(root):
        dispatched = _dispatched(root)
        return Scope("running", ours, dispatched, dispatched, low=_Low(root))
    if not storage.exists("abort"):
        return Scope("stopped", ours)
    if not ours:
        return Scope("killed", ours, None, 0)
    checkpoint = read_checkpoint(storage)
    durable = checkpoint.durable if checkpoint else 0
    return Scope("killed", ours, durable, min(durable, _synced_units(storage)))


def with_ranges(scope: Scope, storage: Storage, segment_bytes: int, report: Report) -> Scope:
    """Add what GantryMQ wrote of the log, and what follows from it; damage is a finding."""
    if not scope.ours:
        return replace(scope, written=Ranges())
    try:
        if scope.state == "running":
            return replace(scope, written=read_ranges(storage) or EVERYTHING)
        if not storage.exists(FILE):
            report.add(FILE, None, "missing file")
        return _settled(scope, storage, segment_bytes)
    except Corrupt as error:
        report.add(error.fields.get("path") or FILE, None, "damaged", found=str(error))
        return scope


def _settled(scope: Scope, storage: Storage, segment_bytes: int) -> Scope:
    from gantrymq.brokerd.foreign import abort_is_ours, is_visited, settle_ranges

    checkpoint = read_checkpoint(storage)
    durable = checkpoint.durable if checkpoint else 0
    low = min(bases_of(storage), default=0)
    written = settle_ranges(storage, segment_bytes, low, durable, None)
    if written.is_open or (not scope.whole and abort_is_ours(storage, written.boot_id)):
        return replace(scope, written=written)
    if scope.whole:
        visited = is_visited(storage)
        return replace(scope, written=written, passed_on=True, visited=visited, sure=written.end)
    # Another broker was killed: how much of its own was synced is not known.
    return replace(scope, written=written, passed_on=True, log_end=None, units_end=0)


class _Low:
    """The board's `low`; behind a broker's end, or amid a start, what was known of it last."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._last = 0

    def __call__(self) -> int:
        board = _board_of(self._root)
        if board is not None:
            self._last = max(self._last, board.word(layout.BOARD_LOW))
        return self._last


def _board_of(root: Path) -> Board | None:
    """Of the broker that has a store; None of one that is starting, or of another program."""
    home = root.resolve().parent
    if store_of(home).resolve() != root.resolve():
        return None
    try:
        return find_board(home)
    except (BrokerGone, Incompatible, NotPermitted):
        return None


def _dispatched(root: Path) -> int:
    board = _board_of(root)
    if board is not None:
        return board.word(layout.BOARD_DISPATCHED)
    raise StoreBusy(
        f"a broker holds {root}, and how far its store is complete can't be told: stop it first",
        store=str(root),
    )


def _synced_units(storage: Storage) -> int:
    """Log position up to which all units were on the disk; 0 if the file does not say."""
    found = read_progress(storage)
    return found[0] if found else 0
