"""Whose a half is: its transaction's id and its UNIQ_KEY, as its record has them.

Tables have hashes of both, which tell most apart; what is alike by its hash is compared by these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm.properties import GANTRY_TX

if TYPE_CHECKING:
    from gantrymq.workers.logwindow import LogWindow

#: Hex digits of a transaction's id in GANTRY_TX; its number in it follows.
ID_DIGITS: Final = 32


def transaction_at(window: LogWindow, position: int) -> str:
    """Id of the transaction of the half there; "" if it has none, or cannot be read."""
    return _property_at(window, position, GANTRY_TX)[:ID_DIGITS]


def unique_at(window: LogWindow, position: int) -> str:
    """UNIQ_KEY of the half there; "" if it has none, or cannot be read."""
    return _property_at(window, position, "UNIQ_KEY")


def _property_at(window: LogWindow, position: int, name: str) -> str:
    record = window.record(position)
    return record.property_map().get(name, "") if record is not None else ""
