"""What records of delayed messages look like, for the simulator's oracle."""

from __future__ import annotations

from gantrymq.shm.codes import ParkMode
from gantrymq.shm.properties import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, parse_delay_levels


def parking_place(due: tuple[int, int]) -> str:
    """Where a message waits, unless its time has come when it is stored; "" if not."""
    mode = due[0]
    if mode == ParkMode.HALF:
        return HALF_TOPIC
    if mode == ParkMode.LEVEL:
        return SCHEDULE_TOPIC
    return TIMER_TOPIC if mode else ""


def destination_of(properties: dict[str, str]) -> tuple[str, int] | None:
    """The topic and queue that a parked record is for."""
    topic = properties.get("REAL_TOPIC")
    return None if topic is None else (topic, int(properties["REAL_QID"]))


_DELAYS_MS = parse_delay_levels("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")


def delay_of(due: tuple[int, int]) -> int:
    """How long a message waits that was put with a mode and a value; -1 for a point in time."""
    mode, value = due
    if mode == ParkMode.AT:
        return -1
    return _DELAYS_MS[min(value, len(_DELAYS_MS)) - 1] if mode == ParkMode.LEVEL else value
