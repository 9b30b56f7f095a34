"""What agents that park or deliver messages need of the broker's settings."""

from __future__ import annotations

from typing import Protocol


class DelaySettings(Protocol):
    """How long delay levels are, and how finely a RocketMQ tells times."""

    @property
    def message_delay_level(self) -> str:
        """RocketMQ's delay levels."""
        ...

    @property
    def timer_precision_ms(self) -> int:
        """RocketMQ's slots of time."""
        ...
