"""What the txn-checker is told at its start."""

from __future__ import annotations

from typing import Protocol


class CheckerSettings(Protocol):
    """What the txn-checker needs of the broker's settings."""

    @property
    def transaction_timeout(self) -> int:
        """Seconds until a half is checked for the first time."""
        ...

    @property
    def transaction_check_interval(self) -> int:
        """Seconds between checks."""
        ...

    @property
    def transaction_check_max(self) -> int:
        """Checks without a decision until a half is given up."""
        ...

    @property
    def file_reserved_time(self) -> int:
        """Hours after which a half is given up unasked."""
        ...

    @property
    def message_delay_level(self) -> str:
        """RocketMQ's delay levels."""
        ...

    @property
    def timer_precision_ms(self) -> int:
        """RocketMQ's slots of time."""
        ...

    @property
    def spin_rounds(self) -> int:
        """How long to look out for what comes soon."""
        ...

    @property
    def profile(self) -> str:
        """standard: this agent has a process of its own."""
        ...
