"""The pin of an ingest in its store: what retention leaves until the table has it (ADR 0015)."""

from __future__ import annotations

import json
import re
from typing import Final

from gantrymq.clients.ownersstorage import OwnersStorage
from gantrymq.shm.errors import SettingIllegal
from gantrymq.shm.jsontext import parse_object
from gantrymq.shm.lineage import lineage_of
from gantrymq.shm.lognames import PINS
from gantrymq.shm.storage import read_file, replace_file

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class Pin:
    """`gantry/pins/NAME` of one table; in a store without `gantry/`, not ours, there is none."""

    def __init__(self, store: str, name: str, table: str, until_ratio: int = 100) -> None:
        """Raises SettingIllegal if the name is none, or is another table's."""
        if not _NAME.fullmatch(name) or name.endswith(".new"):
            text = f"{name!r} is no name: letters, digits, '_', '-', '.', at most 64 of them"
            raise SettingIllegal(text, name=name)
        self._storage = OwnersStorage(store)
        self._file = f"{PINS}/{name}"
        self._content = {"until_ratio": until_ratio, "table": table}
        self._store: str | None = None  # the id that it was written with
        self._is_ours = self._storage.is_directory("gantry")
        self._require_own(store, name, table)

    def move(self, position: int) -> None:
        """Hold the log from a position on, durably. Raises OSError, Corrupt."""
        if self._is_ours:
            self._store = lineage_of(self._storage).store
            named = {"store": self._store} if self._store else {}
            content = json.dumps({"position": position, **self._content, **named})
            replace_file(self._storage, self._file, content.encode())

    def follow(self, position: int) -> None:
        """Hold the same once more if the store's id has changed. Raises OSError, Corrupt.

        A back-up with all that the table has may have been put back since, with the pin of then.
        """
        if self._is_ours and self._store != lineage_of(self._storage).store:
            self.move(position)

    def _require_own(self, store: str, name: str, table: str) -> None:
        """Raise SettingIllegal for a pin that is, or may be, another table's."""
        remedy = "give this ingest another --name"
        try:
            other = parse_object(read_file(self._storage, self._file)).get("table")
            if not isinstance(other, str):
                raise ValueError("no table")
        except FileNotFoundError:
            return
        except ValueError as error:
            text = f"pin {name} of {store} does not say of which table it is ({error!r}): {remedy}"
            text += ", or remove it if it is this one's"
            raise SettingIllegal(text, name=name) from None
        if other != table:
            text = f"pin {name} of {store} is that of {other}: {remedy}"
            raise SettingIllegal(text, name=name)
