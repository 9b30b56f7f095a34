"""What a task does with its rows: checked, and put aside as an Arrow file that the driver sends.

A task that is done again makes another file; only the one that Spark's driver is told of counts.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.clients import message as rules
from gantrymq.clients.delays import due_of
from gantrymq.clients.message import Message
from gantrymq.shm.errors import Corrupt, MessageIllegal
from gantrymq.shm.limits import RESERVED_KEYS
from gantrymq.shm.valueranges import Count

if TYPE_CHECKING:
    from collections.abc import Sequence

SUFFIX: Final = ".arrow"
#: Of a staged file; a column that the frame lacks is null.
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("body", pa.binary()),
        ("tag", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("queue_id", pa.int32()),
        ("message_group", pa.string()),
        ("delivery_timestamp", pa.int64()),
    ]
)
Batch = Any  # pa.RecordBatch; pyarrow ships no types


class Staged(msgspec.Struct, frozen=True):
    """A file of a folder: its name, rows, and the topics that they go to."""

    name: str
    rows: Count
    topics: tuple[str, ...]


def stage(folder: str, topic: str | None, batches: Iterable[Batch]) -> Staged | None:
    """Put rows aside, durably; None if there are none. Raises MessageIllegal, OSError."""
    name, rows, topics = uuid.uuid4().hex + SUFFIX, 0, set[str]()
    path = Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        with pa.ipc.new_stream(file, SCHEMA) as writer:
            for batch in batches:
                made = as_messages(batch, topic)
                check(made)
                writer.write_batch(made)
                rows += made.num_rows
                topics.update(pc.unique(made.column("topic")).to_pylist())
        file.flush()
        os.fsync(file.fileno())
    if rows:
        return Staged(name, rows, tuple(sorted(topics)))
    path.unlink()
    return None


def as_messages(batch: Batch, topic: str | None) -> Batch:
    """The rows with the columns of SCHEMA, those of one topic and queue side by side."""
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    if topic is not None:
        given["topic"] = pa.repeat(pa.scalar(topic, pa.string()), batch.num_rows)
    columns = []
    for field in SCHEMA:
        column = given.get(field.name)
        if column is None:
            column = pa.nulls(batch.num_rows, field.type)
        elif pa.types.is_timestamp(column.type):
            column = _milliseconds(column)
        columns.append(column.cast(field.type))
    made = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    if topic is not None and "queue_id" not in given:
        return made
    order = [("topic", "ascending"), ("queue_id", "ascending")]
    return made.take(pc.sort_indices(made, sort_keys=order))  # a stable sort


def _milliseconds(times: Any) -> Any:  # noqa: ANN401 - pa.TimestampArray
    """Unix ms, which is all that a broker's clock has, none of them before its time."""
    micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    whole = pc.divide(micros, 1000)  # cut towards 0: of what is before 1970 that is up
    is_less = pc.less(pc.multiply(whole, 1000), micros)
    return pc.add(whole, is_less.cast(pa.int64()))


def check(batch: Batch) -> None:
    """Find out here what no broker takes: a batch that is being sent must not be refused.

    Raises MessageIllegal.
    """
    for name in ("topic", "body"):
        if batch.column(name).null_count:
            raise MessageIllegal(f"a row has no {name}: column {name!r} is null")
    for topic in pc.unique(batch.column("topic")).to_pylist():
        rules.check_topic(topic)
    for tag in pc.unique(batch.column("tag")).to_pylist():
        rules.tag_block(tag)
    sizes = pc.binary_length(batch.column("body"))
    if batch.num_rows:
        rules.check_body(bytes(pc.max(sizes).as_py()))
    names = ("keys", "properties", "message_group", "delivery_timestamp")
    if any(batch.column(name).null_count < batch.num_rows for name in names):
        for message in messages_of(batch):
            _check_one(message)


def _check_one(message: Message) -> None:
    if message.message_group is not None:
        rules.check_message_group(message.message_group, message.queue_id)
    extra = rules.extra_block(message.keys, message.properties, message.message_group)
    rules.check_properties_bytes(len(rules.tag_block(message.tag)), len(extra))
    due_of(message)


def messages_of(batch: Batch) -> Iterator[Message]:
    """A staged batch, message by message."""
    columns = [batch.column(field.name).to_pylist() for field in SCHEMA]
    for topic, body, tag, keys, properties, queue_id, group, due_ms in zip(*columns, strict=True):
        stored = dict(properties or ())  # of a row that was read, with what the broker put there
        yield Message(
            topic,
            body,
            tag=stored.get("TAGS") if tag is None else tag,
            keys=tuple(stored.get("KEYS", "").split()) if keys is None else tuple(keys),
            properties={k: v for k, v in stored.items() if k not in RESERVED_KEYS},
            queue_id=queue_id,
            message_group=group,
            delivery_timestamp=due_ms,
        )


def staged_messages(folder: str, files: Sequence[Staged], skip: int) -> Iterator[Message]:
    """All messages of some files in order, but for the first `skip`. Raises Corrupt."""
    for file in files:
        if skip >= file.rows:
            skip -= file.rows
            continue
        yield from islice(_read(Path(folder, file.name), file.rows), skip, None)
        skip = 0


def _read(path: Path, rows: int) -> Iterator[Message]:
    count = 0
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
            for batch in reader:
                count += batch.num_rows
                yield from messages_of(batch)
    except (OSError, pa.ArrowInvalid) as error:
        raise Corrupt(f"rows that were staged are not there: {path}: {error}", path=path) from None
    if count != rows:
        raise Corrupt(f"{path} has {count} rows, not {rows}", path=path)
