"""The lines of the table, with what must and what should hold, and who runs for them."""

from __future__ import annotations

from functools import partial
from typing import Final

from bench import (
    bloom_errors,
    e2e_filter,
    e2e_idle,
    e2e_ingest,
    e2e_latency,
    e2e_push,
    e2e_queries,
    e2e_scale,
    e2e_sealing,
    e2e_spark,
    e2e_startup,
    e2e_throughput,
    e2e_timers,
    e2e_transactions,
    floors,
    store_speed,
)  # fmt: skip
from bench.beside_rows import floor_lines, peers, round_trip
from bench.filter_rows import filters
from bench.harness import (
    Bound,
    Contestant,
    Line,
    Round,
    Value,
    at_most,
    p99_ms,
    ratio_at_least,
    ratio_at_most,
    value,
)  # fmt: skip
from bench.late_rows import push, queries, timers, transactions
from bench.peers import process_queue, redis_sorted_set, redis_streams, zmq_push_pull
from bench.scale_rows import scale
from bench.sizes import (
    BATCH_MESSAGES,
    BODY_BYTES,
    KIB_BODY_BYTES,
    QUEUE_COUNTS,
    Sizes,
)  # fmt: skip
from bench.spark_rows import spark

CONTESTANTS: Final[dict[str, Contestant]] = {
    "eventfd": floors.eventfd_round_trip,
    "fdatasync-zeroed": floors.fdatasync_zeroed,
    "fdatasync-allocated": floors.fdatasync_allocated,
    "zmq": zmq_push_pull.single_sends,
    "process-queue": process_queue.single_puts,
    "redis-pipelined": redis_streams.pipelined,
    "redis-xadd": redis_streams.xadd_one_by_one,
    "redis-paced": redis_streams.paced_end_to_end,
    "oneway": e2e_throughput.oneway,
    "async": e2e_throughput.asynchronous,
    "batch": e2e_throughput.batches,
    "batch-flight": e2e_throughput.batches_in_flight,
    "batch-bodies": e2e_throughput.bodies_in_flight,
    "sync": e2e_latency.sync_written,
    "paced": e2e_latency.paced_end_to_end,
    "sealing-load": e2e_sealing.beside_load,
    "sealing-paced": e2e_sealing.after_load,
    "durable": e2e_latency.sync_durable,
    "durable-64": e2e_latency.durable_in_flight,
    "poll": e2e_throughput.full_log,
    **{f"dispatch-{n}": partial(store_speed.dispatch, queues=n) for n in QUEUE_COUNTS},
    "verify": store_speed.verify,
    "recovery": store_speed.recovery,
    "serve-cold": e2e_startup.cold,
    "serve-warm": e2e_startup.warm,
    "queues-1": partial(e2e_scale.queues, count=1),
    "queues-1000": partial(e2e_scale.queues, count=1000),
    "sessions-1": partial(e2e_scale.sessions, busy=1),
    "sessions-10": e2e_scale.sessions,
    "sessions-all": partial(e2e_scale.sessions, bystanders=True),
    "log-length": e2e_scale.log_length,
    "sustained": e2e_scale.sustained,
    "pwrite": floors.plain_pwrite,
    "pwrite-lets-go": partial(floors.plain_pwrite, lets_go=True),
    "idle": e2e_idle.idle,
    "import": e2e_idle.importing,
    "status": e2e_idle.status,
    "first-send": e2e_idle.first_send,
    "takeover": e2e_idle.takeover,
    "temporary": e2e_idle.temporary,
    "park": e2e_timers.park,
    "due": e2e_timers.due_per_second,
    "due-together": e2e_timers.due_together,
    "level-1": e2e_timers.level_1,
    "pending": e2e_timers.pending,
    "failing": e2e_push.failing,
    "transactions": e2e_transactions.one_by_one,
    "transactions-64": e2e_transactions.in_flight,
    "checked": e2e_transactions.checked,
    "open-halves": e2e_transactions.open_halves,
    "indexing": e2e_queries.indexing,
    "querying": e2e_queries.querying,
    "sql": e2e_filter.expressions,
    "tags": e2e_filter.tags,
    "bitmaps": e2e_filter.bitmaps,
    "false": bloom_errors.false_positives,
    "spark-100": partial(e2e_spark.reads, body_bytes=BODY_BYTES),
    "spark-1k": partial(e2e_spark.reads, body_bytes=KIB_BODY_BYTES),
    "spark-follow": e2e_ingest.follow,
    "spark-beside": e2e_ingest.beside,
    "redis-zadd": redis_sorted_set.park,
    "redis-due": redis_sorted_set.due_per_second,
    "redis-due-together": redis_sorted_set.due_together,
}
NOT_RUN: Final = {
    "confluent-kafka's send loop": "there is no Kafka broker on the machine, and none is installed"
}
"""Peers that were thought of and have no contestant, with the reason."""

_WAKE_UPS: Final = 0.5
"""Of a round trip: it is two wake-ups."""
_PACED_EXTRA_US: Final = 20.0
_DISPATCH: Final = {1: (4e6, 20e6), 100: (4e6, 15e6), 1000: (2e6, 6e6)}


def lines(sizes: Sizes) -> list[Line]:
    """Return the whole table, in its order."""
    return [
        *_throughput(),
        *_latency(),
        *_sealing(),
        *_durable(),
        *_store(sizes),
        *_startup(),
        *scale(sizes),
        *_idle(sizes),
        *_beginnings(),
        *timers(sizes),
        *push(sizes),
        *transactions(sizes),
        *queries(sizes),
        *filters(),
        *spark(sizes),
        *peers(),
        *floor_lines(),
    ]


def _throughput() -> list[Line]:
    oneway = value("send_oneway", "/s", "oneway", "rate")
    zmq = value("pyzmq PUSH/PULL ipc, single sends", "/s", "zmq", "rate")
    redis = value("Redis Streams, no AOF, pipelines of 1000", "/s", "redis-pipelined", "rate")
    queue = value("multiprocessing.Queue", "/s", "process-queue", "rate")
    receipts = value("send_async", "/s", "async", "rate")
    waiting = value("send_batch", "/s", "batch", "rate")
    in_flight = {
        "send_batch_async of 100 messages, in flight": value(
            "messages", "/s", "batch-flight", "rate"
        ),
        "send_batch_async of a topic's 100 bodies, in flight": value(
            "bodies", "/s", "batch-bodies", "rate"
        ),
    }
    floor = Value(
        "100 messages for each eventfd round trip between two CPUs",
        "/s",
        ("eventfd",),
        lambda found: BATCH_MESSAGES * found["eventfd"].values["rate"],
    )
    what = "send_oneway one by one, 100 B, end to end"
    return [
        Line("oneway", what, oneway, zmq, ratio_at_least(0.8), ratio_at_least(2)),
        Line("oneway", what, oneway, redis, ratio_at_least(8)),
        Line("oneway", what, oneway, queue),
        Line(
            "async",
            "send_async with lazy receipts, end to end",
            receipts,
            oneway,
            ratio_at_least(0.3),
            ratio_at_least(0.6),
        ),
        *(
            Line("batch", what, figure, oneway, ratio_at_least(1), ratio_at_least(2))
            for what, figure in in_flight.items()
        ),
        # Who waits for each batch is held to what waiting costs: one round trip for 100 messages.
        Line("batch", "send_batch of 100, each waited for", waiting, oneway),
        Line("batch", "send_batch of 100, each waited for", waiting, floor),
    ]


def _latency() -> list[Line]:
    xadd = value("Redis XADD one by one, no AOF, p50", "us", "redis-xadd", "p50_us")
    redis = value("Redis Streams, no AOF, p50", "us", "redis-paced", "p50_us")
    sync_p50 = value("send", "us", "sync", "p50_us")
    paced_p50 = value("paced", "us", "paced", "p50_us")
    wake_ups = Value(
        "3 wake-ups + 20 us",
        "us",
        ("eventfd",),
        lambda found: 3 * _WAKE_UPS * found["eventfd"].values["p50_us"] + _PACED_EXTRA_US,
    )
    return [
        Line(
            "sync",
            "sync send at `written`, p50",
            sync_p50,
            round_trip(),
            ratio_at_most(1.5),
            ratio_at_most(0.5),
        ),
        Line(
            "sync",
            "sync send at `written`, p99",
            value("send", "us", "sync", "p99_us"),
            xadd,
            goal=ratio_at_most(1),
        ),
        Line("paced", "paced 1 k/s end to end, p50", paced_p50, redis, ratio_at_most(1)),
        Line("paced", "paced 1 k/s end to end, p50", paced_p50, wake_ups, goal=ratio_at_most(1)),
        Line(
            "paced",
            "paced 1 k/s end to end, p99",
            value("paced", "us", "paced", "p99_us"),
            redis,
            goal=ratio_at_most(2),
        ),
    ]


def _sealing() -> list[Line]:
    """The same messages while segments are sealed, and with the housekeeper halted."""
    beside = {"sealing-paced": "alone", "sealing-load": "beside a producer at full speed"}
    return [
        Line(
            "sealing",
            f"paced 1 k/s {what}, {percentile}",
            value("segments are sealed", "us", name, f"sealing_{percentile}_us"),
            value("none is", "us", name, f"halted_{percentile}_us"),
            ratio_at_most(1.5) if percentile == "p99" else None,
        )
        for name, what in beside.items()
        for percentile in ("p50", "p99")
    ]


def _durable() -> list[Line]:
    floor = Value(
        "pwrite + fdatasync in a preallocated file + 2 wake-ups",
        "us",
        ("fdatasync-zeroed", "fdatasync-allocated", "eventfd"),
        _durable_floor_us,
    )
    return [
        Line(
            "durable",
            "sync send at `durable`, 1 in flight, p50",
            value("durable", "us", "durable", "p50_us"),
            floor,
            ratio_at_most(2),
            ratio_at_most(1.3),
        ),
        Line(
            "durable",
            "durable, 64 in flight",
            value("durable, 64 in flight", "/s", "durable-64", "rate"),
            value("durable, 1 in flight", "/s", "durable", "rate"),
            ratio_at_least(10),
            ratio_at_least(30),
        ),
    ]


def _durable_floor_us(found: Round) -> float:
    """The faster of a zeroed and an allocated file: which one it is differs between disks."""
    syncs = [found[f"fdatasync-{kind}"].values["p50_us"] for kind in ("zeroed", "allocated")]
    return min(syncs) + 2 * _WAKE_UPS * found["eventfd"].values["p50_us"]


def _store(sizes: Sizes) -> list[Line]:
    size = f"{sizes.store_bytes / 2**20:,.0f} MiB of log"
    speeds = Bound("ours", ">=", 300), Bound("ours", ">=", 2000)
    dispatches = [
        Line(
            "dispatch",
            f"reader behind by {size}, {queues} queue{'s' * (queues > 1)}",
            value("dispatch", "/s", f"dispatch-{queues}", "rate"),
            None,
            Bound("ours", ">=", _DISPATCH[queues][0]),
            Bound("ours", ">=", _DISPATCH[queues][1]),
        )
        for queues in QUEUE_COUNTS
    ]
    return [
        Line(
            "poll",
            "columnar poll of a full log, every body touched",
            value("poll", "/s", "poll", "rate"),
            None,
            Bound("ours", ">=", 5e6),
            Bound("ours", ">=", 10e6),
        ),
        *dispatches,
        Line(
            "store",
            f"recovery, {size}",
            value("recovery", "MB/s", "recovery", "mb_s"),
            None,
            *speeds,
        ),
        Line(
            "store",
            f"store verify, {size}",
            value("verify", "MB/s", "verify", "mb_s"),
            None,
            *speeds,
        ),
    ]


def _startup() -> list[Line]:
    limits = {"cold": (90, 40), "warm": (2, 1)}
    return [
        Line(
            "serve",
            f"serve to ready, {state}",
            value("serve", "s", f"serve-{state}", "seconds"),
            None,
            Bound("ours", "<=", must),
            Bound("ours", "<=", goal),
        )
        for state, (must, goal) in limits.items()
    ]


def _idle(sizes: Sizes) -> list[Line]:
    return [
        Line(
            "idle",
            f"broker and 4 idle clients, {sizes.idle_s:g} s, processor use",
            value("idle", "%", "idle", "percent"),
            None,
            *at_most(4, 2),
        ),
        Line(
            "idle",
            "proportional memory of the broker's processes",
            value("idle", "MB", "idle", "memory_mb"),
            None,
            *at_most(300, 200),
        ),
    ]


def _beginnings() -> list[Line]:
    """How long until something works, in a new process or after a death."""
    limits = {
        ("import", "import gantrymq"): (60, 40),
        ("status", "gantrymq status"): (200, 120),
        ("first-send", "first send of a new process, warm"): (800, 400),
        ("temporary", "Broker.temporary() to first message, new process, warm"): (2000, 700),
    }
    return [
        *(
            Line("starts", what, value(name, "ms", name, "ms"), None, *at_most(must, goal))
            for (name, what), (must, goal) in limits.items()
        ),
        Line(
            "takeover",
            "member killed, all its queues read by another, p99",
            Value("takeover", "ms", ("takeover",), lambda found: p99_ms(found["takeover"])),
            None,
            *at_most(1000, 100),
        ),
    ]
