"""One task of an ingest: a range of the log as Parquet files, one per topic and day, aside.

Runs wherever Spark sends it, and says what it wrote; the names of the files in the table follow
from the positions. A task that is run twice writes two sets aside, of which one is taken.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from gantrymq.clients.spark.columns import ARROW_TYPES, Rows
from gantrymq.clients.spark.damage import Damage
from gantrymq.clients.spark.options import BAD_TYPES, COLUMN_TYPES, ReadOptions
from gantrymq.clients.spark.planning import SegmentRange
from gantrymq.clients.spark.scan import read_plain, require_there
from gantrymq.clients.spark.table.files import TableFiles
from gantrymq.clients.spark.table.manifest import LAYOUT, DataFile, Move

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Names of folders. What a reader takes for columns of them must not parse as numbers or times,
#: but for the date: the topic is a column of the files.
TOPIC: Final = "topic"
DATE: Final = "date"
#: Readers are given this folder: all in it is Parquet.
DATA: Final = "data"
#: What a folder's name may have in bytes: no usual file system takes fewer.
_NAME_BYTES_MAX: Final = 143
_MARK_DIGITS: Final = 32
#: What Hive, Spark and their like read as null.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_DAY_MS: Final = 86_400_000
#: Behind it are years that neither Spark nor Python knows (clients/spark/columns.py).
_DAYS_MAX: Final = 2_932_896
#: Bytes of rows that a task keeps before it writes; compressed bodies may unpack to any size.
BUFFERED_MAX: Final = 192 << 20
ROW_GROUP: Final = 1 << 17
#: Few values, many times.
_REPEATED: Final = (TOPIC, "tag", "born_host", "transaction")
_MAPS_AND_BODIES: Final = ("body", "properties", "keys")


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A range whose records begin in [start, end) of the log, and the folder aside for its files.

    `root` is the table's path, `layout` the manifest's.
    """

    options: ReadOptions
    part: SegmentRange
    start: int
    end: int
    root: str
    aside: str
    layout: int


@dataclass(frozen=True, slots=True)
class Written:
    """A durable file aside and what it is to be; `bad` of its rows stand for no sound message."""

    move: Move
    file: DataFile
    bad: int


def types_of(options: ReadOptions, layout: int) -> dict[str, str]:
    """Spark's types of the columns within the files; the topic is always one of them."""
    known = COLUMN_TYPES | BAD_TYPES
    topic = (TOPIC,) if layout > 1 else ()
    return {name: known[name] for name in (*topic, *options.columns) if name != TOPIC or topic}


def schema_of(types: dict[str, str]) -> pa.Schema:
    """Arrow's schema of columns given by Spark's types."""
    return pa.schema([(name, ARROW_TYPES[kind]) for name, kind in types.items()])


def file_name(start: int, end: int, number: int = 0) -> str:
    """Name within its partition of a file about the records that begin in [start, end).

    Where there are several they are numbered.
    """
    which = f"-{number}" if number else ""
    return f"{start:020d}-{end:020d}{which}.parquet"


def write_range(task: RangeTask) -> list[Written]:
    """Write and sync the files of one range. Raises Corrupt, StoreFailed, OSError."""
    schema = schema_of(types_of(task.options, task.layout))
    sink = _Sink(task, schema)
    for rows in read_plain(task.part, task.options, bodies="body" in schema.names):
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
    for topic, day, chosen in _partitions(rows):
        part = batch if len(chosen) == len(batch) else batch.take(pa.array(chosen))
        sink.add(topic, day, part, int(failed[chosen].sum()))


def _add_damage(sink: _Sink, damage: Damage, schema: pa.Schema) -> None:
    """To the rows of no day; of no topic, unless it is sure."""
    for few in damage.batches():
        batch = few.batch(schema)
        topics = np.array([stretch.topic for stretch in few.stretches])
        for topic in np.unique(topics).tolist():
            chosen = np.flatnonzero(topics == topic)
            sink.add(topic, -1, batch.take(pa.array(chosen)), len(chosen))


def _partitions(rows: Rows) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """Topics and days of the rows and which rows are of each, in the log's order."""
    days = rows.records.store_timestamp // _DAY_MS
    days = np.where((days < 0) | (days > _DAYS_MAX), -1, days)
    codes = (days + 1) * len(rows.topics) + rows.topic_numbers
    found, place = np.unique(codes, return_inverse=True)
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place))
    for number, code in enumerate(found.tolist()):
        day, topic = divmod(code, len(rows.topics))
        first = int(ends[number - 1]) if number else 0
        yield rows.topics[topic], day - 1, order[first : int(ends[number])]


def partition_of(topic: str, day: int, layout: int = LAYOUT) -> str:
    """The folder of a topic and a day since 1970 (below 0: none), as Hive writes names.

    A name that is too long for a file system is cut, and ends with a hash of the topic.
    """
    date = _NULL if day < 0 else datetime.fromtimestamp(day * _DAY_MS // 1000, UTC).date()
    before, key = ("", "topic=") if layout == 1 else (f"{DATA}/", "folder=")
    sign = "" if layout == 1 else "topic-"
    words = f"{key}{sign}{quote(topic, safe='')}" if topic else f"{key}{_NULL}"
    if len(words) > _NAME_BYTES_MAX:
        mark = hashlib.sha256(topic.encode()).hexdigest()[:_MARK_DIGITS]
        words = f"{words[: _NAME_BYTES_MAX - len(mark) - 1].rstrip('%')}~{mark}"
    return f"{before}{words}/{DATE}={date}"


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


class _Part(NamedTuple):
    """A file aside that is whole: which of its partition's, with rows and bad ones."""

    partition: str
    number: int
    rows: int
    bad: int


class _Sink:
    """Files of one task, by partition: rows are kept until there are many, or the end is there.

    One file is open at a time: a log may have more topics than a process may have files.
    """

    def __init__(self, task: RangeTask, schema: pa.Schema) -> None:
        self._task = task
        self._files = TableFiles(task.root)
        self._schema = schema
        self._attempt = uuid.uuid4().hex
        self._kept: dict[str, list[Any]] = {}
        self._kept_bytes = 0
        #: Of what is kept.
        self._bad: Counter[str] = Counter()
        self._made: Counter[str] = Counter()
        self._parts: list[_Part] = []

    def add(self, topic: str, day: int, batch: Any, bad: int) -> None:  # noqa: ANN401
        """Take a record batch, in the log's order; `bad` of its rows stand for no sound message."""
        partition = partition_of(topic, day, self._task.layout)
        self._bad[partition] += bad
        self._kept.setdefault(partition, []).append(batch)
        self._kept_bytes += batch.get_total_buffer_size()
        if self._kept_bytes > BUFFERED_MAX:
            self._flush()

    def _flush(self) -> None:
        for partition, batches in self._kept.items():
            aside = self._aside(len(self._parts))
            rows = pa.Table.from_batches(batches)
            with open_writer(self._files.path(aside), self._schema) as writer:
                writer.write_table(rows, row_group_size=ROW_GROUP)
            self._files.sync_file(aside)
            part = _Part(partition, self._made[partition], len(rows), self._bad[partition])
            self._parts.append(part)
            self._made[partition] += 1
        self._kept.clear()
        self._bad.clear()
        self._kept_bytes = 0

    def finish(self) -> list[Written]:
        """Write what is left, and say what the files are; all are durable."""
        self._flush()
        return [self._written(number, part) for number, part in enumerate(self._parts)]

    def _written(self, number: int, part: _Part) -> Written:
        start, end = self._task.start, self._task.end
        aside = self._aside(number)
        final = f"{part.partition}/{file_name(start, end, part.number)}"
        file = DataFile(final, start, end, part.rows, self._files.size_of(aside))
        return Written(Move(aside, final), file, part.bad)

    def _aside(self, number: int) -> str:
        return f"{self._task.aside}/{self._task.start:020d}-{self._attempt}-{number}.part"
