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


def milliseconds(moment: datetime) -> int:
    """Unix ms; without a zone it is this machine's time. Raises Rejected beyond what there is."""
    try:
        return round(moment.timestamp() * 1e6) // 1000  # of whole microseconds, which it has
    except (OverflowError, ValueError, OSError) as error:
        require_ours(error)
        raise ArgumentIllegal(f"{moment} is no time that this machine knows: {_FORM}") from None


def moment_or(text: str | None, otherwise: T) -> int | T:
    """Unix ms of a text, or something else where there is none. Raises Rejected."""
    return otherwise if text is None else parse_moment(text)


def parse_moment(text: str) -> int:
    """Unix ms of a text. Raises Rejected."""
    if text.isdecimal() and text.isascii():
        if len(text) <= _DIGITS_MAX:
            return int(text)
    else:
        try:
            return milliseconds(datetime.fromisoformat(text))
        except ValueError as error:
            require_ours(error)
    raise Rejected(f"{text!r} is no time: {_FORM}")
