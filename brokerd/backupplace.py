"""Where a back-up may lie: not in a store, nor in what a running broker makes and removes.

A folder that a broker does not know would end it at its next start, or be removed by it.
"""

from __future__ import annotations

import os
from pathlib import Path

from gantrymq.clients.home import run_of, store_of
from gantrymq.shm.errors import Rejected
from gantrymq.shm.storeplace import require_outside_stores


def require_free(destination: Path) -> None:
    """Raise Rejected where something has that name, a link that leads nowhere included."""
    if os.path.lexists(destination):
        raise Rejected(f"{destination} is there already: name a new directory")


def require_outside(home: Path, destination: Path) -> None:
    """Raise Rejected for a place in the home's store or run directory, or in any other store.

    Also where that is reached by way of links or `..`, and for a place that would hold the store.
    """
    place, store = _real(destination), _real(store_of(home))
    if place in store.parents:
        raise Rejected(
            f"{destination} holds the store {store_of(home)}, which is to be copied: name a new"
            " directory beside it"
        )
    run = _real(run_of(home))
    for folder in (store, run):
        if folder in (place, *place.parents):
            raise Rejected(
                f"{destination} lies in {folder}, which is the broker's own: it would not start"
                " with a back-up in it, or would remove it. Name a directory outside"
            )
    require_outside_stores(destination, "back-up")


def _real(path: Path) -> Path:
    """Where a path leads, as far as it is there."""
    return Path(os.path.realpath(path))
