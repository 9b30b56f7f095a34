"""`_gantry/manifest.json`: which files a table has, and up to where it has read the log.

A file of clients/spark/sumfile.py. It is the truth about the table;
a file that it does not name does not belong to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.clients.spark.continuity import Proof
from gantrymq.clients.spark.sumfile import load
from gantrymq.shm.errors import Incompatible
from gantrymq.shm.valueranges import Count, Position

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

#: Spark, pyarrow and DuckDB pass over names that begin so.
DIRECTORY: Final = "_gantry"
MANIFEST: Final = f"{DIRECTORY}/manifest.json"
INTENT: Final = f"{DIRECTORY}/intent.json"
VERSION: Final = 1
#: Of folders and columns: 1 had `topic=T/date=D/` beside `_gantry/`, and no column `topic`.
LAYOUT: Final = 2


_REMEDY: Final = (
    ": without it nobody knows which files belong to the table. Put the folder back from a copy, or"
    " ingest into another one (--out): it gets what the log still has. The Parquet files are whole,"
    " and may be read as they are"
)


class DataFile(msgspec.Struct, frozen=True):
    """One Parquet file: rows of one topic and day from records that begin in [start, end)."""

    path: str
    start: Position
    end: Position
    rows: Count
    bytes: Count

    @property
    def folder(self) -> str:
        """Its partition: `data/folder=topic-.../date=...`."""
        return self.path.rpartition("/")[0]


class Manifest(msgspec.Struct, frozen=True):
    """The table as of one generation: all of the log from `begin` to `position` but for `gaps`.

    `layout` says how folders are called. `topics` are those asked for (none: all), `filter` an
    SQL92 expression ("": none), `columns` the Spark types of all columns so far.
    """

    version: Count
    generation: Count
    begin: Position
    position: Position
    topics: tuple[str, ...] = ()
    system: bool = False
    filter: str = ""
    columns: dict[str, str] = {}
    #: Whether a log is the one that was read up to `position`; empty of an older version.
    proof: Proof = Proof()
    layout: Count = 1
    gaps: tuple[tuple[Position, Position], ...] = ()
    files: tuple[DataFile, ...] = ()

    @property
    def rows(self) -> int:
        """Messages in the table."""
        return sum(file.rows for file in self.files)


class Move(msgspec.Struct, frozen=True):
    """A file that was written aside and its name in the table."""

    aside: str
    final: str


class Swap(msgspec.Struct, frozen=True):
    """A partition that was built anew aside; it is in place once `proof` is among its files."""

    aside: str
    final: str
    proof: str


class Intent(msgspec.Struct, frozen=True):
    """What becomes of the table: written before the first file gets its name."""

    manifest: Manifest
    moves: tuple[Move, ...] = ()
    swaps: tuple[Swap, ...] = ()


def load_manifest(storage: Storage) -> Manifest | None:
    """The table's manifest; None if there is none. Raises Corrupt or Incompatible."""
    found = load(storage, MANIFEST, Manifest, _REMEDY)
    if found is not None and found.version != VERSION:
        text = f"{MANIFEST} of {storage.root} has version {found.version}, not {VERSION}"
        raise Incompatible(text, path=MANIFEST)
    return found


def load_intent(storage: Storage) -> Intent | None:
    """The step that is being made, or was when its writer died. Raises Corrupt."""
    return load(storage, INTENT, Intent, _REMEDY)
