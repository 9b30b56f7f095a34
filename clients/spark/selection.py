"""Which rows of a range a read asks for: what is sound, of wanted topics, times, queues and keys.

Nothing here imports numba or Spark.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.clients.spark.columns import Rows, rows_with_key
from gantrymq.clients.spark.damage import RECORD_WRONG, Damage, Stretch
from gantrymq.clients.spark.options import OFFSET_MAX, ReadOptions
from gantrymq.shm.filter import SqlFilter, parse_sql
from gantrymq.shm.record_columns import find_lost
from gantrymq.shm.sql92.tree import Property, walk

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Results that are kept: what a filter says of the same values.
_KNOWN_MAX: Final = 1 << 16


def sound_rows(rows: Rows, *, topics_are_sure: bool) -> Rows:
    """The rows with what is not sound among their damage; topics are sure if a sidecar has them."""
    if rows.crc_ok.all():
        return rows
    records = rows.records.where(~rows.crc_ok)
    names = [rows.topics[number] for number in rows.topic_numbers[~rows.crc_ok].tolist()]
    wrong = [
        Stretch(at, size, RECORD_WRONG, topic if topics_are_sure else "")
        for at, size, topic in zip(records.at.tolist(), records.size.tolist(), names, strict=True)
    ]
    known = rows.damage.stretches if rows.damage is not None else ()
    damage = Damage(rows.view, rows.base, tuple(sorted((*known, *wrong))))
    return replace(_where(rows, rows.crc_ok), damage=damage)


def wanted_records(rows: Rows, options: ReadOptions) -> Rows:
    """Records of wanted topics, times and queues; damage has none of these, and stays."""
    wanted = np.array([options.wants(name) for name in rows.topics], bool)
    keep = wanted[rows.topic_numbers]
    if options.start_ms is not None:
        keep &= rows.records.store_timestamp >= options.start_ms
    if options.end_ms is not None:
        keep &= rows.records.store_timestamp < options.end_ms
    if not options.include_lost:
        places, sizes = rows.records.properties_at, rows.records.properties_bytes
        keep[find_lost(rows.view, places, sizes)] = False
    if options.queues:
        keep &= np.isin(rows.records.queue_id, list(options.queues))
    return _where(rows, keep)


def wanted_messages(rows: Rows, options: ReadOptions) -> Rows:
    """Messages of wanted queue offsets and keys for which the filter is true.

    Inner batches have been split: each of their messages counts by itself. One that is damaged
    inside stays.
    """
    if options.start_queue_offset > 0 or options.end_queue_offset < OFFSET_MAX:
        offsets = rows.records.queue_offset
        within = (offsets >= options.start_queue_offset) & (offsets < options.end_queue_offset)
        rows = _where(rows, _or_failed(rows, within))
    if options.key is not None and len(rows):
        rows = _where(rows, _or_failed(rows, rows_with_key(rows, options.key)))
    if options.filter and len(rows):
        rows = _where(rows, _or_failed(rows, _Filter.of(options.filter).passes(rows)))
    return rows


class _Filter:
    """An SQL92 filter over columns: what it says of the same values is asked for once."""

    def __init__(self, chosen: SqlFilter) -> None:
        self._chosen = chosen
        found = {node.name for node in walk(chosen.node) if isinstance(node, Property)}
        self._names = sorted(found)
        self._known: dict[tuple[str | None, ...], bool] = {}

    @staticmethod
    @lru_cache(maxsize=8)
    def of(text: str) -> _Filter:
        """The filter of a text. Raises FilterSyntaxError."""
        return _Filter(parse_sql(text))

    def passes(self, rows: Rows) -> NDArray[np.bool_]:
        """For which rows it is true."""
        if not self._names:
            return np.full(len(rows), self._chosen.matches({}) is True)
        columns = [rows.properties.values_of(name).to_pylist() for name in self._names]
        return np.fromiter(map(self._says, zip(*columns, strict=True)), np.bool_, len(rows))

    def _says(self, values: tuple[str | None, ...]) -> bool:
        found = self._known.get(values)
        if found is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            there = zip(self._names, values, strict=True)
            properties = {name: value for name, value in there if value is not None}
            found = self._known[values] = self._chosen.matches(properties) is True
        return found


def _or_failed(rows: Rows, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What such a row would say of itself is not known."""
    if rows.failed:
        keep = keep.copy()
        keep[list(rows.failed)] = True
    return keep


def _where(rows: Rows, keep: NDArray[np.bool_]) -> Rows:
    """Chosen rows; bodies have not been unpacked yet."""
    if keep.all():
        return rows
    places = np.cumsum(keep) - 1
    failed = {int(places[row]): reason for row, reason in rows.failed.items() if keep[row]}
    return replace(
        rows,
        records=rows.records.where(keep),
        topic_numbers=rows.topic_numbers[keep],
        crc_ok=rows.crc_ok[keep],
        failed=failed,
        plain=dict.fromkeys(failed),
    )
