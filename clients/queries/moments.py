"""Points in time as users give them: a datetime, ISO 8601, or Unix milliseconds."""

from __future__ import annotations

from datetime import datetime
from typing import Final, TypeVar

from gantrymq.shm.errors import ArgumentIllegal, Rejected
from gantrymq.shm.fromhandlers import require_ours

_FORM: Final = "give Unix milliseconds, or a time such as 2026-01-31T08:00 (this machine's zone)"
#: 16 digits are a time beyond the year 30000: microseconds, most likely.
_DIGITS_MAX: Final = 15
T = TypeVar("T")


def milliseconds(moment: datetime, *, up: bool = False) -> int:
    """The Unix ms that it is in; with `up` the first one that is not before it.

    Messages have whole milliseconds: one of the moment's own may have been stored behind it. So
    who begins by a moment begins with that one, and passes nothing over; what comes before a moment
    is below the one that `up` gives. Without a zone it is this machine's time. Raises Rejected
    beyond what there is.
    """
    try:
        # Of whole seconds: a float has no room for the microseconds of all years.
        seconds = moment.replace(microsecond=0).timestamp()
        micros = round(seconds * 1e6) + moment.microsecond
    except (OverflowError, ValueError, OSError) as error:
        require_ours(error)
        raise ArgumentIllegal(f"{moment} is no time that this machine knows: {_FORM}") from None
    return -(-micros // 1000) if up else micros // 1000


def moment_or(text: str | None, otherwise: T, *, up: bool = False) -> int | T:
    """Unix ms of a text, or something else where there is none. Raises Rejected."""
    return otherwise if text is None else parse_moment(text, up=up)


def parse_moment(text: str, *, up: bool = False) -> int:
    """Unix ms of a text, as `milliseconds` has them. Raises Rejected."""
    if text.isdecimal() and text.isascii():
        if len(text) <= _DIGITS_MAX:
            return int(text)
    else:
        try:
            return milliseconds(datetime.fromisoformat(text), up=up)
        except ValueError as error:
            require_ours(error)
    raise Rejected(f"{text!r} is no time: {_FORM}")
