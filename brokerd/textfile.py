"""`metrics_textfile`: the metrics in a file for node_exporter, written by the supervisor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gantrymq.brokerd.config import Settings
from gantrymq.clients.home import store_of
from gantrymq.shm.ownfiles import replace_whole
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.storeplace import require_outside_stores

if TYPE_CHECKING:
    from gantrymq.brokerd.broker import Broker


def place_of(home: Path, settings: Settings) -> Path | None:
    """The file; None without the setting."""
    return home / settings.metrics_textfile if settings.metrics_textfile else None


def require_place(home: Path, settings: Settings) -> None:
    """Raise Rejected for a file in a store, also in the one that a first start makes at `home`."""
    place = place_of(home, settings)
    if place is not None:
        require_outside_stores(place, "metrics_textfile", to_come=store_of(home))


class Textfile:
    """Replaces the file on a timer; does nothing without the setting."""

    def __init__(self, broker: Broker) -> None:
        settings = broker.configuration.settings
        self._broker = broker
        self._path = place_of(broker.home, settings)
        self._interval_ns = settings.metrics_interval * 1_000_000_000
        self._next_ns = 0
        self._failed = False

    def write_if_due(self, now_ns: int) -> None:
        """Write it; a failure is told once, and mends itself."""
        if self._path is None or now_ns < self._next_ns:
            return
        self._next_ns = now_ns + self._interval_ns
        from gantrymq.brokerd.metrics import render

        text = render(self._broker.board, PosixStorage(str(self._broker.env.storage.root)))
        # node_exporter reads *.prom only: a name with another ending is never half a file to it.
        temporary = self._path.with_name(f".{self._path.name}.new")
        try:
            # The collector is another user; nothing in it is secret.
            replace_whole(self._path, text, temporary=temporary, mode=0o644)
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._broker.log.warning(
                    "metrics_not_written", path=str(self._path), error=str(error)
                )
