"""The lines of what comes later: delayed messages and their peers, retries of push consumers."""

from __future__ import annotations

from bench.harness import Bound, Line, Value, at_most, p99_ms, ratio_at_least, value
from bench.sizes import Sizes


def timers(sizes: Sizes) -> list[Line]:
    """Delayed messages: parking, lateness, what pending ones cost."""
    zset = "Redis sorted set and a poller"
    schedule = f"{sizes.due_per_second:,} due per second for"
    schedule += f" {sizes.due_messages / sizes.due_per_second:g} s"
    together = f"{sizes.due_together:,} due at the same moment, all there after"
    return [
        Line(
            "timers",
            "send_oneway with a delivery time, until parked",
            value("park", "/s", "park", "rate"),
            value("send_oneway", "/s", "park", "plain_rate"),
            ratio_at_least(0.4),
            ratio_at_least(0.7),
        ),
        Line(
            "timers",
            "send_oneway with a delivery time, until parked",
            value("park", "/s", "park", "rate"),
            value("Redis, ZADD in pipelines of 1000", "/s", "redis-zadd", "rate"),
        ),
        Line(
            "timers",
            f"{schedule}: lateness, p99",
            Value("due", "ms", ("due",), lambda found: p99_ms(found["due"])),
            Value(zset, "ms", ("redis-due",), lambda found: p99_ms(found["redis-due"])),
            *at_most(20, 5),
        ),
        Line(
            "timers",
            f"{schedule}: came before its time",
            value("due", "", "due", "early"),
            None,
            *at_most(0, 0),
        ),
        Line(
            "timers",
            together,
            value("due", "s", "due-together", "seconds"),
            value(zset, "s", "redis-due-together", "seconds"),
            *at_most(3, 0.5),
        ),
        Line(
            "timers",
            "delay level of 1 s: lateness, p99",
            Value("level", "ms", ("level-1",), lambda found: p99_ms(found["level-1"])),
            None,
            *at_most(20, 5),
        ),
        *_pending(sizes),
    ]


def _pending(sizes: Sizes) -> list[Line]:
    pending = f"{sizes.pending_messages:,} pending"
    return [
        Line(
            "pending",
            f"scheduler's proportional memory, {pending}, above none",
            value("pending", "MB", "pending", "memory_mb"),
            None,
            *at_most(150, 60),
        ),
        Line(
            "pending",
            f"all killed, {pending}: start to what was due meanwhile",
            value("pending", "s", "pending", "seconds"),
            None,
            *at_most(3, 1),
        ),
        Line(
            "pending",
            f"all killed, {pending}, no buckets left: made again from the log, start included",
            value("pending", "/s", "pending", "rebuild_rate"),
            None,
            Bound("ours", ">=", 0.5e6),
            Bound("ours", ">=", 2e6),
        ),
    ]


def push(sizes: Sizes) -> list[Line]:
    """Push consumers."""
    return [
        Line(
            "push",
            f"push consumer, {sizes.failing_messages:,} messages, 10 % fail 3 times",
            value("failing", "/s", "failing", "failing_rate"),
            value("none fails", "/s", "failing", "rate"),
            ratio_at_least(0.4),
            ratio_at_least(0.7),
        ),
    ]
