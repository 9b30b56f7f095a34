"""What stands behind a stored body, for Spark: members of inner batches, and unpacked bodies.

Both are rare: rows without them pay one look at all flags. Nothing here imports numba or Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gantrymq.clients.spark.columns import Rows
from gantrymq.clients.stored_body import plain_body
from gantrymq.shm.innerbatch import Member, is_inner_batch, members
from gantrymq.shm.layout import SYS_COMPRESSED
from gantrymq.shm.record_columns import RecordColumns

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: What bodies of one part unpack to together; one of them may have as much (stored_body).
PART_BYTES_MAX: Final = 256 << 20

#: Called with the log position of a record and what is wrong; raises if that ends the read.
Refuse = Callable[[int, str], None]


def split_batches(rows: Rows, refuse: Refuse) -> Rows:
    """Each inner batch as its messages, which have its place in the log, times and hosts (RD-73).

    One that is damaged inside stays one row, without a body.
    """
    records = rows.records
    inner = records.intact & is_inner_batch(records.sys_flag)
    if not inner.any():
        return rows
    wrong: dict[int, str] = {}
    found = {row: _members(rows, row, refuse, wrong) for row in np.flatnonzero(inner).tolist()}
    counts = np.ones(len(records), np.int64)
    for row, parts in found.items():
        counts[row] = 1 if parts is None else len(parts)
    source = np.repeat(np.arange(len(records)), counts)
    columns = {field.name: getattr(records, field.name)[source] for field in fields(records)}
    starts = np.cumsum(counts) - counts
    for row, parts in found.items():
        if parts:
            _fill(columns, int(starts[row]), parts)
    failed = {int(starts[row]): reason for row, reason in wrong.items()}
    return replace(
        rows,
        records=RecordColumns(**columns),
        topic_numbers=rows.topic_numbers[source],
        crc_ok=rows.crc_ok[source],
        plain=dict.fromkeys(failed),
        failed=failed,
    )


def _members(rows: Rows, row: int, refuse: Refuse, wrong: dict[int, str]) -> list[Member] | None:
    body = _stored(rows, row)
    try:
        return list(members(body))
    except ValueError as error:
        wrong[row] = f"the inner batch is damaged: {error}"
        refuse(rows.base + int(rows.records.at[row]), wrong[row])
        return None


def _fill(columns: dict[str, NDArray[Any]], first: int, parts: list[Member]) -> None:
    base = int(columns["body_at"][first])
    place = slice(first, first + len(parts))
    columns["queue_offset"][place] += np.arange(len(parts))
    columns["body_at"][place] = [base + part.body_at for part in parts]
    columns["body_bytes"][place] = [part.body_bytes for part in parts]
    columns["properties_at"][place] = [base + part.properties_at for part in parts]
    columns["properties_bytes"][place] = [part.properties_bytes for part in parts]


def unpacked(rows: Rows, refuse: Refuse) -> Iterator[Rows]:
    """With the plain form of compressed bodies, null where there is none.

    In parts whose bodies are no more together than an Arrow column holds, whatever they unpack to;
    damage comes with the last one.
    """
    packed = rows.records.intact & (rows.records.sys_flag & SYS_COMPRESSED != 0)
    packed[list(rows.failed)] = False
    plain, failed = dict(rows.plain), dict(rows.failed)
    first = total = 0
    for row in np.flatnonzero(packed).tolist():
        try:
            body = plain_body(_stored(rows, row), int(rows.records.sys_flag[row]))
        except ValueError as error:
            plain[row] = None
            failed[row] = f"the body cannot be unpacked: {error}"
            refuse(rows.base + int(rows.records.at[row]), failed[row])
            continue
        if total and total + len(body) > PART_BYTES_MAX:
            yield replace(_between(rows, plain, failed, first, row), damage=None)
            first, total = row, 0
            plain = {number: known for number, known in plain.items() if number >= row}
        plain[row] = body
        total += len(body)
    yield _between(rows, plain, failed, first, len(rows)) if packed.any() else rows


def _between(
    rows: Rows, plain: dict[int, bytes | None], failed: dict[int, str], first: int, end: int
) -> Rows:
    """Rows [first, end) with what is known of their bodies."""
    chosen = np.zeros(len(rows), np.bool_)
    chosen[first:end] = True
    return replace(
        rows,
        records=rows.records.where(chosen),
        topic_numbers=rows.topic_numbers[first:end],
        crc_ok=rows.crc_ok[first:end],
        plain={row - first: body for row, body in plain.items() if first <= row < end},
        failed={row - first: why for row, why in failed.items() if first <= row < end},
    )


def _stored(rows: Rows, row: int) -> memoryview:
    at = int(rows.records.body_at[row])
    return rows.view.data[at : at + int(rows.records.body_bytes[row])]
