"""What the txn-checker is told at its start."""

from __future__ import annotations

from typing import Protocol

from gantrymq.workers.scheduler.settings import DelaySettings


class CheckerSettings(DelaySettings, Protocol):
    """What the txn-checker needs of the broker's settings: commits with a delay are parked."""

    @property
    def transaction_timeout_s(self) -> int:
        """Seconds until a half is checked for the first time."""
        ...

    @property
    def transaction_check_interval_s(self) -> int:
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
    def spin_rounds(self) -> int:
        """How long to look out for what comes soon."""
        ...

    @property
    def profile(self) -> str:
        """standard: this agent has a process of its own."""
        ...
