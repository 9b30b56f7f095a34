"""What the bench shows: the page with its plots, and the README's table."""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import harness, measure, page, readme, report, rows, svg
from bench.crew import Progress
from bench.harness import Results
from bench.measure import Measurement
from bench.sizes import FULL, QUICK, SMOKE, Sizes

README = readme.README.read_text(encoding="utf-8")
ABOUT = {
    "sizes": "quick",
    "broker": "serve",
    "date": "2030-01-02T03:04:05+00:00",
    "commit": "abc-dirty",
    "machine": {"processor": "A & B", "cpus": 2, "filesystem": "ext4"},
    "versions": {"python": "3.11"},
}
AGENTS = {"producer": 0.5, "broker/writer": 0.4}


class Figures(dict[str, float]):
    """Whatever a row asks for is there."""

    others = 0.0

    def __missing__(self, name: str) -> float:
        return self.others


@lru_cache
def measured(scale: float) -> Measurement:
    """A measurement that has everything there is to show."""
    latencies = array("q", [round(scale * each) * 1000 for each in range(1, 1001)])
    found = measure.histogram(latencies)
    values = Figures(measure.percentiles(found), rate=scale)
    values.others = scale
    flow = [(0.1, 1e6 * scale), (0.2, 2e6 * scale)]
    return Measurement(values, AGENTS, 1000, curve=measure.curve(found), timeline=flow)


def document(sizes: Sizes = QUICK, *only: str) -> dict[str, Any]:
    """A document of three rounds with each of these rows (all without any), through JSON."""
    lines = [line for line in rows.lines(sizes) if not only or line.row in only]
    names = harness.needed(lines)
    rounds = [{name: measured(scale) for name in names} for scale in (1.0, 3.0, 2.0)]
    results = Results(rounds, skipped={"redis-xadd": "no <server>"})
    verdicts = [harness.judge(line, results) for line in lines]
    found = json.loads(json.dumps(report.document(ABOUT, verdicts, results)))
    assert isinstance(found, dict)
    return found


def table_rows(text: str) -> list[tuple[str, str]]:
    """What names each line of a Markdown table: its first cell, and with whom it is compared."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    found = [(row[0], row[2].rpartition(": ")[0] or row[2]) for row in cells]
    return [row for row in found if row[0] != "what" and not row[0].startswith("--")]


def test_the_readme_has_the_rows_of_the_bench() -> None:
    shown = README.partition(readme.BEGIN)[2].partition(readme.END)[0]

    _, _, named = shown.partition(readme.NOT_MEASURED)
    without = set(re.findall(r"`([^`]+)`", named))

    assert without <= {line.row for line in rows.lines(QUICK)}
    sizes = [readme.keys(each, without) for each in readme.SIZES]
    for row, *known in zip(table_rows(shown), *sizes, strict=True):
        assert row in known
    assert "Measured: " in shown


def test_rows_that_nobody_has_measured_are_named() -> None:
    found = [document(QUICK, *{line.row for line in rows.lines(QUICK)} - {"sync", "push"})]
    shown = readme.rewritten(README, found, ["sync", "push"]).partition(readme.BEGIN)[2]

    assert f"{readme.NOT_MEASURED}`sync`, `push`." in shown
    assert "sync send at `written`" not in shown.partition(readme.END)[0]


def test_the_readme_is_rewritten_between_its_markers() -> None:
    found = readme.rewritten(README, [document()])

    before, _, rest = found.partition(readme.BEGIN)
    shown, _, after = rest.partition(readme.END)
    assert before == README.partition(readme.BEGIN)[0]
    assert after == README.partition(readme.END)[2]
    assert table_rows(shown) == readme.keys(QUICK)
    assert "A & B, 2 CPUs, ext4; commit abc-dirty; 2030-01-02; quick, 3 rounds." in shown


def test_a_run_in_parts_is_put_together_and_a_later_part_wins() -> None:
    whole = document()
    later = document(QUICK, "sync")
    for line in later["lines"]:
        line["ours"] = 77.0

    found = readme.rewritten(README, [whole, later])

    assert re.search(r"\| sync send at `written`, p50 +\| 77 us", found)
    shown = found.partition(readme.BEGIN)[2].partition(readme.END)[0]
    assert table_rows(shown) == readme.keys(QUICK)


def test_a_part_may_be_a_full_run() -> None:
    found = readme.rewritten(README, [document(FULL, "push"), document()])

    shown = table_rows(found.partition(readme.BEGIN)[2].partition(readme.END)[0])
    differ = {row for row, quick in zip(shown, readme.keys(QUICK), strict=True) if row != quick}
    assert differ == {key for key in readme.keys(FULL) if key[0].startswith("push consumer")}


@pytest.mark.parametrize(
    ("text", "found", "told"),
    [
        ("no markers", [document()], "has no"),
        (README, [document(QUICK, "sync")], "not measured, .*durable"),
        (README, [document(SMOKE)], "not measured, .*reader behind"),
    ],
)
def test_a_table_is_whole_or_not_made(text: str, found: list[Any], told: str) -> None:
    with pytest.raises(SystemExit, match=told):
        readme.rewritten(text, found)


def test_the_command_writes_the_readme(tmp_path: Path) -> None:
    figures, copy = tmp_path / "figures.json", tmp_path / "copy.md"
    report.write_json(figures, document())
    copy.write_text(README, encoding="utf-8")

    assert readme.main([str(figures), "--readme", str(copy)]) == 0
    assert copy.read_text(encoding="utf-8") == readme.rewritten(README, [document()])


def test_the_page_shows_everything_and_loads_nothing(tmp_path: Path) -> None:
    found = document()
    page.write(tmp_path / "deep" / "page.html", found)
    text = (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")

    assert not re.search(r"https?:|src=|<link|<script|url\(|@import", text)
    root = ElementTree.fromstring(re.sub(r"<!doctype html>|<meta[^>]*>", "", text))
    shown = " ".join(root.itertext())
    assert all(line["what"] in shown for line in found["lines"])
    assert all(str(fact) in shown for fact in ("abc-dirty", "A & B", "3.11", "ext4", ABOUT["date"]))
    assert "no <server>" in shown
    assert all(f"{peer}: {reason}" in shown for peer, reason in rows.NOT_RUN.items())
    titles = [heading.text for heading in root.iter("h2")]
    assert {*page.LATENCIES, *page.FLOWS} <= set(titles)
    assert len(list(root.iter("polyline"))) == sum(
        map(len, (*page.LATENCIES.values(), *page.FLOWS.values()))
    )
    assert "broker/writer" in shown


def test_plots_name_contestants_that_there_are() -> None:
    named = {name for names in (*page.LATENCIES.values(), *page.FLOWS.values()) for name in names}

    assert named <= set(rows.CONTESTANTS)


def test_a_page_of_one_row_has_its_plots_only() -> None:
    text = page.html(document(QUICK, "paced"))

    assert text.count("<polyline") == len(("paced", "redis-paced"))


def test_the_curve_goes_to_the_slowest_but_never_past_what_was_counted() -> None:
    points = measure.curve(measure.histogram(array("q", [1_000_000] * 99 + [50_000_000])))

    percents, figures = zip(*points, strict=True)
    assert percents[0] == 0
    assert list(percents) == sorted(percents)
    assert 98 < percents[-1] <= 99.1
    assert list(figures) == sorted(figures)
    assert measure.curve(measure.histogram(array("q"))) == []


def test_throughput_over_time_adds_up_to_what_came() -> None:
    progress = Progress()
    for ms in range(1, 1001):
        progress.mark(ms * 1_000_000, ms * 100)

    assert len(progress.marks) // 2 == pytest.approx(100, abs=1)
    points = measure.timeline(0, 1_000_000_000, progress.marks)
    assert all(rate == pytest.approx(100_000) for _, rate in points)
    assert len(points) <= 60
    assert measure.timeline(0, 0, array("q")) == []


def test_scales_hold_what_is_drawn() -> None:
    axis = svg.linear("t", 3.4e6, str)
    assert [at for at, _ in axis.ticks] == [0, 1e6, 2e6, 3e6, 4e6]
    assert (axis.share(0), axis.share(2e6), axis.share(9e9)) == (0, 0.5, 1)

    wide = svg.decades("t", 3, 4000, str)
    assert (wide.low, wide.high) == (1, 10_000)
    assert wide.share(100) == pytest.approx(0.5)
    assert wide.share(0) == 0


def test_a_stacked_bar_is_as_long_as_its_parts_together() -> None:
    text = svg.stacked({"a": {"x": 1.0, "y": 3.0}, "b": {"y": 2.0}}, "s")

    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', text)]
    assert widths == pytest.approx([widths[0], 3 * widths[0], 2 * widths[0]], abs=0.2)
    colors = re.findall(r'<rect [^>]*fill="(#\w+)"', text)
    assert colors[1] == colors[2] != colors[0]


def test_medians_of_processes_are_by_agent() -> None:
    rounds = [
        {"oneway": replace(measured(1.0), cpu_s_per_million={"broker/writer": spent})}
        for spent in (0.1, 0.3, 0.2)
    ]

    assert "broker/writer 0.2" in report.processor_table(Results(rounds))
