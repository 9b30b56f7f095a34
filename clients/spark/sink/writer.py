"""Writing into topics, the faces towards Spark: tasks stage their rows, the driver sends them.

No message is sent before all tasks of a batch have ended well; so a task that fails and is done
again doubles nothing, also where its rows come in another order. See docs/spark.md, "Writing".
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from gantrymq.clients.spark.sink.ledger import StagingFolder
from gantrymq.clients.spark.sink.options import FOLDER, WriteOptions
from gantrymq.clients.spark.sink.staging import Staged, stage
from gantrymq.shm.errors import SettingIllegal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: The only batch of a write that is no stream.
_ONLY_BATCH = 0


@dataclass(frozen=True)
class Done(WriterCommitMessage):
    """What a task tells the driver; None if it had no rows."""

    staged: Staged | None


def spark_process() -> tuple[int, float]:
    """Number and start of the Java process that this Python worker belongs to."""
    for parent in psutil.Process().parents():
        if parent.name().startswith("java"):
            return parent.pid, parent.create_time()
    return 0, psutil.boot_time()


class _Staging:
    """What both writers share; pickled to the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SettingIllegal("a log is only added to: use mode append")
        options.check_columns((field.name, field.dataType.simpleString()) for field in schema)
        self.options = options
        self.driver = spark_process()
        self.folder = ""

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Done:
        """Put a task's rows aside. Raises SettingIllegal in a cluster."""
        if spark_process() != self.driver:
            raise SettingIllegal(
                "rows can be written into a topic in local mode only: here the task runs in"
                " another process than the driver, and what it puts aside need not be there when"
                " the driver sends it to the broker of its own machine. Use master local[N]"
            )
        return Done(stage(self.folder, self.options.topic, batches))

    def send(self, messages: Sequence[Done | None], batch: int) -> None:
        """Send what the tasks have put aside."""
        from gantrymq.clients.spark.sink.sending import Target, send_batch

        target = Target(self.options.home, self.options.timeout_s)
        send_batch(target, StagingFolder(self.folder), batch, _files(messages))

    def drop(self, messages: Sequence[Done | None]) -> None:
        """Remove what is not sent; a batch that is being sent stays, to be gone on with."""
        folder = StagingFolder(self.folder)
        pending = folder.load().pending
        kept = set(pending.files if pending else ())
        folder.drop(file for file in _files(messages) if file not in kept)


def _files(messages: Sequence[Done | None]) -> tuple[Staged, ...]:
    return tuple(done.staged for done in messages if done is not None and done.staged is not None)


class GantryWriter(DataSourceArrowWriter):
    """One write of a frame. With `checkpointLocation` it is done once, however often repeated."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._staging = _Staging(options, schema, overwrite)
        self._is_own = options.checkpoint is None
        self._staging.folder = (
            tempfile.mkdtemp(prefix="gantrymq-write-")
            if self._is_own
            else str(Path(str(options.checkpoint), FOLDER))
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        """A task: put its rows aside."""
        return self._staging.stage(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The driver: send them all."""
        self._staging.send(messages, _ONLY_BATCH)  # type: ignore[arg-type]
        self._remove()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The driver, after an error."""
        self._staging.drop(messages)  # type: ignore[arg-type]
        self._remove()

    def _remove(self) -> None:
        if self._is_own:
            shutil.rmtree(self._staging.folder, ignore_errors=True)


class GantryStreamWriter(DataSourceStreamArrowWriter):
    """The batches of a streaming query, each of them once."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._staging = _Staging(options, schema, overwrite)
        self._staging.folder = options.stream_folder()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        """A task: put its rows aside."""
        return self._staging.stage(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The driver: send a batch, or what is missing of one that was broken off."""
        self._staging.send(messages, batchId)  # type: ignore[arg-type]

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The driver, after an error."""
        self._staging.drop(messages)  # type: ignore[arg-type]
