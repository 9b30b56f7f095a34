"""Which timers a recall takes out, or a later record of a RocketMQ replaces.

Both name their target by its UNIQ_KEY, and stand in the same slot of RocketMQ's (DT-73, DT-76).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from gantrymq.workers.scheduler.timerpool import DELETE_BIT, KILLERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gantrymq.shm.record import Record
    from gantrymq.workers.scheduler.timerpool import Entries


class Records(Protocol):
    """Who reads records of the log: a `LogWindow`, or `LogViews`."""

    def record(self, position: int) -> Record | None:
        """A record of the log; None if it is gone, or damaged."""


def properties_at(records: Records, position: int) -> dict[str, str]:
    """Properties of a record; none if it cannot be read."""
    found = records.record(position)
    return found.property_map() if found is not None else {}


def sift(
    entries: Entries, others: Sequence[Entries], records: Records
) -> tuple[Entries, NDArray[np.int64]]:
    """What of `entries` is to be delivered, and positions, of `others` too, that are not."""
    if not (entries["size"] & KILLERS != 0).any():
        return entries, np.zeros(0, np.int64)
    gone = struck(entries, others, records)
    recalls = entries["size"] & DELETE_BIT != 0
    return entries[~recalls & ~np.isin(entries["position"], gone)], gone


def struck(entries: Entries, others: Sequence[Entries], records: Records) -> NDArray[np.int64]:
    """Positions of the timers, among `entries` and `others`, that are not to be delivered."""
    killers = entries[entries["size"] & KILLERS != 0]
    gone: set[int] = set()
    suspects: dict[int, set[int]] = {}
    for part in (entries, *others):
        hit = part[np.isin(part["hash"], killers["hash"])]
        for position, size, key in zip(
            hit["position"].tolist(), hit["size"].tolist(), hit["hash"].tolist(), strict=True
        ):
            if not size & DELETE_BIT:
                suspects.setdefault(key, set()).add(position)
    for _ms, position, size, key in killers.tolist():
        there = suspects.get(key, set()) - {position} - gone
        if not size & DELETE_BIT:
            there = {suspect for suspect in there if suspect < position}
        gone |= _named_among(there, position, records, is_recall=bool(size & DELETE_BIT))
    return np.array(sorted(gone), np.int64)


def _named_among(suspects: set[int], killer: int, records: Records, *, is_recall: bool) -> set[int]:
    """Which of the suspects the record at `killer` names."""
    named = properties_at(records, killer) if suspects else {}
    return {
        suspect
        for suspect in suspects
        if _is_named(named, properties_at(records, suspect), is_recall=is_recall)
    }


def _is_named(killer: dict[str, str], target: dict[str, str], *, is_recall: bool) -> bool:
    if killer.get("TIMER_OUT_MS") != target.get("TIMER_OUT_MS"):
        return False
    unique = target.get("UNIQ_KEY", "")
    if is_recall:
        key = killer.get("TIMER_DEL_UNIQKEY", "")
        return key in (unique, f"{target.get('REAL_TOPIC', '')}+{unique}")
    same = ("UNIQ_KEY", "REAL_TOPIC", "REAL_QID")
    return bool(unique) and all(killer.get(name) == target.get(name) for name in same)
