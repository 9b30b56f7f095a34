"""Push consumers: what failures cost, and how soon a killed member's messages go on elsewhere."""

from __future__ import annotations

from typing import Final

from bench.crew import Crew, Phase
from bench.harness import Bench
from bench.measure import Measurement
from bench.ours import broker
from bench.sizes import warm_up

#: Every tenth message fails until it is a dead letter, with a second between attempts.
_EVERY: Final = 10
_LEVELS: Final = "1s 1s 1s"


def failing(bench: Bench) -> Measurement:
    """Messages per second through a listener: `rate` with none failing, `failing_rate` with some.

    From the first send until each message has succeeded, or has failed for the last time.
    """
    values = {
        "rate": _rate(bench, 0),
        "failing_rate": _rate(bench, _EVERY),
    }
    return Measurement(values=values, count=bench.sizes.failing_messages)


def _rate(bench: Bench, every: int) -> float:
    from bench.push_jobs import FailingSends, Pushed

    count = bench.sizes.failing_messages
    with (
        broker(bench, message_delay_level=_LEVELS) as server,
        Crew(bench.sizes.timeout_s) as crew,
    ):
        crew.start("consumer", Pushed, str(server.home))
        crew.start("producer", FailingSends, str(server.home))
        crew.run(Phase(warm_up(count), 0))
        outcomes = crew.run(Phase(count, every))
    return count * 1e9 / (outcomes["consumer"].ended_ns - outcomes["producer"].started_ns)
