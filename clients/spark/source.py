"""The Spark data source `gantrymq`: a store's sealed segments as rows.

::

    spark.dataSource.register(GantryDataSource)
    spark.read.format("gantrymq").option("store", path).option("topic", "orders").load()

Options and columns: clients/spark/options.py. Bodies are as they were sent: those that a client of
RocketMQ has compressed (SF-25) are unpacked, and inner batches (RD-70) are split into their
messages; `sys_flag` is as stored. A half message is a row of its system topic. The segment that is
being written is left out unless `includeActive` is true. It must not import numba, which costs
every Python worker of Spark a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from clients.spark.columns import COLUMNS
from clients.spark.options import ReadOptions
from clients.spark.planning import plan
from clients.spark.scan import read
from shm.errors import SettingIllegal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class GantryDataSource(DataSource):
    """Batch reads of a store, ours or a real RocketMQ's."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` takes."""
        return "gantrymq"

    def schema(self) -> str:
        """All columns, or those of option `columns` in its order."""
        return ReadOptions.parse(self.options).schema

    def reader(self, schema: StructType) -> GantryReader:
        """Reader of the columns that the schema names."""
        unknown = [name for name in schema.fieldNames() if name not in COLUMNS]
        if unknown:
            raise SettingIllegal(f"no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
        return GantryReader(
            ReadOptions.parse(self.options), to_arrow_schema(schema, timezone="UTC")
        )


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
