"""Small files of one partition become one: the partition is built anew aside and changes places."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from gantrymq.clients.spark.table.files import TableFiles
from gantrymq.clients.spark.table.manifest import DataFile, Swap
from gantrymq.clients.spark.table.writing import (
    BUFFERED_MAX,
    ROW_GROUP,
    file_name,
    open_writer,
    schema_of,
)

#: A merged file has about this size at most.
TARGET_BYTES: Final = 256 << 20
#: So many neighbours below one of these sizes are merged: few files, and each byte is written at
#: most once per size.
FILES_MIN: Final = 8
_TIERS: Final = (1 << 20, 8 << 20, 64 << 20)
_BATCH_ROWS: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Neighbours of one partition, in the log's order, that become one file.

    `aside` is the step's folder, `types` the table's columns.
    """

    root: str
    aside: str
    files: tuple[DataFile, ...]
    types: dict[str, str]


@dataclass(frozen=True, slots=True)
class Merged:
    """The new partition aside, the file in it, and which files it stands for."""

    swap: Swap
    file: DataFile
    files: tuple[DataFile, ...]


def mergeable(files: tuple[DataFile, ...]) -> list[tuple[DataFile, ...]]:
    """At most one run of small neighbours per partition."""
    ordered = sorted(files, key=lambda file: (file.folder, file.start, file.path))
    found = []
    for _, group in groupby(ordered, key=lambda file: file.folder):
        run = _run_of(list(group))
        if run:
            found.append(run)
    return found


def _run_of(files: list[DataFile]) -> tuple[DataFile, ...]:
    """The first run of neighbours below the smallest size that has enough of them."""
    for tier in _TIERS:
        for small, group in groupby(files, key=lambda file: file.bytes < tier):
            run = _up_to_target(list(group)) if small else ()
            if len(run) >= FILES_MIN:
                return run
    return ()


def _up_to_target(files: list[DataFile]) -> tuple[DataFile, ...]:
    total = 0
    for number, file in enumerate(files):
        total += file.bytes
        if total > TARGET_BYTES:
            return tuple(files[:number])
    return tuple(files)


def merge(task: MergeTask) -> Merged:
    """Write the new file and link all others beside it. Raises OSError, Corrupt.

    A task that is run twice, even at one time, makes two folders, of which one is taken.
    """
    files = TableFiles(task.root)
    folder = task.files[0].folder
    name = _new_name(files.list(folder), task.files[0].start, task.files[-1].end)
    partition = f"{task.aside}/{uuid.uuid4().hex}"
    files.make_directory(partition)
    aside = f"{partition}/{name}"
    rows = _write(files.path(aside), [files.path(file.path) for file in task.files], task.types)
    files.sync_file(aside)
    old = {file.path.rpartition("/")[2] for file in task.files}
    for other in files.list(folder):
        if other not in old:
            files.link(f"{folder}/{other}", f"{partition}/{other}")
    files.sync_directory(partition)
    size = files.size_of(aside)
    made = DataFile(f"{folder}/{name}", task.files[0].start, task.files[-1].end, rows, size)
    return Merged(Swap(partition, folder, name), made, task.files)


def _new_name(there: list[str], start: int, end: int) -> str:
    """One that the partition has not: the file is in place once its name is (manifest.Swap)."""
    numbered = (file_name(start, end, number) for number in count())
    return next(name for name in numbered if name not in there)


def _write(path: str, sources: list[str], types: dict[str, str]) -> int:
    """All rows of the sources with every column that one of them has; how many there are."""
    opened = [parquet.ParquetFile(source) for source in sources]
    present = {name for file in opened for name in file.schema_arrow.names}
    schema = schema_of({name: kind for name, kind in types.items() if name in present})
    rows = 0
    kept: list[Any] = []
    with open_writer(path, schema) as writer:
        for file in opened:
            for batch in _batches(file, schema):
                kept.append(batch)
                rows += len(batch)
                if _is_group(kept):
                    writer.write_table(pa.Table.from_batches(kept), row_group_size=ROW_GROUP)
                    kept.clear()
            file.close()
        if kept:
            writer.write_table(pa.Table.from_batches(kept), row_group_size=ROW_GROUP)
    return rows


def _is_group(kept: list[Any]) -> bool:
    """Whether there is enough for a row group, so that it does not grow with the file's bodies."""
    rows = sum(map(len, kept))
    return rows >= ROW_GROUP or sum(batch.nbytes for batch in kept) >= BUFFERED_MAX


def _batches(file: Any, schema: pa.Schema) -> Iterator[Any]:  # noqa: ANN401 - pa.RecordBatch
    """A file's rows; columns that it has not yet are null."""
    for batch in file.iter_batches(_BATCH_ROWS):
        names = batch.schema.names
        arrays = [
            batch.column(field.name).cast(field.type)
            if field.name in names
            else pa.nulls(len(batch), field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
