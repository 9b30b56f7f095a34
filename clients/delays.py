"""When a message is due: what a sender says, what an entry carries, the handle to recall it by."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from datetime import timedelta
from numbers import Integral, Real
from typing import TYPE_CHECKING, Final, NamedTuple

from gantrymq.shm import limits
from gantrymq.shm.codes import ParkMode
from gantrymq.shm.errors import MessageIllegal, shown
from gantrymq.shm.properties import SCHEDULE_TOPIC, TIMER_TOPIC, timer_out_ms

if TYPE_CHECKING:
    from gantrymq.clients.message import Message

#: The ways to say it, of which a message has one at most.
DELAY_PARTS: Final = frozenset({"delivery_timestamp", "delay", "delay_level"})
_LEVEL_MAX: Final = (1 << 31) - 1
_MILLISECOND: Final = timedelta(milliseconds=1)


class Due(NamedTuple):
    """As an entry carries it: `value` is a level, Unix ms, or ms of delay."""

    mode: ParkMode
    value: int


#: Of a message that is due at once.
NOW: Final = Due(ParkMode.NONE, 0)
#: Of a message of a transaction: when that is committed.
HALF: Final = Due(ParkMode.HALF, 0)


def is_delayed(message: Message) -> bool:
    """Whether its sender has said when it is due."""
    return (
        message.delivery_timestamp is not None
        or message.delay is not None
        or message.delay_level is not None
    )


def due_of(message: Message) -> Due:
    """When a message is due; a time that has passed means now. Raises MessageIllegal."""
    if not is_delayed(message):
        return NOW
    at_ms, delay, level = message.delivery_timestamp, message.delay, message.delay_level
    if (at_ms is not None) + (delay is not None) + (level is not None) > 1:
        raise MessageIllegal(
            "give one of delivery_timestamp, delay and delay_level, not several",
            topic=message.topic,
        )
    if level is not None:
        return Due(ParkMode.LEVEL, _check_level(level))
    if at_ms is not None:
        return Due(ParkMode.AT, _check_ms(_whole(at_ms), "delivery_timestamp", at_ms))
    assert delay is not None, "one of the three is given"
    return Due(ParkMode.AFTER, _check_ms(_milliseconds(delay), "delay", delay))


def _whole(number: object) -> object:
    """A whole number of any type as int (numpy's too); what is none stays as it is."""
    if isinstance(number, bool) or not isinstance(number, Integral):
        return number
    return int(number)


def _check_level(given: object) -> int:
    level = _whole(given)
    if not isinstance(level, int) or isinstance(level, bool) or level < 1:
        raise MessageIllegal(
            f"delay_level is {shown(given)}: levels count from 1 (message_delay_level lists them);"
            " leave it out for a message without delay",
            delay_level=level,
        )
    return min(level, _LEVEL_MAX)  # the broker takes the highest that it has (DT-10)


def _milliseconds(delay: object) -> object:
    """A delay to the nearest millisecond; what is no number stays as it is."""
    if isinstance(delay, timedelta):
        if delay < timedelta():
            return -1  # however little
        whole, rest = divmod(delay, _MILLISECOND)  # to add half of one may be too much for it
        return whole + (2 * rest >= _MILLISECOND)
    delay = _whole(delay)
    if isinstance(delay, bool) or not isinstance(delay, Real):
        return delay
    if isinstance(delay, int):
        return delay * 1000
    seconds = float(delay)
    if not 0 <= seconds <= limits.DELIVER_MS_MAX / 1000:
        return -1 if seconds < 0 else seconds  # infinite, or not a number
    return int(seconds * 1000 + 0.5)


def _check_ms(number: object, name: str, given: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        what = (
            "Unix milliseconds as a whole number, int(time.time() * 1000) + 5000 for example"
            if name == "delivery_timestamp"
            else "seconds or a timedelta, no further than the year 9999"
        )
        raise MessageIllegal(f"{name} is {shown(given)}: give {what}", **{name: given})
    if number < 0:
        raise MessageIllegal(
            f"{name} is {shown(given)}, less than 0: leave it out to deliver at once",
            **{name: given},
        )
    if number > limits.DELIVER_MS_MAX:
        raise MessageIllegal(
            f"{name} is {shown(given)}, beyond the year 9999: delivery_timestamp is in"
            " milliseconds, delay in seconds",
            **{name: given},
        )
    return number


def parked_in(due: Due, store_ms: int) -> str | None:
    """The topic where a message waits that was stored at `store_ms`; None if it does not."""
    if store_ms < 0 or due.mode == ParkMode.NONE:
        return None
    if due.mode == ParkMode.LEVEL:
        return SCHEDULE_TOPIC
    return TIMER_TOPIC if _due_ms(due, store_ms) > store_ms else None


def recall_handle(
    due: Due, store_ms: int, names: tuple[str, str, str], precision_ms: int
) -> str | None:
    """RocketMQ's recallHandle of a message that waits for a time, None of others (DT-70).

    `names`: topic, brokerName and UNIQ_KEY.
    """
    if parked_in(due, store_ms) != TIMER_TOPIC:
        return None
    topic, broker, unique = names
    out_ms = timer_out_ms(_due_ms(due, store_ms), precision_ms)
    return urlsafe_b64encode(f"v1 {topic} {broker} {out_ms + 1} {unique}".encode()).decode()


def _due_ms(due: Due, store_ms: int) -> int:
    return due.value + (store_ms if due.mode == ParkMode.AFTER else 0)
