"""What recovery hands to the broker that starts: where log and queues end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.brokerd.queuefiles import QueueKey


@dataclass(slots=True)
class Recovered:
    """A store ready for agents.

    Positions are log positions, `queues` maps (topic, queue id) to (next offset, units written,
    first unit).
    """

    appended: int = 0
    durable: int = 0
    dispatched: int = 0
    settled: int = 0  # what lies behind it may not have been answered yet
    store_ms: int = 0
    low: int = 0
    queues: dict[QueueKey, tuple[int, int, int]] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    #: Of queues that begin anew in the log: position of the first record that is theirs.
    starts: dict[QueueKey, int] = field(default_factory=dict)
