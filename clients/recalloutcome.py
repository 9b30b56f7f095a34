"""What became of a message that was to be cancelled."""

from __future__ import annotations

from enum import StrEnum

from gantrymq.shm import schedulerwire


class RecallOutcome(StrEnum):
    """What became of a message that was to be cancelled."""

    CANCELLED = schedulerwire.CANCELLED  # it will never be delivered
    #: It is in its topic. Without a key index: or its time has passed, whatever became of it.
    ALREADY_DELIVERED = schedulerwire.ALREADY_DELIVERED
    UNKNOWN_HANDLE = schedulerwire.UNKNOWN_HANDLE  # no message in the log has this handle
