"""What records of delayed messages look like, for the simulator's oracle."""

from __future__ import annotations

from shm.codes import ParkMode
from shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC


def parking_place(due: tuple[int, int]) -> str:
    """Where a message waits, unless its time has come when it is stored; "" if it does not."""
    mode = due[0]
    if mode == ParkMode.LEVEL:
        return SCHEDULE_TOPIC
    return TIMER_TOPIC if mode else ""


def destination_of(properties: dict[str, str]) -> tuple[str, int] | None:
    """The topic and queue that a parked record is for."""
    topic = properties.get("REAL_TOPIC")
    return None if topic is None else (topic, int(properties["REAL_QID"]))
