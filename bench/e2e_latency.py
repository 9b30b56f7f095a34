"""How long one message takes: acknowledged as written, as durable, and end to end on schedule."""

from __future__ import annotations

from bench.crew import Crew, Phase
from bench.harness import Bench
from bench.measure import Measurement, latency
from bench.ours import broker
from bench.sizes import PACED_PER_SECOND


def sync_written(bench: Bench) -> Measurement:
    """`send` one by one, acknowledged when it is in the log."""
    return _sync(bench, "written", bench.sizes.sync_sends)


def sync_durable(bench: Bench) -> Measurement:
    """`send` one by one, acknowledged when it is synced."""
    return _sync(bench, "durable", bench.sizes.durable_sends)


def durable_in_flight(bench: Bench) -> Measurement:
    """`send_async` of durable messages, 64 in flight."""
    from bench.our_jobs import WindowedSends

    with broker(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        crew.start("producer", WindowedSends, str(server.home))
        crew.run(Phase(bench.sizes.in_flight_sends // 10))
        meter = server.meter()
        outcomes = crew.run(Phase(bench.sizes.in_flight_sends))
        return latency(outcomes, "producer", meter.spent())


def paced_end_to_end(bench: Bench) -> Measurement:
    """`send_oneway` at a fixed rate to a consumer asleep in `poll`, from the intended time."""
    from bench.our_jobs import PacedPolls, PacedSends

    with broker(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        crew.start("consumer", PacedPolls, str(server.home), "paced")
        crew.start("producer", PacedSends, str(server.home))
        crew.run(Phase(bench.sizes.paced_messages // 10, PACED_PER_SECOND))
        meter = server.meter()
        outcomes = crew.run(Phase(bench.sizes.paced_messages, PACED_PER_SECOND))
        return latency(outcomes, "consumer", meter.spent())


def _sync(bench: Bench, durability: str, count: int) -> Measurement:
    from bench.our_jobs import SyncSends

    with broker(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        crew.start("producer", SyncSends, str(server.home), durability)
        crew.run(Phase(count // 10))
        meter = server.meter()
        return latency(crew.run(Phase(count)), "producer", meter.spent())
