"""What `groups` needs of the broker's settings."""

from __future__ import annotations

from typing import Protocol

from gantrymq.workers.filterfile import FilterSettings
from gantrymq.workers.scheduler.settings import DelaySettings


class GroupsSettings(DelaySettings, FilterSettings, Protocol):
    """Of delays, of filters, and its own."""

    @property
    def consume_timeout(self) -> int:
        """Minutes after which a started message ends its consumer's lease."""
        ...

    @property
    def groups_max(self) -> int:
        """How many groups are known at most."""
        ...
