"""What a message costs with many queues, many sessions and a long log; 1 KiB on and on."""

from __future__ import annotations

import shutil
import time
from typing import Final

from bench.crew import BenchError, Crew, Outcome, Phase
from bench.harness import Bench
from bench.measure import NS_PER_S, Measurement, flow, per_million, timeline
from bench.memory import touch_memory
from bench.ours import Serving, broker, make_topic
from bench.sizes import BUSY_SESSIONS, warm_up

_ROOM: Final = 0.75
"""Of the free disk: others use it, too."""
_KEEP_ALL: Final = {
    "disk_max_used_space_ratio": 95,
    "disk_space_clean_forcibly_ratio": 100,
    "disk_space_warning_level_ratio": 100,
}
"""However full the disk becomes, the log keeps its length."""
_GB: Final = 1e9
_SESSION_MEMORY: Final = {"session_memory_max": 4 << 30}


def queues(bench: Bench, count: int) -> Measurement:
    """One producer to one consumer over a topic of `count` queues."""
    from bench.our_jobs import ColumnPolls, OnewaySends

    with broker(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        make_topic(server, count)
        crew.start("consumer", ColumnPolls, str(server.home), "end")
        crew.start("producer", OnewaySends, str(server.home))
        return _costed(bench, server, crew)


def sessions(bench: Bench, *, busy: int = BUSY_SESSIONS, bystanders: bool = False) -> Measurement:
    """`busy` producers in one process; with bystanders `sizes.sessions` are attached in all."""
    from bench.our_jobs import ColumnPolls
    from bench.scale_jobs import Bystanders, ManySends

    with broker(bench, **_SESSION_MEMORY) as server, Crew(bench.sizes.timeout_s) as crew:
        if bystanders:
            # The consumer is one of them.
            crew.start("bystanders", Bystanders, str(server.home), bench.sizes.sessions - busy - 1)
        crew.start("consumer", ColumnPolls, str(server.home), "end")
        crew.start("producer", ManySends, str(server.home), busy)
        return _costed(bench, server, crew)


def log_length(bench: Bench) -> Measurement:
    """One producer to one consumer, on a log of the short length and of the long one."""
    from bench.our_jobs import ColumnPolls, OnewaySends

    short, wanted = bench.sizes.log_bytes
    with broker(bench, **_KEEP_ALL) as server, Crew(bench.sizes.timeout_s) as crew:
        room = int(shutil.disk_usage(server.home).free * _ROOM)
        crew.start("consumer", ColumnPolls, str(server.home), "end")
        crew.start("producer", OnewaySends, str(server.home))
        _fill(bench, server, short)
        before = _costed(bench, server, crew)
        _fill(bench, server, min(wanted, room) - short)
        after = _costed(bench, server, crew)
        appended = _appended(server)
    values = {f"{name}_short": figure for name, figure in before.values.items()}
    values |= {f"{name}_long": figure for name, figure in after.values.items()}
    return Measurement(
        values=values | {"long_gb": appended / _GB},
        cpu_s_per_million=after.cpu_s_per_million,
        count=after.count,
        checksum=after.checksum,
    )


def sustained(bench: Bench) -> Measurement:
    """1 KiB bodies for `sustained_s`, end to end; bytes are those of the log.

    `mb_s` is the rate up to the consumer, `disk_mb_s` that until the disk has all of it as well.
    """
    from bench.scale_jobs import SustainedPolls, SustainedSends

    with broker(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        make_topic(server, 1)
        crew.start("consumer", SustainedPolls, str(server.home))
        crew.start("producer", SustainedSends, str(server.home))
        crew.run(Phase(0, seconds=bench.sizes.sustained_s / 20))
        before, meter = _appended(server), server.meter()
        outcomes = crew.run(Phase(0, seconds=bench.sizes.sustained_s))
        spent = meter.spent()
        server.wait_for("disk", bench.sizes.timeout_s)
        synced_ns = time.monotonic_ns()
        return _sustained(outcomes, _appended(server) - before, synced_ns, spent)


def _sustained(
    outcomes: dict[str, Outcome], log_bytes: int, synced_ns: int, servers_cpu_s: dict[str, float]
) -> Measurement:
    sent, came = outcomes["producer"], outcomes["consumer"]
    if (sent.count, sent.checksum) != (came.count, came.checksum):
        raise BenchError(f"sent {sent.count} messages, consumed {came.count}, or other ones")
    seconds = (came.ended_ns - sent.started_ns) / NS_PER_S
    disk_s = (max(synced_ns, came.ended_ns) - sent.started_ns) / NS_PER_S
    cpu_s = {role: outcome.cpu_s for role, outcome in outcomes.items()} | servers_cpu_s
    return Measurement(
        values={
            "mb_s": log_bytes / 1e6 / seconds,
            "disk_mb_s": log_bytes / 1e6 / disk_s,
            "rate": sent.count / seconds,
        },
        cpu_s_per_million=per_million(cpu_s, sent.count),
        count=came.count,
        checksum=came.checksum,
        timeline=timeline(sent.started_ns, came.ended_ns, came.marks),
    )


def _costed(bench: Bench, server: Serving, crew: Crew) -> Measurement:
    """A flow with `cost`: processor seconds of all processes per million messages."""
    crew.run(Phase(warm_up(bench.sizes.scale_messages)))
    meter = server.meter()
    found = flow(crew.run(Phase(bench.sizes.scale_messages)), meter.spent())
    cost = sum(found.cpu_s_per_million.values())
    return Measurement(
        values={**found.values, "cost": cost},
        cpu_s_per_million=found.cpu_s_per_million,
        count=found.count,
        checksum=found.checksum,
        timeline=found.timeline,
    )


def _fill(bench: Bench, server: Serving, size: int) -> None:
    """Make the log longer by about `size` bytes, and wait until they are on the disk and indexed.

    What is measured next would pay for both, and for memory from the host.
    """
    from bench.scale_jobs import LongSends, fills

    with Crew(bench.sizes.timeout_s) as crew:
        crew.start("filler", LongSends, str(server.home))
        crew.run(Phase(fills(size)))
    for what in ("disk", "index"):
        server.wait_for(what, bench.sizes.timeout_s)
    touch_memory(bench.sizes.touched_bytes)


def _appended(server: Serving) -> int:
    from gantrymq.shm.layout import BOARD_APPENDED

    return server.board().word(BOARD_APPENDED)
