"""The Spark data source `gantrymq`: a store's segments as rows, and rows into topics.

::

    spark.dataSource.register(GantryDataSource)
    spark.read.format("gantrymq").option("store", path).option("topic", "orders").load()
    spark.readStream.format("gantrymq").option("store", path).load()

Options and columns: docs/spark.md. Bodies are as they were sent: those that a client of RocketMQ
has compressed (SF-25) are unpacked, and inner batches (RD-70) are split into their messages;
`sys_flag` is as stored. A half message is a row of its system topic. The segment that is being
written is read too unless `includeActive` is false. It must not import numba, which costs every
Python worker of Spark a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from gantrymq.clients.spark.catalog import options_in, options_of_table, with_options
from gantrymq.clients.spark.columns import COLUMNS
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.planning import plan
from gantrymq.clients.spark.pushdown import narrowed
from gantrymq.clients.spark.scan import read
from gantrymq.clients.spark.sink.options import WriteOptions
from gantrymq.clients.spark.sink.writer import GantryStreamWriter, GantryWriter
from gantrymq.clients.spark.stream import (
    Offset,
    end_position,
    first_offset,
    next_offset,
    parts_between,
)
from gantrymq.clients.spark.topics import require_topics
from gantrymq.shm.errors import SettingIllegal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


class GantryDataSource(DataSource):
    """Reads of a store, ours or a real RocketMQ's, and writes through a broker of ours."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` takes."""
        return "gantrymq"

    def schema(self) -> str:
        """All columns, or those of option `columns` in its order."""
        of_table = options_of_table(self.options)
        if of_table is None:
            return ReadOptions.parse(self.options).schema
        return with_options(ReadOptions.parse(of_table).column_types, of_table)

    def reader(self, schema: StructType) -> GantryReader:
        """Reader of the columns that the schema names."""
        options = self._read_options(schema)
        # Spark refuses a reader that takes filters unless its own setting is on.
        kind = FilteringReader if options.push_filters else GantryReader
        return kind(options, _arrow_schema(schema))

    def streamReader(self, schema: StructType) -> GantryStreamReader:
        """Reader of a stream of the columns that the schema names."""
        return GantryStreamReader(self._read_options(schema), _arrow_schema(schema))

    def _read_options(self, schema: StructType) -> ReadOptions:
        """Those of a table, and what a query of it says besides (`WITH (...)`)."""
        told = options_of_table(self.options) or self.options
        options = ReadOptions.parse(options_in(schema) | dict(told))
        require_topics(options)
        return options

    def writer(self, schema: StructType, overwrite: bool) -> GantryWriter:
        """Writer of a frame's rows into a topic."""
        return GantryWriter(WriteOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> GantryStreamWriter:
        """Writer of a streaming query's rows into a topic."""
        return GantryStreamWriter(WriteOptions.parse(self.options), schema, overwrite)


def _arrow_schema(schema: StructType) -> pa.Schema:
    unknown = [name for name in schema.fieldNames() if name not in COLUMNS]
    if unknown:
        raise SettingIllegal(f"no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    return to_arrow_schema(schema, timezone="UTC")


class GantryReader(DataSourceReader):
    """Plans in the driver's worker, reads in the executors' ones; pickled in between."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self.arrow_schema = schema

    def partitions(self) -> list[InputPartition]:
        """One partition per range of about 64 MiB; the log as it is now."""
        return [InputPartition(part) for part in plan(self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of one range; a plan without ranges comes as a partition of None."""
        if partition.value is not None:
            yield from read(partition.value, self.options, self.arrow_schema)


class FilteringReader(GantryReader):
    """The same with Spark's own filters: segments and rows that they exclude are not read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what helps; Spark looks at all of them again."""
        self.options = narrowed(self.options, filters)
        return filters


class GantryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A log as a stream. An offset has a position P: all records that begin before P are read.

    Offsets are in Spark's checkpoint only. Nothing is read that a power cut can take away: a
    checkpoint would point behind bytes that were written anew.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self.arrow_schema = schema
        self._target: int | None = None
        self._read_to = 0

    def initialOffset(self) -> Offset:
        """The beginning of the log, or option `startOffset`."""
        return first_offset(self.options)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Options `maxRowsPerTrigger`, `maxBytesPerTrigger`; of both the tighter one counts."""
        if self.options.max_rows is not None:
            return ReadMaxRows(self.options.max_rows)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Where the next micro-batch ends. Raises Incompatible if the checkpoint is not of it."""
        rows, size = self.options.max_rows, self.options.max_bytes
        if isinstance(limit, ReadAllAvailable):  # Trigger.Once says so
            rows = size = None
        end = next_offset(self.options, start, self._target, (rows, size))
        self._read_to = end["position"]
        return end

    def reportLatestOffset(self) -> Offset:
        """How far the log may be read, for Spark's progress reports."""
        return {"position": end_position(self.options, self._read_to)}

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes from now on is left to the next run."""
        self._target = end_position(self.options, 0)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Ranges of about 64 MiB between two offsets.

        Raises StoreFailed if some are gone, Incompatible if the offsets are of another log.
        """
        parts = parts_between(self.options, start, end)
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of one range."""
        if partition.value is not None:
            yield from read(partition.value, self.options, self.arrow_schema)
