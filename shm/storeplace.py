"""Which places belong to a store: what a broker does not know is not to be made there.

A folder or file in a store that no broker has made would end it at its next start.
"""

from __future__ import annotations

import os
from pathlib import Path

from gantrymq.shm.errors import Rejected
from gantrymq.shm.lognames import DIRECTORY


def require_store(root: Path) -> None:
    """Raise FileNotFoundError if nothing below a directory is of a store, ours or a RocketMQ's."""
    if not any((root / name).is_dir() for name in (DIRECTORY, "config")):
        raise FileNotFoundError(f"{root} holds no store: neither commitlog/ nor config/ is there")


def store_around(place: Path) -> Path | None:
    """The store that a place lies in, or is; links and `..` are followed, as far as they lead."""
    real = Path(os.path.realpath(place))
    for folder in (real, *real.parents):
        if all(os.path.isdir(folder / name) for name in (DIRECTORY, "config")):
            return folder
    return None


def require_outside_stores(place: Path, what: str) -> None:
    """Raise Rejected if a place, which `what` names, lies in a store."""
    store = store_around(place)
    if store is None:
        return
    if os.path.realpath(place) == str(store):
        raise Rejected(f"{what} {place}: it is a store already: name a place outside")
    raise Rejected(
        f"{what} {place} lies in the store {store}, whose broker would not start with it: name"
        " a place outside"
    )
