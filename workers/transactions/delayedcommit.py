"""The commit copy of a half whose message is to be delayed: parked, as a delayed send is.

The wish stands in GANTRY_TX_DELAY, where a RocketMQ does not look: DELAY or TIMER_... in a half
would lose it there (TX-7, LW-47). It counts from the commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gantrymq.shm import layout
from gantrymq.shm.properties import (
    GANTRY_TX_DELAY,
    HALF_DROPPED,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    encode_properties,
    timer_out_ms,
)
from gantrymq.shm.record import origin_field
from gantrymq.workers.outlet import Copy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gantrymq.shm.record import Record


@dataclass(frozen=True, slots=True)
class Delays:
    """What of the settings decides how a message is parked."""

    levels: int
    precision_ms: int


def delayed_copy(
    half: Record, slots: Mapping[str, int], queue_id: int, delays: Delays, now_ms: int
) -> Copy | None:
    """The copy that is parked; None if the wish is no delay, or its time has come.

    `queue_id` is that of the real topic. Properties fit: a half has more than this adds.
    """
    named = half.property_map()
    kind, _, number = named.get(GANTRY_TX_DELAY, "").partition(":")
    value = int(number) if number.isdecimal() and len(number) < 16 else 0
    kept = {key: text for key, text in named.items() if key not in HALF_DROPPED}
    kept |= {"REAL_TOPIC": named.get("REAL_TOPIC", ""), "REAL_QID": str(queue_id)}
    if kind == "level" and value > 0:
        level = min(value, delays.levels)
        topic, queue = SCHEDULE_TOPIC, level - 1
        kept["DELAY"] = str(level)
    else:
        due_ms = value if kind == "at" else now_ms + value if kind == "after" else 0
        if due_ms <= now_ms:
            return None
        topic, queue = TIMER_TOPIC, 0
        asked = "TIMER_DELIVER_MS" if kind == "at" else "TIMER_DELAY_MS"
        kept[asked] = str(value)
        kept["TIMER_OUT_MS"] = str(timer_out_ms(due_ms, delays.precision_ms))
    return copy_of(half, slots[topic], queue, kept, origin_field(half.physical_offset))


def commit_copy(half: Record, topic: int, queue_id: int) -> Copy:
    """The commit copy of a half that is not delayed (TX-15), for what is rare."""
    kept = {key: text for key, text in half.property_map().items() if key not in HALF_DROPPED}
    return copy_of(half, topic, queue_id, kept, origin_field(half.physical_offset))


def copy_of(
    half: Record, topic: int, queue_id: int, properties: Mapping[str, str], origin: int
) -> Copy:
    """A half's record under another topic; one with a non-negative `origin` is no commit."""
    sys_flag = half.sys_flag & ~layout.SYS_TRANSACTION
    return Copy(
        topic, queue_id, half.body, encode_properties(properties), origin, half.flag,
        sys_flag | (layout.SYS_COMMIT if origin < 0 else 0), half.born_timestamp, half.born_host,
        half.store_host, half.reconsume_times,
    )  # fmt: skip
