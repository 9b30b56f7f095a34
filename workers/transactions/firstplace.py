"""Where a half was before it was appended again, however often: in its property GANTRY_TX.

That is `id,n` as its producer has put it, and `id,n,position,Unix ms` from the first time on: the
place by which the producer knows it, and from when its age counts. The `origin` of a record names
the one before only, and that may be gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm.properties import GANTRY_TX

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEY: Final = f"{GANTRY_TX}\x01".encode()
_FIELDS: Final = 4


def with_first(named: Mapping[str, str], position: int, stored_ms: int) -> dict[str, str]:
    """Properties of a half that is appended again; those of another broker's stay as they are."""
    text = named.get(GANTRY_TX, "")
    if text.count(",") != 1:
        return dict(named)
    return {**named, GANTRY_TX: f"{text},{position},{stored_ms}"}


def from_now(named: Mapping[str, str], position: int, now_ms: int) -> dict[str, str]:
    """The same with an age that begins anew: an operator has it checked again."""
    fields = with_first(named, position, now_ms).get(GANTRY_TX, "").split(",")
    if len(fields) != _FIELDS:
        return dict(named)
    return {**named, GANTRY_TX: ",".join([*fields[:-1], str(now_ms)])}


def first_place(record: bytes) -> tuple[int, int] | None:
    """Position and Unix ms of the bytes of a record; None if it says nothing."""
    start = record.rfind(_KEY)
    end = record.find(b"\x02", start)
    fields = record[start + len(_KEY) : end if end >= 0 else len(record)].split(b",")
    if start < 0 or len(fields) < _FIELDS:
        return None
    position, stored = fields[2], fields[3][:20]
    if not (position.isdigit() and stored.isdigit()):
        return None
    return int(position), int(stored)
