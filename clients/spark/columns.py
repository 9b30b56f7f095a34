"""Records of a segment as the Arrow columns that Spark reads, without a loop over records.

Nothing here imports numba or Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.clients.spark.cutting import content, cut, pick, split, text
from gantrymq.clients.spark.damage import Damage
from gantrymq.clients.spark.jsonbodies import TypedBodies
from gantrymq.clients.spark.options import BODY_ERROR
from gantrymq.clients.spark.properties import (
    Properties,
    bytes_without_trailer,
    list_offsets,
    values_of,
)
from gantrymq.shm import layout
from gantrymq.shm.messageid import format_host, offset_message_id
from gantrymq.shm.record_columns import RecordColumns, gather

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TRANSACTIONS: Final = ("none", "prepared", "commit", "rollback")
#: Years 1 to 9999, which is what Spark's timestamps are good for; beyond them null.
_MS_MIN: Final = -62_135_596_800_000
_MS_MAX: Final = 253_402_300_799_999
_KEY_SEPARATOR: Final = 0x20


@dataclass(frozen=True)
class Rows:
    """Some records of one segment, with what is known of them; each array has one item per record.

    `topics[topic_numbers[i]]` is the topic of record i. `crc_ok` is False where damage may have
    changed anything; such rows become `damage`, which no other column is made of. `plain` has, by
    row, bodies that are not as they are stored; `typed` is what column `body` then is. `failed` has
    why a sound record's body cannot be had.
    """

    view: NDArray[np.uint8]
    base: int
    records: RecordColumns
    topic_numbers: NDArray[np.uint16]
    topics: list[str]
    crc_ok: NDArray[np.bool_]
    damage: Damage | None = None
    plain: Mapping[int, bytes | None] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    typed: TypedBodies | None = None

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def stored_properties(self) -> Any:  # noqa: ANN401 - pa.BinaryArray
        """Properties as they are stored, but for the checksum trailer."""
        records = self.records
        return cut(self.view, records.properties_at, bytes_without_trailer(self.view, records))

    @cached_property
    def properties(self) -> Properties:
        """Parsed when a column first asks for all of them."""
        return Properties.parse(self.stored_properties)

    def property(self, name: str) -> Any:  # noqa: ANN401 - pa.StringArray
        """One property's value per record, null where it is not there."""
        if "properties" in self.__dict__:
            return self.properties.values_of(name)
        return values_of(self.stored_properties, name)

    def stored(self, row: int) -> bytes:
        """A record's bytes."""
        at = int(self.records.at[row])
        return self.view[at : at + int(self.records.size[row])].tobytes()

    def batch(self, schema: Any) -> Any:  # noqa: ANN401 - pa.Schema, pa.RecordBatch
        """A record batch with the columns that the schema names; bodies are text if it says so."""
        if "properties" in schema.names:
            _ = self.properties  # all are needed: others take theirs from them
        arrays = [COLUMNS[field.name](self) for field in schema]
        for number, wanted in enumerate(schema):
            if pa.types.is_string(wanted.type) and pa.types.is_binary(arrays[number].type):
                arrays[number] = text(arrays[number])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ------------------------------------------------------------------------------------------ columns


def _integers(name: str, kind: Any) -> Callable[[Rows], Any]:  # noqa: ANN401 - pa.DataType
    dtype = kind.to_pandas_dtype()
    return lambda rows: pa.array(getattr(rows.records, name).astype(dtype))


def _times(name: str) -> Callable[[Rows], Any]:
    def column(rows: Rows) -> Any:  # noqa: ANN401
        ms = getattr(rows.records, name)
        outside = (ms < _MS_MIN) | (ms > _MS_MAX)
        return pa.array(np.where(outside, 0, ms) * 1000, mask=outside).cast(
            pa.timestamp("us", "UTC")
        )

    return column


def _attempts(rows: Rows) -> Any:  # noqa: ANN401
    attempts = np.minimum(rows.records.reconsume_times + 1, np.iinfo(np.int32).max)
    return pa.array(attempts.astype(np.int32))


def _body(rows: Rows) -> Any:  # noqa: ANN401
    return bodies_of(rows) if rows.typed is None else rows.typed.values


def _body_errors(rows: Rows) -> Any:  # noqa: ANN401
    return pa.nulls(len(rows.records), pa.string()) if rows.typed is None else rows.typed.errors


def _of_failed(rows: Rows, kind: Any, value: Callable[[int], Any]) -> Any:  # noqa: ANN401
    """A column that only rows without a body have."""
    if not rows.failed:
        return pa.nulls(len(rows), kind)
    return pa.array([value(row) if row in rows.failed else None for row in range(len(rows))], kind)


def bodies_of(rows: Rows) -> Any:  # noqa: ANN401 - pa.BinaryArray
    """Bodies as they were sent, as far as `plain` has them."""
    stored = cut(rows.view, rows.records.body_at, rows.records.body_bytes, ~rows.records.intact)
    if not rows.plain:
        return stored
    replaced = np.zeros(len(stored), np.bool_)
    replaced[list(rows.plain)] = True
    return pc.replace_with_mask(stored, replaced, _in_order(rows.plain))


def _in_order(plain: Mapping[int, bytes | None]) -> Any:  # noqa: ANN401 - pa.BinaryArray
    return pa.array([plain[row] for row in sorted(plain)], pa.binary())


def _keys(rows: Rows) -> Any:  # noqa: ANN401
    joined = rows.property("KEYS").fill_null("")
    data, edges = content(joined)
    item, start, end = split(data, edges, _KEY_SEPARATOR)
    good = end > start
    words = cut(data, start[good], (end - start)[good]).cast(pa.string())
    return pa.ListArray.from_arrays(list_offsets(item[good], len(joined)), words)


def rows_with_key(rows: Rows, key: str) -> NDArray[np.bool_]:
    """Which records have a key among theirs."""
    words = _keys(rows)
    hits = pc.equal(pc.list_flatten(words), key)
    found = np.zeros(len(rows.records), np.bool_)
    found[pc.list_parent_indices(words).filter(hits).to_numpy()] = True
    return found


def _message_ids(rows: Rows) -> Any:  # noqa: ANN401
    """UNIQ_KEY; records without one go by their offset message id, as in RocketMQ's clients."""
    unique = rows.property("UNIQ_KEY")
    if unique.null_count == 0:
        return unique
    missing = unique.is_null().to_numpy(zero_copy_only=False) & rows.records.intact
    ids: list[str | None] = [None] * len(rows.records)
    for number in np.flatnonzero(missing).tolist():
        at = int(rows.records.store_host_at[number])
        wide = int(rows.records.sys_flag[number]) & layout.SYS_STORE_V6
        host = rows.view[at : at + (layout.HOST_BYTES_V6 if wide else layout.HOST_BYTES_V4)]
        position = int(rows.records.physical_offset[number])
        ids[number] = offset_message_id(host.tobytes(), position)
    return pc.coalesce(unique, pa.array(ids, pa.string()))


def _born_hosts(rows: Rows) -> Any:  # noqa: ANN401
    at = rows.records.at + layout.RECORD_BORN_HOST
    wide = (rows.records.sys_flag & layout.SYS_BORN_V6 != 0) & rows.records.intact
    hosts, numbers = np.unique(gather(rows.view, at, "<u8"), return_inverse=True)
    names = [format_host(host.tobytes()) for host in hosts]
    for number in np.flatnonzero(wide).tolist():
        start = int(at[number])
        numbers[number] = len(names)
        names.append(format_host(rows.view[start : start + layout.HOST_BYTES_V6].tobytes()))
    return pick(names, numbers)


#: Arrow's types by Spark's (clients/spark/options.py), as Spark itself translates them.
ARROW_TYPES: Final[dict[str, Any]] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "boolean": pa.bool_(),
}

COLUMNS: Final[dict[str, Callable[[Rows], Any]]] = {
    "topic": lambda rows: pick(rows.topics, rows.topic_numbers),
    "queue_id": _integers("queue_id", pa.int32()),
    "queue_offset": _integers("queue_offset", pa.int64()),
    # The place in the log, also where damage hides what the record says of it.
    "physical_offset": lambda rows: pa.array(rows.base + rows.records.at),
    "message_id": _message_ids,
    "tag": lambda rows: rows.property("TAGS"),
    "keys": _keys,
    "properties": lambda rows: rows.properties.maps(),
    "body": _body,
    BODY_ERROR: _body_errors,
    "born_timestamp": _times("born_timestamp"),
    "store_timestamp": _times("store_timestamp"),
    "born_host": _born_hosts,
    "delivery_attempt": _attempts,
    "sys_flag": _integers("sys_flag", pa.int32()),
    "transaction": lambda rows: pick(_TRANSACTIONS, (rows.records.sys_flag >> 2) & 3),
    "crc_ok": lambda rows: (
        pa.array([row not in rows.failed for row in range(len(rows))])
        if rows.failed
        else pa.array(rows.crc_ok)
    ),
    "bad_reason": lambda rows: _of_failed(rows, pa.string(), rows.failed.__getitem__),
    "bad_size": lambda rows: _of_failed(rows, pa.int64(), lambda row: int(rows.records.size[row])),
    "bad_bytes": lambda rows: _of_failed(rows, pa.binary(), rows.stored),
}
