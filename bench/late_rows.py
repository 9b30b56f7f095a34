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


def transactions(sizes: Sizes) -> list[Line]:
    """Transactions: rates beside plain sends, what checks and open ones cost."""
    bounds = ratio_at_least(0.3), ratio_at_least(0.45)
    count = f"{min(sizes.pending_messages, 1_000_000):,} open"
    return [
        Line(
            "transactions",
            "transactions one at a time: half, local no-op, commit, at `written`",
            value("transactions", "/s", "transactions", "rate"),
            value("sync sends", "/s", "transactions", "plain_rate"),
            *bounds,
        ),
        Line(
            "transactions",
            "transactions, 64 in flight, at `durable`",
            value("transactions", "/s", "transactions-64", "rate"),
            value("durable sends, 64 in flight", "/s", "transactions-64", "plain_rate"),
            *bounds,
        ),
        Line(
            "transactions",
            "op records for each decision, 64 in flight",
            value("op records", "", "transactions-64", "ops"),
            None,
            *at_most(1, 1),
        ),
        Line(
            "checked",
            "log added by 15 checks of an open transaction",
            value("log", "KiB", "checked", "bytes"),
            None,
            *at_most(4, 1),
        ),
        Line(
            "open-halves",
            f"txn-checker's proportional memory, {count}, above none",
            value("open", "MB", "open-halves", "memory_mb"),
            None,
            *at_most(250, 100),
        ),
        Line(
            "open-halves",
            f"a pass over {count}, nobody there to be asked: processor time",
            value("pass", "s", "open-halves", "pass"),
            None,
            *at_most(3, 0.5),
        ),
        Line(
            "open-halves",
            f"all killed, {count}: start until all are known, start included",
            value("start", "s", "open-halves", "seconds"),
            None,
            *at_most(5, 1),
        ),
    ]


def queries(sizes: Sizes) -> list[Line]:
    """The key index: its price, and what a query takes."""
    entries = f"{sizes.index_entries:,} entries"
    kinds = {"cold": ("nothing in the page cache", (50, 10)), "warm": ("warm", (5, 1))}
    behind = f"reader behind, {entries}, 2 keys a message"
    without = value("without", "/s", "indexing", "rate")
    return [
        Line(
            "index",
            f"{behind}: until all can be consumed",
            value("with the index", "/s", "indexing", "visible"),
            without,
            ratio_at_least(0.3),
            ratio_at_least(0.6),
        ),
        Line(
            "index",
            f"{behind}: until all is in the index as well",
            value("with the index", "/s", "indexing", "indexed"),
            without,
        ),
        *(
            Line(
                "query",
                f"query by key, {entries}, {state}, p99",
                value(name, "ms", "querying", f"{name}_p99_ms"),
                None,
                *at_most(*limits),
            )
            for name, (state, limits) in kinds.items()
        ),
    ]
