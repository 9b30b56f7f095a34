"""The oracle of delayed messages: each has its copy, once, the right one, never early (P8, P9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.parked import delay_of
from tests.support.recalling import first_of, is_again
from tests.support.storedlog import Stored, broken, require

if TYPE_CHECKING:
    from tests.support.model import Model


def check_copies(model: Model, copies: list[Stored]) -> None:
    """What was parked has one copy at most, on time (P8, P9); not of a message sent back."""
    parked = {record.position: record for record in model.log if record.destination}
    seen: set[int] = set()
    for copy in copies:
        source = parked.get(copy.origin)
        if source is None and copy.attempt:
            continue  # `groups` made it of what was consumed
        if source is None:
            broken("P9", f"what {copy} comes from was never parked")
        require(copy.origin not in seen, "P9", f"{source} is delivered again by {copy}")
        seen.add(copy.origin)
        if (copy.producer, copy.seq, copy.body) != (source.producer, source.seq, source.body):
            broken("P9", f"{copy} is not the copy of {source}")
        again = is_again(copy, source)
        if (copy.destination if again else (copy.topic, copy.queue)) != source.destination:
            broken("P9", f"{copy} was to go to {source.destination}")
        if again:
            model.tally["appended again"] += 1
            continue
        first = first_of(source, parked)
        if first.origin < 0 and first.producer not in model.vandals:
            _check_time(model, first, copy)
        model.tally["delivered"] += 1


def _check_time(model: Model, source: Stored, copy: Stored) -> None:
    """P8, whatever the clocks were set to."""
    due = model.senders[source.producer].intents[source.seq].due
    parked = (source.position, source.store_ms)
    what = model.moments.too_early(parked, copy.position, delay_of(due), due[1])
    require(not what, "P8", f"{copy} of {source} is early: {what}")


def check_all_delivered(model: Model, wall_ms: int, waited_ms: int) -> None:
    """In the end, all has its copy that was due at a time, or for less than was waited (P9).

    But for vandals' messages, of which nothing is known.
    """
    copied = {record.origin for record in model.log}
    parked = {record.position: record for record in model.log if record.destination}
    for record in model.log:
        waits = record.destination is not None and first_of(record, parked).origin < 0
        if not waits or record.producer in model.vandals:
            continue
        due = model.senders[record.producer].intents[record.seq].due
        delay = delay_of(due)
        is_due = due[1] <= wall_ms if delay < 0 else delay < waited_ms
        if is_due and record.position not in copied | model.never_due:
            broken("P9", f"{record} was due and has no copy")
