"""The lines of peers and floors by themselves."""

from __future__ import annotations

from bench import floors
from bench.harness import Line, Value, value


def peers() -> list[Line]:
    """Peers by themselves: what `oneway`, `sync` and `paced` are compared with."""
    return [
        *(
            Line("peers", "100 B, end to end", None, value(name, "/s", contestant, "rate"))
            for name, contestant in (("pyzmq", "zmq"), ("multiprocessing.Queue", "process-queue"))
        ),
        Line(
            "peers",
            "100 B, end to end, acknowledged",
            None,
            value("Redis Streams, pipelines of 1000", "/s", "redis-pipelined", "rate"),
        ),
        *[
            Line("peers", what, None, value(f"Redis, {metric[:3]}", "us", contestant, metric))
            for what, contestant in (
                ("XADD one by one", "redis-xadd"),
                ("paced 1 k/s end to end", "redis-paced"),
            )
            for metric in ("p50_us", "p99_us")
        ],
    ]


def floor_lines() -> list[Line]:
    """The machine's own."""
    sync = f"pwrite + fdatasync of {floors.SYNC_BYTES} B, p50"
    return [
        Line("floors", "eventfd, two CPUs", None, round_trip()),
        Line("floors", sync, None, value("zeroed file", "us", "fdatasync-zeroed", "p50_us")),
        Line("floors", sync, None, value("allocated file", "us", "fdatasync-allocated", "p50_us")),
    ]


def round_trip() -> Value:
    """What two wake-ups take."""
    return value("eventfd round trip between two CPUs", "us", "eventfd", "p50_us")
