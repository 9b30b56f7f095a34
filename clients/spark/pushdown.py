"""Spark's filters as options of the read: each only leaves out what Spark would leave out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from gantrymq.clients.spark.options import OFFSET_MAX, ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_LOWER: Final = (EqualTo, GreaterThan, GreaterThanOrEqual)
_UPPER: Final = (EqualTo, LessThan, LessThanOrEqual)
#: Nobody sees damaged rows through a filter on a column that damage may have changed.
_EXACT: Final = (
    "topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp", "keys",
)  # fmt: skip


def narrowed(options: ReadOptions, filters: Iterable[Filter]) -> ReadOptions:
    """Options with the filters that are about topic, queue, offsets, store time or keys put in."""
    for one in filters:
        column: Any = getattr(one, "attribute", ())
        if len(column) == 1 and column[0] in _EXACT:
            options = _with(options, column[0], one)
    return options


def _with(options: ReadOptions, column: str, one: Any) -> ReadOptions:  # noqa: ANN401 - a Filter
    if column in ("topic", "queue_id"):
        return _with_values(options, column, one)
    if column == "keys":
        return _with_key(options, one)
    low, high = _bounds(one)
    if column == "store_timestamp":
        return _with_times(options, low, high)
    start, end = ("start_offset", "end_offset")
    if column == "queue_offset":
        start, end = ("start_queue_offset", "end_queue_offset")
    found = {
        start: max(getattr(options, start), 0 if low is None else low),
        end: min(getattr(options, end), OFFSET_MAX if high is None else high + 1),
    }
    return replace(options, **found)


def _bounds(one: Any) -> tuple[Any, Any]:  # noqa: ANN401 - a Filter, values of its column
    """The lowest and the highest value that pass, None where there is no bound."""
    if isinstance(one, In):
        values = () if None in one.value else one.value
        return (min(values), max(values)) if values else (None, None)
    low = one.value if isinstance(one, _LOWER) else None
    return low, one.value if isinstance(one, _UPPER) else None


def _with_key(options: ReadOptions, one: Any) -> ReadOptions:  # noqa: ANN401
    """Spark hands out comparisons of whole arrays only: who has these keys has the first one."""
    if options.key is None and isinstance(one, EqualTo) and one.value and one.value[0] is not None:
        return replace(options, key=one.value[0])
    return options


def _with_values(options: ReadOptions, column: str, one: Any) -> ReadOptions:  # noqa: ANN401
    values: frozenset[Any] = frozenset()
    if isinstance(one, EqualTo):
        values = frozenset((one.value,))
    elif isinstance(one, In):
        values = frozenset(one.value)
    if not values or None in values:
        return options
    if column == "queue_id":
        return options if options.queues else replace(options, queues=values)
    if options.topics or not all(options.wants(topic) for topic in values):
        return options  # a system topic that nobody asked for stays out
    return replace(options, topics=values)


def _with_times(options: ReadOptions, low: datetime | None, high: datetime | None) -> ReadOptions:
    """A millisecond more on both sides: filters are finer than store times."""
    if low is not None:
        start = _ms(low) - 1
        start = start if options.start_ms is None else max(options.start_ms, start)
        options = replace(options, start_ms=start)
    if high is not None:
        end = _ms(high) + 2
        end = end if options.end_ms is None else min(options.end_ms, end)
        options = replace(options, end_ms=end)
    return options


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
