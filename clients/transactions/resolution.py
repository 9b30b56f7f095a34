"""What a `transaction_checker` may say."""

from __future__ import annotations

from enum import StrEnum


class TransactionResolution(StrEnum):
    """What a `transaction_checker` says of a transaction that nobody has ended."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"  # not decided yet: ask again later
