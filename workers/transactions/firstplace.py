"""Where a half was before it was appended again, however often: in its property GANTRY_TX.

That is `id,n` as its producer has put it, and `id,n,position,Unix ms` from the first time on: the
place by which the producer knows it, and from when its age counts. The `origin` of a record names
the one before only, and that may be gone. A fifth field, `again`, has what an operator had checked
again: that others of its transaction were given up before says nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm.properties import GANTRY_TX

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIELDS: Final = 4
_DIGITS_MAX: Final = 19  # below 2^63
_AGAIN: Final = "again"


def with_first(named: Mapping[str, str], position: int, stored_ms: int) -> dict[str, str]:
    """Properties of a half that is appended again; those of another broker's stay as they are."""
    text = named.get(GANTRY_TX, "")
    if text.count(",") != 1:
        return dict(named)
    return {**named, GANTRY_TX: f"{text},{position},{stored_ms}"}


def from_now(named: Mapping[str, str], position: int, now_ms: int) -> dict[str, str]:
    """The same with an age that begins anew: an operator has it checked again."""
    fields = with_first(named, position, now_ms).get(GANTRY_TX, "").split(",")
    if len(fields) < _FIELDS:
        return dict(named)
    return {**named, GANTRY_TX: ",".join([*fields[:3], str(now_ms), _AGAIN])}


def is_checked_again(named: Mapping[str, str]) -> bool:
    """Whether an operator has opened a half with such properties again."""
    return named.get(GANTRY_TX, "").split(",")[_FIELDS:] == [_AGAIN]


def first_place(named: Mapping[str, str]) -> tuple[int, int] | None:
    """Position and Unix ms of a half by its properties; None if they say nothing."""
    fields = named.get(GANTRY_TX, "").split(",")
    if len(fields) < _FIELDS:
        return None
    position, stored = fields[2:_FIELDS]
    if not (_is_number(position) and _is_number(stored)):
        return None
    return int(position), int(stored)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX
