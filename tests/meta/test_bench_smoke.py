"""The bench runs, tells the truth about what it could not run, and judges by its own rules."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import harness, measure, report, rows
from bench.bodies import checksum_of, make_bodies, touch_columns
from bench.crew import BenchError, Crew, Outcome, Phase, SharedFd, Unavailable
from bench.floors import Echo
from bench.harness import Bench, Bound, Contestant, Line, Results, Value
from bench.measure import Measurement
from bench.sizes import BODIES, FULL, QUICK, SMOKE
from gantrymq.cli.bench import HELP
from tests.support.forked import run_forked

ROOT = Path(__file__).resolve().parents[2]
#: Rows of the help's example, which is run by the command line.
EXAMPLE = re.findall(r"^Example: gantrymq bench --smoke (.*)$", HELP, re.MULTILINE)[0].split()
#: Runs of rows, at least one of each kind of measurement: in the suite, and, for each figure costs
#: two or three interpreters, in `make soak` only. Peers may lack their server.
SMOKED: list[tuple[str, Sequence[str]]] = [("as_typed", EXAMPLE)]
if os.environ.get("GANTRYMQ_TEST_BENCH") == "all":
    SMOKED += [("temporary", ("peers",)), ("serve", ("poll", "idle", "takeover", "timers", "push"))]
#: Of these the suite runs some contestants, at a temporary broker: a peer, a schedule, and a kill.
ALONE = ("zmq", "due", "takeover")
MAY_BE_SKIPPED = {
    "zmq", "redis-pipelined", "redis-xadd", "redis-paced", "redis-zadd", "redis-due",
    "redis-due-together", "eventfd",
}  # fmt: skip


def smoke(tmp_path: Path, broker: str, chosen: Sequence[str]) -> dict[str, Any]:
    """Run these rows in a process of their own and return their JSON."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench", "--smoke", "--broker", broker, "--only", *chosen]
    command += ["--dir", str(tmp_path / "store"), "--json", str(figures)]
    command += ["--html", str(tmp_path / "page.html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| what" in done.stdout
    return written(tmp_path, figures.read_text())


def smoke_as_typed(tmp_path: Path, chosen: Sequence[str]) -> dict[str, Any]:
    """The same by the command line, which prints JSON."""
    arguments = ["bench", "--smoke", *chosen, "--json", "--dir", str(tmp_path / "store")]
    done = run_forked([*arguments, "--html", str(tmp_path / "page.html")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| what" in done.stderr
    return written(tmp_path, done.stdout)


def written(tmp_path: Path, figures: str) -> dict[str, Any]:
    """The JSON, which the page shows; no store is left."""
    assert list((tmp_path / "store").iterdir()) == []
    found = json.loads(figures)
    assert isinstance(found, dict)
    assert all(
        escape(line["what"]) in (tmp_path / "page.html").read_text() for line in found["lines"]
    )
    return found


def results(*rounds: dict[str, float]) -> Results:
    """Results whose contestants have one value each, `rate`."""
    return Results(
        [
            {name: Measurement(values={"rate": rate}) for name, rate in each.items()}
            for each in rounds
        ]
    )


def rate(contestant: str) -> Value:
    return harness.value(contestant, "/s", contestant, "rate")


def bench_in(tmp_path: Path, rounds: int = 1) -> Bench:
    return Bench(replace(SMOKE, rounds=rounds), tmp_path)


@pytest.mark.parametrize(("broker", "chosen"), SMOKED)
def test_rows_run_in_smoke_and_say_what_is_missing(
    broker: str, chosen: Sequence[str], tmp_path: Path
) -> None:
    typed = broker == "as_typed"
    found = smoke_as_typed(tmp_path, chosen) if typed else smoke(tmp_path, broker, chosen)

    assert found["failed"] == {}
    assert set(found["skipped"]) <= MAY_BE_SKIPPED
    assert all(found["skipped"].values())
    measured = dict(found["rounds"][0])
    wanted = set(harness.needed([line for line in rows.lines(SMOKE) if line.row in chosen]))
    assert measured.keys() | set(found["skipped"]) == wanted
    for name, each in measured.items():
        assert name == "idle" or each["count"] > 0
        assert all(value >= 0 for value in each["values"].values())
    assert {"date", "commit", "machine", "versions", "sizes"} <= set(found)
    if "sustained" in measured:
        _require_every_process(measured["sustained"])


@pytest.mark.parametrize("name", ALONE)
def test_a_contestant_runs_in_smoke(name: str, tmp_path: Path) -> None:
    bench = replace(bench_in(tmp_path), broker="temporary")
    found = harness.run_rounds(bench, {name: rows.CONTESTANTS[name]}, lambda _: None)

    assert found.failed == {}
    assert found.skipped.keys() <= MAY_BE_SKIPPED
    assert all(each.count > 0 for each in found.rounds[0].values())
    assert list(tmp_path.iterdir()) == []


def _require_every_process(ours: dict[str, Any]) -> None:
    """Producer, consumer, and each agent of the broker by its name reach the report."""
    seconds = ours["cpu_s_per_million"]
    agents = (
        *("supervisor", "writer", "flusher", "reader", "groups", "scheduler", "txn_checker"),
        "housekeeper",
    )
    assert set(seconds) == {"producer", "consumer", *(f"broker/{agent}" for agent in agents)}
    assert seconds["producer"] > 0
    assert seconds["consumer"] > 0
    shown = report.processor_table(Results([{"sustained": Measurement(**ours)}]))
    assert all(f"{role} {spent:.3g}" in shown for role, spent in seconds.items())
    assert f"checksum {ours['checksum']}" in shown


def test_every_line_has_contestants_that_exist_and_a_row_to_choose_it_by() -> None:
    for sizes in (SMOKE, QUICK, FULL):
        lines = rows.lines(sizes)
        assert set(harness.needed(lines)) == set(rows.CONTESTANTS)
        assert all(line.row and line.what for line in lines)


def test_ratios_are_taken_within_a_round() -> None:
    # The machine halves its speed for a while: medians of absolute figures would say 0.5 or 2.
    found = results(
        {"ours": 200.0, "peer": 100.0}, {"ours": 100.0, "peer": 50.0}, {"ours": 90.0, "peer": 45.0}
    )
    verdict = harness.judge(Line("r", "w", rate("ours"), rate("peer")), found)

    assert (verdict.ours, verdict.against, verdict.ratio) == (100.0, 50.0, 2.0)

    found.rounds[1]["peer"] = Measurement(values={"rate": 400.0})
    assert harness.judge(Line("r", "w", rate("ours"), rate("peer")), found).ratio == 2.0


@pytest.mark.parametrize(
    ("ours", "met"), [(250.0, "goal"), (200.0, "goal"), (90.0, "must"), (79.0, "no")]
)
def test_a_line_meets_its_goal_its_must_or_neither(ours: float, met: str) -> None:
    bounds = Bound("ratio", ">=", 0.8), Bound("ratio", ">=", 2)
    line = Line("r", "w", rate("ours"), rate("peer"), *bounds)

    verdict = harness.judge(line, results({"ours": ours, "peer": 100.0}))

    assert verdict.met == met
    assert (f"yes ({met})" in report.table([verdict])) == (met != "no")


@pytest.mark.parametrize(("seconds", "met"), [(0.9, "goal"), (2.0, "must"), (2.1, "no")])
def test_absolute_limits_need_no_peer(seconds: float, met: str) -> None:
    line = Line("r", "w", rate("ours"), None, Bound("ours", "<=", 2), Bound("ours", "<=", 1))

    assert harness.judge(line, results({"ours": seconds})).met == met


def test_rounds_interleave_and_turn_around(tmp_path: Path) -> None:
    order: list[str] = []

    def contestant(name: str) -> Contestant:
        def run(_: Bench) -> Measurement:
            order.append(name)
            return Measurement(values={})

        return run

    bench = bench_in(tmp_path, rounds=3)
    harness.run_rounds(bench, {name: contestant(name) for name in "abc"}, lambda _: None)

    assert "".join(order) == "abc" + "cba" + "abc"


def test_what_is_missing_is_skipped_and_what_fails_is_told(tmp_path: Path) -> None:
    tried: list[str] = []

    def missing(_: Bench) -> Measurement:
        tried.append("missing")
        raise Unavailable("no such server")

    def failing(_: Bench) -> Measurement:
        tried.append("failing")
        raise BenchError("lost 3 messages")

    contestants = {"missing": missing, "failing": failing}
    found = harness.run_rounds(bench_in(tmp_path, rounds=2), contestants, lambda _: None)

    assert tried == ["missing", "failing"]
    assert found.skipped == {"missing": "no such server"}
    assert "lost 3 messages" in found.failed["failing"]
    lines = [Line("r", "w", rate(name)) for name in contestants]
    shown = report.table([harness.judge(line, found) for line in lines])
    assert "missing skipped" in shown
    assert "failing failed" in shown


def test_rows_and_columns_are_touched_alike() -> None:
    bodies = make_bodies()
    buffer = np.frombuffer(b"".join(bodies), np.uint8)
    offsets = np.arange(len(bodies) + 1) * len(bodies[0])

    assert touch_columns(buffer, offsets) == checksum_of(BODIES)
    assert sum(body[0] + body[-1] for body in bodies) == checksum_of(BODIES)
    swapped = np.frombuffer(b"".join([*bodies[:-1], bodies[0]]), np.uint8)
    assert touch_columns(swapped, offsets) != checksum_of(BODIES)


def test_a_flow_that_lost_or_changed_a_message_is_no_measurement() -> None:
    producer = Outcome(0, 100, BODIES)
    good = Outcome(0, 200, BODIES, checksum_of(BODIES))

    assert measure.flow({"producer": producer, "consumer": good}, {}).values["rate"] == 5e8
    for bad in (Outcome(0, 200, BODIES - 1, good.checksum), Outcome(0, 200, BODIES, 1)):
        with pytest.raises(BenchError, match="consumed"):
            measure.flow({"producer": producer, "consumer": bad}, {})


def test_percentiles_count_every_latency() -> None:
    found = measure.percentiles(
        measure.histogram(array("q", [1_000_000] * 98 + [2_000_000, 50_000_000]))
    )

    assert found["p50_us"] == pytest.approx(1_000, rel=0.001)
    assert found["p99_us"] == pytest.approx(2_000, rel=0.001)
    assert found["max_us"] == pytest.approx(50_000, rel=0.001)


def test_paced_sends_are_never_early_and_the_schedule_does_not_slip() -> None:
    due: list[int] = []
    for due_ns in measure.paced(Phase(20, per_second=1_000)):
        assert time.monotonic_ns() >= due_ns
        due.append(due_ns)
        while len(due) == 5 and time.monotonic_ns() < due_ns + 3_500_000:
            pass  # a stall of three and a half intervals

    assert [after - before for before, after in itertools.pairwise(due)] == [1_000_000] * 19


@pytest.mark.parametrize(
    ("factory", "arguments", "told"),
    [(os._exit, (3,), "exit code 3"), (int, ("x",), "invalid literal")],
)
def test_a_worker_that_dies_or_fails_ends_the_measurement(
    factory: Callable[..., Any], arguments: tuple[object, ...], told: str
) -> None:
    with pytest.raises(BenchError, match=told), Crew(SMOKE.timeout_s) as crew:
        crew.start("consumer", factory, *arguments)

    assert multiprocessing.active_children() == []


def echo_that_nobody_rings(timeout_s: float) -> None:
    silent, unheard = os.eventfd(0), os.eventfd(0)
    try:
        with Crew(SMOKE.timeout_s) as crew:
            crew.start("echo", Echo, SharedFd(silent), SharedFd(unheard))
            crew.timeout_s = timeout_s
            crew.run(Phase(1))
    finally:
        os.close(silent)
        os.close(unheard)


def test_a_worker_that_hangs_is_named_and_not_left_behind() -> None:
    with pytest.raises(BenchError, match=r"no word within .* from: echo"):
        echo_that_nobody_rings(timeout_s=0.1)

    assert multiprocessing.active_children() == []
