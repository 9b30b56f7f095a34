"""How much of a store has to hold: it depends on whether it was stopped, killed, or is running."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brokerd.checkpoint import read_checkpoint
from brokerd.lock import is_held
from clients.home import read_board_file, store_of
from shm import layout
from shm.board import attach_board
from shm.errors import BrokerGone, Incompatible, StoreBusy
from shm.storage import Storage, read_file

STORE_FILE: Final = "gantry/store.json"
QUEUES_FILE: Final = "gantry/queues.json"


@dataclass(frozen=True, slots=True)
class Scope:
    """Bounds in log positions; None = to the end.

    Records below `log_end` must be sound, records below `units_end` must have their units. With
    `whole` nothing else may be there: neither bytes behind the log's end nor further units.
    """

    state: str
    ours: bool
    log_end: int | None = None
    units_end: int | None = None

    @property
    def whole(self) -> bool:
        """True for a store that was stopped cleanly."""
        return self.state == "stopped"


def find_scope(storage: Storage, root: Path) -> Scope:
    """Judge a store by its lock and its `abort` file.

    A running broker's store is judged below what its board calls dispatched; nothing there changes
    any more. Raises StoreBusy if the board of whoever holds the lock is not to be found.
    """
    ours = storage.exists(STORE_FILE)
    if is_held(root):
        dispatched = _dispatched(root)
        return Scope("running", ours, dispatched, dispatched)
    if not storage.exists("abort"):
        return Scope("stopped", ours)
    if not ours:
        return Scope("killed", ours, None, 0)
    checkpoint = read_checkpoint(storage)
    durable = checkpoint.durable if checkpoint else 0
    return Scope("killed", ours, durable, min(durable, _synced_units(storage)))


def _dispatched(root: Path) -> int:
    home = root.resolve().parent
    name = read_board_file(home).get("board", "")
    try:
        if name and store_of(home).resolve() == root.resolve():
            return attach_board(name).word(layout.BOARD_DISPATCHED)
    except (BrokerGone, Incompatible):
        pass  # a broker that is starting, or another program
    raise StoreBusy(
        f"a broker holds {root}, and how far its store is complete can't be told: stop it first",
        store=str(root),
    )


def _synced_units(storage: Storage) -> int:
    """Log position up to which all units were on the disk; 0 if the file does not say."""
    try:
        return int(json.loads(read_file(storage, QUEUES_FILE))["position"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0
