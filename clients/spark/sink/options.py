"""Options of a write, and the columns that it takes, checked before a task runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantrymq.clients.message import check_topic
from gantrymq.clients.spark.options import by_lower_name
from gantrymq.shm.errors import SettingIllegal
from gantrymq.shm.jsontext import parse_object

#: The columns that a message is made of, and what Spark may call their types.
COLUMN_TYPES: Final = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tag": ("string",),
    "keys": ("array<string>",),
    "properties": ("map<string,string>",),
    "queue_id": ("int",),
    "message_group": ("string",),
    "delivery_timestamp": ("timestamp", "bigint"),
}
#: Below the checkpoint: what is staged and the ledger.
FOLDER: Final = "gantrymq"
TIMEOUT_S: Final = 30.0
_KNOWN: Final = {
    name.lower(): name for name in ("home", "store", "topic", "checkpointLocation", "timeout")
}
#: Python takes digits of all scripts, and lines between them.
_NUMBER: Final = re.compile("[0-9.eE+-]+")
#: Spark adds what its own stream writer was told.
_SPARKS: Final = frozenset({"queryname"})


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of one write; `timeout_s` bounds each wait for the broker, in seconds."""

    home: str | None = None
    topic: str | None = None  # None: column `topic`
    checkpoint: str | None = None
    timeout_s: float = TIMEOUT_S

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Check what `.option(...)` gave. Raises SettingIllegal, MessageIllegal."""
        told = {name: text for name, text in options.items() if name.lower() not in _SPARKS}
        given = by_lower_name(told, _KNOWN, " of a write")
        topic = given.get("topic")
        if topic is not None:
            check_topic(topic)
        checkpoint = given.get("checkpointlocation")
        return cls(
            home=_home(given.get("home"), given.get("store")),
            topic=topic,
            checkpoint=None if checkpoint is None else _local(checkpoint),
            timeout_s=_seconds(given.get("timeout", str(TIMEOUT_S))),
        )

    def check_columns(self, columns: Iterable[tuple[str, str]]) -> None:
        """Names and Spark types of a frame. Raises SettingIllegal."""
        types = dict(columns)
        for name, kind in types.items():
            wanted = COLUMN_TYPES.get(name)
            if wanted is None:
                names = ", ".join(COLUMN_TYPES)
                raise SettingIllegal(
                    f"a message has no column {name!r}: select some of {names}", name=name
                )
            if kind not in wanted:
                raise SettingIllegal(f"column {name!r} is {kind}, not {' or '.join(wanted)}")
        if "body" not in types:
            raise SettingIllegal("column 'body' is missing: a message has one")
        if ("topic" in types) == (self.topic is not None):
            raise SettingIllegal("give option 'topic' or a column of that name, one of the two")

    def stream_folder(self) -> str:
        """Where a streaming query stages: a folder of its own in its checkpoint.

        Raises SettingIllegal without one.
        """
        if self.checkpoint is None:
            raise SettingIllegal(
                "option 'checkpointLocation' is missing: with it a batch that is done again is"
                " not sent again (a default of the session is not seen here)"
            )
        metadata = Path(self.checkpoint, "metadata")
        try:
            query = parse_object(metadata.read_bytes()).get("id")
            if not isinstance(query, str):
                raise ValueError("no id")
        except (OSError, ValueError) as error:
            raise SettingIllegal(f"{metadata} does not say the query's id: {error}") from None
        return f"{self.checkpoint}/{FOLDER}/{query}"


def _home(home: str | None, store: str | None) -> str | None:
    if store is None or home is not None:
        return home
    root = Path(store.removeprefix("file://"))
    if root.name != "store":
        raise SettingIllegal(f"option 'store' = {store!r} is not HOME/store: give option 'home'")
    return str(root.parent)


def _local(checkpoint: str) -> str:
    path = checkpoint.removeprefix("file://")
    if not path.startswith("/") and ":" in path.partition("/")[0]:
        raise SettingIllegal(
            f"option 'checkpointLocation' = {checkpoint!r}: a write needs one on this machine"
        )
    return str(Path(path).absolute())


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if _NUMBER.fullmatch(text) else 0.0
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise SettingIllegal(f"option 'timeout' = {text!r} is no number of seconds")
    return seconds
