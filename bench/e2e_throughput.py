"""From one producer process through the log on disk to one consumer process, as fast as it goes."""

from __future__ import annotations

from bench.crew import Crew, JobFactory, Outcome, Phase
from bench.harness import Bench
from bench.measure import Measurement, flow
from bench.ours import Serving, broker
from bench.sizes import warm_up


def oneway(bench: Bench) -> Measurement:
    """`send_oneway` one by one."""
    from bench.our_jobs import OnewaySends

    return _one_to_one(bench, OnewaySends)


def asynchronous(bench: Bench) -> Measurement:
    """`send_async` one by one, with receipts."""
    from bench.our_jobs import AsyncSends

    return _one_to_one(bench, AsyncSends)


def batches(bench: Bench) -> Measurement:
    """`send_batch` of 100."""
    from bench.our_jobs import BatchSends

    return _one_to_one(bench, BatchSends)


def batches_in_flight(bench: Bench) -> Measurement:
    """`send_batch_async` of 100 messages."""
    from bench.our_jobs import BatchesInFlight

    return _one_to_one(bench, BatchesInFlight)


def bodies_in_flight(bench: Bench) -> Measurement:
    """`send_batch_async` of 100 bodies of one topic and tag."""
    from bench.our_jobs import BodiesInFlight

    return _one_to_one(bench, BodiesInFlight)


def full_log(bench: Bench) -> Measurement:
    """Columnar polls of a log that was full before: no producer beside it."""
    from bench.our_jobs import ColumnPolls

    with broker(bench) as server:
        _fill(bench, server)
        with Crew(bench.sizes.timeout_s) as crew:
            crew.start("consumer", ColumnPolls, str(server.home), "poll")
            crew.run(Phase(warm_up(bench.sizes.poll_messages)))
            meter = server.meter()
            outcome = crew.run(Phase(bench.sizes.poll_messages))["consumer"]
            sent = Outcome(outcome.started_ns, outcome.ended_ns, bench.sizes.poll_messages)
            return flow({"producer": sent, "consumer": outcome}, meter.spent())


def _fill(bench: Bench, server: Serving) -> None:
    """Send what will be polled, warm-up included, and let a first consumer see that it is there."""
    from bench.our_jobs import ColumnPolls, OnewaySends

    count = warm_up(bench.sizes.poll_messages) + bench.sizes.poll_messages
    with Crew(bench.sizes.timeout_s) as crew:
        crew.start("consumer", ColumnPolls, str(server.home), "fill")
        crew.start("producer", OnewaySends, str(server.home))
        flow(crew.run(Phase(count)), {})


def _one_to_one(bench: Bench, producer: JobFactory) -> Measurement:
    from bench.our_jobs import ColumnPolls

    with broker(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        crew.start("consumer", ColumnPolls, str(server.home), "end")
        crew.start("producer", producer, str(server.home))
        crew.run(Phase(warm_up(bench.sizes.messages)))
        meter = server.meter()
        return flow(crew.run(Phase(bench.sizes.messages)), meter.spent())
