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


def store_around(place: Path, to_come: Path | None = None) -> Path | None:
    """The store that a place lies in, or is; links and `..` are followed, as far as they lead.

    `to_come` is one, too, whether or not it has been made.
    """
    real = Path(os.path.realpath(place))
    coming = Path(os.path.realpath(to_come)) if to_come else None
    for folder in (real, *real.parents):
        if folder == coming or all(os.path.isdir(folder / name) for name in (DIRECTORY, "config")):
            return folder
    return None


def require_outside_stores(place: Path, what: str, to_come: Path | None = None) -> None:
    """Raise Rejected if a place, which `what` names, lies in a store, as for `store_around`."""
    store = store_around(place, to_come)
    if store is None:
        return
    if os.path.realpath(place) == str(store):
        raise Rejected(f"{what} {place}: it is a store already: name a place outside")
    raise Rejected(
        f"{what} {place} lies in the store {store}, whose broker would not start with it: name"
        " a place outside"
    )
