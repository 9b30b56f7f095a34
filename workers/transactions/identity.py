"""Whose a half is: its transaction's id and its UNIQ_KEY, as its record has them.

Tables have hashes of both, which tell most apart; what is alike by its hash is compared by these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm.kernels.halfform import ID_DIGITS
from gantrymq.shm.kernels.halfrows import hash_id
from gantrymq.shm.properties import GANTRY_TX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gantrymq.workers.logwindow import LogWindow


def transaction_at(window: LogWindow, position: int) -> str:
    """Id of the transaction of the half there; "" if it has none, or cannot be read."""
    return _property_at(window, position, GANTRY_TX)[:ID_DIGITS]


def transaction_of(properties: Mapping[str, str]) -> str:
    """The same of a half's properties, or of those that its copy has kept."""
    return properties.get(GANTRY_TX, "")[:ID_DIGITS]


def is_first_at(window: LogWindow, position: int) -> bool:
    """Whether the half there is number 1 of its transaction, or of none."""
    return _property_at(window, position, GANTRY_TX)[ID_DIGITS:].split(",")[1:2] in ([], ["1"])


def hash_of(transaction: str) -> int:
    """What tables have of a transaction's id (shm/kernels/halfrows.py)."""
    return int(hash_id(np.frombuffer(transaction.encode(), np.uint8)))


def unique_at(window: LogWindow, position: int) -> str:
    """UNIQ_KEY of the half there; "" if it has none, or cannot be read."""
    return _property_at(window, position, "UNIQ_KEY")


def _property_at(window: LogWindow, position: int, name: str) -> str:
    record = window.record_asked_for(position)
    return record.property_map().get(name, "") if record is not None else ""
