"""The pin of an ingest in its store: what retention leaves until the table has it (ADR 0015)."""

from __future__ import annotations

import json
import re
from typing import Final

from gantrymq.shm.errors import SettingIllegal
from gantrymq.shm.lineage import lineage_of
from gantrymq.shm.lognames import PINS
from gantrymq.shm.storage import PosixStorage, read_file, replace_file

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class Pin:
    """`gantry/pins/NAME` of one table; in a store without `gantry/`, not ours, there is none."""

    def __init__(self, store: str, name: str, table: str, until_ratio: int = 100) -> None:
        """Raises SettingIllegal if the name is none, or is another table's."""
        if not _NAME.fullmatch(name) or name.endswith(".new"):
            text = f"{name!r} is no name: letters, digits, '_', '-', '.', at most 64 of them"
            raise SettingIllegal(text, name=name)
        self._storage = PosixStorage(store)
        self._file = f"{PINS}/{name}"
        self._content = {"until_ratio": until_ratio, "table": table}
        if name := lineage_of(self._storage).store:
            self._content["store"] = name
        self._is_ours = self._storage.is_directory("gantry")
        other = self._other_table()
        if other not in (None, table):
            text = f"pin {name} of {store} is that of {other}: give this ingest another --name"
            raise SettingIllegal(text, name=name)

    def move(self, position: int) -> None:
        """Hold the log from a position on, durably. Raises OSError."""
        if self._is_ours:
            content = json.dumps({"position": position, **self._content})
            replace_file(self._storage, self._file, content.encode())

    def _other_table(self) -> str | None:
        try:
            content = json.loads(read_file(self._storage, self._file))
            return str(content["table"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
