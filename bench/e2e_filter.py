"""How many messages per second a consumer's filter examines: expressions, tags, bitmaps.

The log is full before and in memory; every consumer begins at the first message. The first pass
warms up, the second counts.
"""

from __future__ import annotations

from typing import Final

from bench.crew import BenchError, Crew, Outcome, Phase
from bench.filter_jobs import (
    EXPRESSIONS,
    RARE_EVERY,
    RARER_EVERY,
    FilteredPolls,
    FilterFill,
    PythonLoop,
    properties_of,
)
from bench.harness import Bench
from bench.measure import NS_PER_S, Measurement
from bench.ours import Serving, broker
from gantrymq import FilterExpression, FilterType

#: The Python loop sees this part of the messages.
_LOOP_PART: Final = 10
BITMAPS: Final = {"enable_consume_queue_ext": "true", "enable_calc_filter_bit_map": "true"}


def expressions(bench: Bench) -> Measurement:
    """SQL92 of three kinds, and the typical one as a loop of Python: examined per second."""
    count = bench.sizes.filter_messages
    values = {}
    with broker(bench) as server:
        _fill(bench, server, count)
        for kind in ("simple", "typical", "hard"):
            values[kind] = _examined(bench, server, kind, EXPRESSIONS[kind], count)
        passing = _passing(EXPRESSIONS["typical"], count // _LOOP_PART)
        with Crew(bench.sizes.timeout_s) as crew:
            crew.start("consumer", PythonLoop, str(server.home), "loop")
            outcome = crew.run(Phase(passing))["consumer"]
        values["loop"] = _rate(outcome, count // _LOOP_PART)
    return Measurement(values=values, count=count)


def tags(bench: Bench) -> Measurement:
    """Tags of one message in 100 and in 10,000: units examined per second."""
    count = bench.sizes.filter_messages
    values = {}
    with broker(bench) as server:
        _fill(bench, server, count)
        for tag, every in (("rare", RARE_EVERY), ("rarer", RARER_EVERY)):
            values[tag] = _pass(bench, server, tag, (tag, "TAG"), (-(-count // every), count))
    return Measurement(values=values, count=count)


def bitmaps(bench: Bench) -> Measurement:
    """SQL92 of one message in 100, with bitmaps and without; what they cost the reader."""
    count = bench.sizes.filter_messages
    values = {}
    for name, settings in (("with", BITMAPS), ("without", {})):
        with broker(bench, **settings) as server:
            with Crew(bench.sizes.timeout_s) as crew:  # registers the group before there are any
                crew.start("consumer", FilteredPolls, str(server.home), "rare", *_sql("rare"))
            meter = server.meter()
            _fill(bench, server, count)
            spent = meter.spent()
            reader = sum(seconds for role, seconds in spent.items() if "reader" in role)
            values[f"reader_{name}"] = 1e6 * reader / count
            values[name] = _examined(bench, server, "rare", EXPRESSIONS["rare"], count)
    return Measurement(values=values, count=count)


def _sql(kind: str) -> tuple[str, str]:
    return EXPRESSIONS[kind], "SQL92"


def _examined(bench: Bench, server: Serving, group: str, text: str, count: int) -> float:
    return _pass(bench, server, group, (text, "SQL92"), (_passing(text, count), count))


def _pass(
    bench: Bench, server: Serving, group: str, wanted: tuple[str, str], counts: tuple[int, int]
) -> float:
    """Messages examined per second; `counts`: how many pass, and of how many."""
    passing, count = counts
    with Crew(bench.sizes.timeout_s) as crew:
        crew.start("consumer", FilteredPolls, str(server.home), group, *wanted)
        crew.run(Phase(passing))
        return _rate(crew.run(Phase(passing))["consumer"], count)


def _rate(outcome: Outcome, examined: int) -> float:
    return examined * NS_PER_S / (outcome.ended_ns - outcome.started_ns)


def _passing(text: str, count: int) -> int:
    """How many of the first messages an expression is TRUE of."""
    wanted = FilterExpression(text, FilterType.SQL92)
    each = [wanted.matches(properties_of(number)) is True for number in range(RARE_EVERY)]
    if not any(each):
        raise BenchError(f"{text!r} passes nothing")
    whole, rest = divmod(count, RARE_EVERY)
    return whole * sum(each) + sum(each[:rest])


def _fill(bench: Bench, server: Serving, count: int) -> None:
    with Crew(bench.sizes.timeout_s) as crew:
        crew.start("producer", FilterFill, str(server.home))
        crew.run(Phase(count))
