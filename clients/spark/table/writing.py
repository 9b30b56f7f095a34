"""One task of an ingest: a range of the log as Parquet files, one per topic and day, aside.

Runs wherever Spark sends it, and says what it wrote; the names of the files in the table follow
from the positions. A task that is run twice writes two sets aside, of which one is taken.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from clients.spark.columns import ARROW_TYPES, Rows
from clients.spark.damage import Damage
from clients.spark.options import BAD_TYPES, COLUMN_TYPES, ReadOptions
from clients.spark.planning import SegmentRange
from clients.spark.scan import read_plain, require_there
from clients.spark.table.files import TableFiles
from clients.spark.table.manifest import DataFile, Move

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Columns that are the names of folders.
TOPIC: Final = "topic"
DATE: Final = "date"
#: What Hive, Spark and their like read as null.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_DAY_MS: Final = 86_400_000
#: Behind it are years that neither Spark nor Python knows (clients/spark/columns.py).
_DAYS_MAX: Final = 2_932_896
#: Bytes of rows that a task keeps before it writes; compressed bodies may unpack to any size.
_BUFFERED_MAX: Final = 192 << 20
_ROW_GROUP: Final = 1 << 17
#: Few values, many times.
_REPEATED: Final = ("tag", "born_host", "transaction")
_MAPS_AND_BODIES: Final = ("body", "properties", "keys")


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A range whose records begin in [start, end) of the log, and the folder aside for its files.

    `root` is the table's path; the options' columns are those to write, with `topic` left out.
    """

    options: ReadOptions
    part: SegmentRange
    start: int
    end: int
    root: str
    aside: str


@dataclass(frozen=True, slots=True)
class Written:
    """A durable file aside and what it is to be; `bad` of its rows stand for no sound message."""

    move: Move
    file: DataFile
    bad: int


def columns_of(options: ReadOptions) -> tuple[str, ...]:
    """Columns within the files."""
    return tuple(name for name in options.columns if name != TOPIC)


def types_of(options: ReadOptions) -> dict[str, str]:
    """Spark's types of the columns within the files."""
    known = COLUMN_TYPES | BAD_TYPES
    return {name: known[name] for name in columns_of(options)}


def schema_of(types: dict[str, str]) -> pa.Schema:
    """Arrow's schema of columns given by Spark's types."""
    return pa.schema([(name, ARROW_TYPES[kind]) for name, kind in types.items()])


def file_name(start: int, end: int) -> str:
    """Name within its partition of a file about the records that begin in [start, end)."""
    return f"{start:020d}-{end:020d}.parquet"


def write_range(task: RangeTask) -> list[Written]:
    """Write and sync the files of one range. Raises Corrupt, StoreFailed, OSError."""
    columns = columns_of(task.options)
    schema = schema_of(types_of(task.options))
    with _Sink(task, schema) as sink:
        for rows in read_plain(task.part, task.options, bodies="body" in columns):
            if len(rows):
                _add_rows(sink, rows, schema)
            if rows.damage is not None:
                _add_damage(sink, rows.damage, schema)
            require_there(task.part, task.options)
        return sink.finish()


def _add_rows(sink: _Sink, rows: Rows, schema: pa.Schema) -> None:
    batch = rows.batch(schema)
    failed = np.zeros(len(rows), np.bool_)
    failed[list(rows.failed)] = True
    for partition, chosen in _partitions(rows):
        part = batch if len(chosen) == len(batch) else batch.take(pa.array(chosen))
        sink.add(partition, part, int(failed[chosen].sum()))


def _add_damage(sink: _Sink, damage: Damage, schema: pa.Schema) -> None:
    """To the rows of no day; of no topic, unless it is sure."""
    for few in damage.batches():
        batch = few.batch(schema)
        topics = np.array([stretch.topic for stretch in few.stretches])
        for topic in np.unique(topics).tolist():
            chosen = np.flatnonzero(topics == topic)
            sink.add(partition_of(topic, -1), batch.take(pa.array(chosen)), len(chosen))


def _partitions(rows: Rows) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Folders of the rows and which rows belong there, in the log's order."""
    days = rows.records.store_timestamp // _DAY_MS
    days = np.where((days < 0) | (days > _DAYS_MAX), -1, days)
    codes = (days + 1) * len(rows.topics) + rows.topic_numbers
    found, place = np.unique(codes, return_inverse=True)
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place))
    for number, code in enumerate(found.tolist()):
        day, topic = divmod(code, len(rows.topics))
        folder = partition_of(rows.topics[topic], day - 1)
        first = int(ends[number - 1]) if number else 0
        yield folder, order[first : int(ends[number])]


def partition_of(topic: str, day: int) -> str:
    """The folder of a topic and a day since 1970 (below 0: none), as Hive writes names."""
    date = _NULL if day < 0 else datetime.fromtimestamp(day * _DAY_MS // 1000, UTC).date()
    return f"{TOPIC}={quote(topic, safe='') or _NULL}/{DATE}={date}"


def open_writer(path: str, schema: pa.Schema) -> Any:  # noqa: ANN401 - parquet.ParquetWriter
    """A writer with the settings of all files of a table."""
    names = schema.names
    return parquet.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=[name for name in _REPEATED if name in names],
        write_statistics=[name for name in names if name not in _MAPS_AND_BODIES],
    )


class _Sink:
    """Files of one task, by partition: rows are kept until there are many, or the end is there."""

    def __init__(self, task: RangeTask, schema: pa.Schema) -> None:
        self._task = task
        self._files = TableFiles(task.root)
        self._schema = schema
        self._attempt = uuid.uuid4().hex
        self._kept: dict[str, list[Any]] = {}
        self._kept_bytes = 0
        #: Rows and bad ones.
        self._counts: dict[str, tuple[int, int]] = {}
        #: The place of a partition numbers its file.
        self._writers: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def add(self, partition: str, batch: Any, bad: int) -> None:  # noqa: ANN401
        """Take a record batch, in the log's order; `bad` of its rows stand for no sound message."""
        rows, known = self._counts.get(partition, (0, 0))
        self._counts[partition] = rows + len(batch), known + bad
        self._kept.setdefault(partition, []).append(batch)
        self._kept_bytes += batch.get_total_buffer_size()
        if self._kept_bytes > _BUFFERED_MAX:
            self._flush()

    def _flush(self) -> None:
        for partition, batches in self._kept.items():
            writer = self._writers.get(partition)
            if writer is None:
                path = self._path(len(self._writers))
                writer = self._writers[partition] = open_writer(path, self._schema)
            writer.write_table(pa.Table.from_batches(batches), row_group_size=_ROW_GROUP)
        self._kept.clear()
        self._kept_bytes = 0

    def finish(self) -> list[Written]:
        """Write what is left, sync all files and say what they are."""
        self._flush()
        found = []
        for number, (partition, writer) in enumerate(self._writers.items()):
            writer.close()
            self._files.sync_file(self._aside(number))
            found.append(self._written(partition, number))
        return found

    def _written(self, partition: str, number: int) -> Written:
        start, end = self._task.start, self._task.end
        rows, bad = self._counts[partition]
        final = f"{partition}/{file_name(start, end)}"
        file = DataFile(final, start, end, rows, self._files.size_of(self._aside(number)))
        return Written(Move(self._aside(number), final), file, bad)

    def _aside(self, number: int) -> str:
        return f"{self._task.aside}/{self._task.start:020d}-{self._attempt}-{number}.part"

    def _path(self, number: int) -> str:
        return self._files.path(self._aside(number))
