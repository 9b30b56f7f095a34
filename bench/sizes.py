"""How much each measurement does: `smoke` keeps the code alive, `quick` looks, `full` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BODY_BYTES: Final = 100
BODIES: Final = 100
"""Distinct bodies that a run cycles through."""
BATCH_MESSAGES: Final = 100
PIPELINE_COMMANDS: Final = 1000
"""Commands of a Redis pipeline; counts of messages are multiples of it, and so of the others."""
PACED_PER_SECOND: Final = 1000
IN_FLIGHT: Final = 64
QUEUE_COUNTS: Final = (1, 100, 1000)
BUSY_SESSIONS: Final = 10
KIB_BODY_BYTES: Final = 1024
ENTRIES_PER_MESSAGE: Final = 2
"""In the key index: for its message id, and for a key."""


@dataclass(frozen=True)
class Sizes:
    """One parameter set; counts are messages, per round and after the warm-up."""

    name: str
    rounds: int
    messages: int
    redis_messages: int
    sync_sends: int
    paced_messages: int
    sealing_s: float
    sealing_segment_bytes: int
    """So small that several are full in so many seconds of load."""
    durable_sends: int
    in_flight_sends: int
    poll_messages: int
    round_trips: int
    floor_syncs: int
    store_bytes: int
    scale_messages: int
    """For each figure of what a message costs."""
    sessions: int
    log_bytes: tuple[int, int]
    """A short log and a long one; a disk with less room gets a shorter one."""
    sustained_s: float
    idle_s: float
    starts: int
    """Commands and first sends that are timed; their median counts."""
    kills: int
    due_messages: int
    """Of a schedule of delayed messages, at `due_per_second`."""
    due_per_second: int
    due_together: int
    level_messages: int
    pending_messages: int
    failing_messages: int
    """For push consumers."""
    index_entries: int
    queries: int
    """For each figure of what a query takes."""
    filter_messages: int
    spark_bytes: int
    """Of the log that Spark reads."""
    spark_follow_s: float
    touched_bytes: int
    """Memory made ready before each measurement (bench.machine.touch_memory)."""
    timeout_s: float
    """Watchdog of one phase of one measurement: nothing hangs, and nothing is judged by it."""

    def __post_init__(self) -> None:
        for count in (self.messages, self.redis_messages, self.poll_messages, self.scale_messages):
            if count <= 0 or count % PIPELINE_COMMANDS:
                raise ValueError(f"{count}: counts are multiples of {PIPELINE_COMMANDS}")


def warm_up(count: int) -> int:
    """Return how many messages warm up a run of `count`: a tenth, in whole pipelines."""
    return max(1, count // 10 // PIPELINE_COMMANDS) * PIPELINE_COMMANDS


SMOKE: Final = Sizes(
    name="smoke",
    rounds=1,
    messages=2_000,
    redis_messages=2_000,
    sync_sends=100,
    paced_messages=100,
    sealing_s=0.7,
    sealing_segment_bytes=1 << 20,
    durable_sends=20,
    in_flight_sends=200,
    poll_messages=2_000,
    round_trips=100,
    floor_syncs=20,
    store_bytes=1 << 20,
    scale_messages=2_000,
    sessions=20,
    log_bytes=(1 << 20, 4 << 20),
    sustained_s=0.2,
    idle_s=0.5,
    starts=1,
    kills=2,
    due_messages=200,
    due_per_second=1_000,
    due_together=200,
    level_messages=50,
    pending_messages=2_000,
    failing_messages=1_000,
    index_entries=3_000,
    queries=5,
    filter_messages=2_000,
    spark_bytes=8 << 20,
    spark_follow_s=3.0,
    touched_bytes=0,
    timeout_s=60.0,
)
QUICK: Final = Sizes(
    name="quick",
    rounds=3,
    messages=500_000,
    redis_messages=50_000,
    sync_sends=3_000,
    paced_messages=2_000,
    sealing_s=1.5,
    sealing_segment_bytes=64 << 20,
    durable_sends=500,
    in_flight_sends=10_000,
    poll_messages=1_000_000,
    round_trips=5_000,
    floor_syncs=500,
    store_bytes=256 << 20,
    scale_messages=500_000,
    sessions=500,
    log_bytes=(1 << 30, 8 << 30),
    sustained_s=10.0,
    idle_s=20.0,
    starts=7,
    kills=10,
    due_messages=100_000,
    due_per_second=10_000,
    due_together=100_000,
    level_messages=2_000,
    pending_messages=1_000_000,
    failing_messages=100_000,
    index_entries=1_000_000,
    queries=200,
    filter_messages=1_000_000,
    spark_bytes=512 << 20,
    spark_follow_s=20.0,
    touched_bytes=1 << 30,
    timeout_s=120.0,
)
FULL: Final = Sizes(
    name="full",
    rounds=5,
    messages=2_000_000,
    redis_messages=200_000,
    sync_sends=10_000,
    paced_messages=5_000,
    sealing_s=3.0,
    sealing_segment_bytes=64 << 20,
    durable_sends=2_000,
    in_flight_sends=50_000,
    poll_messages=4_000_000,
    round_trips=20_000,
    floor_syncs=2_000,
    store_bytes=1 << 30,
    scale_messages=1_000_000,
    sessions=500,
    log_bytes=(1 << 30, 50 << 30),
    sustained_s=20.0,
    idle_s=60.0,
    starts=11,
    kills=20,
    due_messages=300_000,
    due_per_second=10_000,
    due_together=100_000,
    level_messages=5_000,
    pending_messages=10_000_000,
    failing_messages=1_000_000,
    index_entries=10_000_000,
    queries=500,
    filter_messages=4_000_000,
    spark_bytes=1 << 30,
    spark_follow_s=60.0,
    touched_bytes=1 << 30,
    timeout_s=300.0,
)
