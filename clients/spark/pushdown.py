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

from clients.spark.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_LOWER: Final = (EqualTo, GreaterThan, GreaterThanOrEqual)
_UPPER: Final = (EqualTo, LessThan, LessThanOrEqual)
#: Nobody sees damaged rows through a filter on a column that damage may have changed.
_EXACT: Final = ("topic", "queue_id", "physical_offset", "store_timestamp")


def narrowed(options: ReadOptions, filters: Iterable[Filter]) -> ReadOptions:
    """Options with the filters that are about topic, queue, position or store time put in."""
    for one in filters:
        column: Any = getattr(one, "attribute", ())
        if len(column) == 1 and column[0] in _EXACT:
            options = _with(options, column[0], one)
    return options


def _with(options: ReadOptions, column: str, one: Any) -> ReadOptions:  # noqa: ANN401 - a Filter
    if column in ("topic", "queue_id"):
        return _with_values(options, column, one)
    bounds = [one.value] if isinstance(one, (*_LOWER, *_UPPER)) else []
    for value in bounds:
        if column == "physical_offset" and isinstance(value, int):
            options = _with_positions(options, one, value)
        elif isinstance(value, datetime):
            options = _with_times(options, one, round(value.timestamp() * 1000))
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


def _with_positions(options: ReadOptions, one: Any, value: int) -> ReadOptions:  # noqa: ANN401
    if isinstance(one, _LOWER):
        options = replace(options, start_offset=max(options.start_offset, value))
    if isinstance(one, _UPPER):
        options = replace(options, end_offset=min(options.end_offset, value + 1))
    return options


def _with_times(options: ReadOptions, one: Any, ms: int) -> ReadOptions:  # noqa: ANN401
    """A millisecond more on both sides: filters are finer than store times."""
    if isinstance(one, _LOWER):
        start = ms - 1 if options.start_ms is None else max(options.start_ms, ms - 1)
        options = replace(options, start_ms=start)
    if isinstance(one, _UPPER):
        end = ms + 2 if options.end_ms is None else min(options.end_ms, ms + 2)
        options = replace(options, end_ms=end)
    return options
