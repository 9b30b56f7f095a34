"""One HTML page with everything a run has measured: table, plots, machine; it loads nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from bench import rows, svg
from bench.report import COLUMNS, cells, figure

#: Contestants side by side, ours first: latency by percentile.
LATENCIES: Final = {
    "Latency of one send, acknowledged as written": ("sync", "redis-xadd", "eventfd"),
    "Latency of one send, acknowledged as durable": (
        "durable", "durable-64", "fdatasync-zeroed", "fdatasync-allocated",
    ),
    "Latency end to end at 1,000 messages per second": ("paced", "redis-paced"),
}  # fmt: skip
#: The same: messages per second over time.
FLOWS: Final = {
    "Throughput over time, end to end, 100 B": (
        "oneway", "zmq", "process-queue", "redis-pipelined",
    ),
    "Throughput over time, ways to send": (
        "oneway", "async", "batch", "batch-flight", "batch-bodies",
    ),
    "Throughput over time, 1 KiB, sustained": ("sustained",),
}  # fmt: skip
_PERCENTS: Final = (0, 50, 90, 99, 99.9, 99.99, 99.999)
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;
color:#1b1b1b;background:#fff}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}
table{border-collapse:collapse;font-size:13px;width:100%}th,td{padding:.25rem .5rem;
border-bottom:1px solid #ddd;text-align:left;vertical-align:top}td.n{text-align:right;
white-space:nowrap}.goal,.must{color:#00664a}.no{color:#b3261e;font-weight:600}
svg{width:100%;height:auto;max-width:56rem}svg .grid{stroke:#ddd}svg .axis{font-size:12px;fill:#444}
.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:13px}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.4em}.note{color:#555}
@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#16181a}th,td{border-color:#3a3d40}
svg .grid{stroke:#3a3d40}svg .axis{fill:#bbb}.note{color:#aaa}.goal,.must{color:#5fd0a8}
.no{color:#ff8a80}}
"""


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Write the page of a document that `bench.report.document` made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html(found), encoding="utf-8")


def html(found: Mapping[str, Any]) -> str:
    """Return the page."""
    parts = [
        "<h1>GantryMQ: measurements</h1>",
        "<h2>What must hold, and what is aimed at</h2>",
        _table(found["lines"]),
        _absent(found),
        *_latency_plots(found["rounds"]),
        *_flow_plots(found["rounds"]),
        _processor_plot(found["rounds"]),
        _values(found["rounds"]),
        _about(found),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>GantryMQ: measurements, {escape(found['date'])}</title>"
        f"<style>{_STYLE}</style></head><body>{''.join(part for part in parts if part)}"
        "</body></html>\n"
    )


def _about(found: Mapping[str, Any]) -> str:
    machine, versions = found["machine"], found["versions"]
    facts = {
        "date": found["date"],
        "commit": found["commit"],
        "sizes": f"{found['sizes']}, {len(found['rounds'])} round(s); broker: {found['broker']}",
        **{name.replace("_", " "): str(fact) for name, fact in machine.items()},
        **{f"{name} (version)": str(fact) for name, fact in versions.items()},
    }
    shown = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts.items())
    return f"<h2>Where and when</h2><table>{shown}</table>"


def _table(lines: Sequence[Any]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    body = []
    for line in lines:
        texts = cells(line)
        cell = "".join(f"<td>{escape(text)}</td>" for text in texts[:-1])
        body.append(f'<tr>{cell}<td class="{line["met"]}">{escape(texts[-1])}</td></tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _absent(found: Mapping[str, Any]) -> str:
    """Who was not measured, and why."""
    reasons = {**rows.NOT_RUN, **found["skipped"]}
    reasons |= {name: trace.strip().splitlines()[-1] for name, trace in found["failed"].items()}
    shown = "".join(f"<li>{escape(k)}: {escape(v)}</li>" for k, v in reasons.items())
    return f'<p class="note">Not measured:</p><ul class="note">{shown}</ul>' if shown else ""


def _latency_plots(rounds: Sequence[Any]) -> Iterable[str]:
    for title, names in LATENCIES.items():
        if not _of(rounds, names[0]):
            continue  # peers and floors stand beside ours
        series = {name: _median_curve(_of(rounds, name)) for name in names}
        series = {name: points for name, points in series.items() if points}
        if series:
            yield f"<h2>{escape(title)}</h2>{_latency_plot(series)}"


def _latency_plot(series: Mapping[str, svg.Points]) -> str:
    """Percentiles to the right, as far apart as the shares of slower ones have decades."""
    scaled = {
        name: [(_rarity(percent), us) for percent, us in points] for name, points in series.items()
    }
    right = max(x for points in scaled.values() for x, _ in points)
    ticks = [(_rarity(each), f"{each:g} %") for each in _PERCENTS if _rarity(each) <= right]
    across = svg.Axis("percentile", 1, max(right, 2), ticks, log=True)
    figures = [us for points in scaled.values() for _, us in points]
    up = svg.decades("microseconds", min(figures), max(figures), lambda us: f"{us:,g}")
    return svg.lines(scaled, across, up)


def _rarity(percent: float) -> float:
    return 100 / (100 - percent)


def _median_curve(found: Sequence[Any]) -> svg.Points:
    """At each percentile the median of the rounds."""
    by_percent: dict[float, list[float]] = {}
    for each in found:
        for percent, us in each["curve"]:
            by_percent.setdefault(percent, []).append(us)
    return [(percent, statistics.median(us)) for percent, us in sorted(by_percent.items())]


def _flow_plots(rounds: Sequence[Any]) -> Iterable[str]:
    """Of the last round alone: what comes when differs between rounds."""
    for title, names in FLOWS.items():
        if not _of(rounds, names[0]):
            continue
        series = {name: _of(rounds, name)[-1]["timeline"] for name in names if _of(rounds, name)}
        series = {name: points for name, points in series.items() if points}
        if series:
            yield f"<h2>{escape(title)}</h2>{_flow_plot(series)}"


def _flow_plot(series: Mapping[str, svg.Points]) -> str:
    seconds = max(x for points in series.values() for x, _ in points)
    highest = max(y for points in series.values() for _, y in points)
    across = svg.linear("seconds since the first send", seconds, lambda s: f"{s:g}")
    up = svg.linear("messages per second", highest, lambda n: figure(n, "/s").removesuffix("/s"))
    return svg.lines(series, across, up)


def _processor_plot(rounds: Sequence[Any]) -> str:
    bars: dict[str, dict[str, float]] = {}
    for name in _names(rounds):
        found = [each["cpu_s_per_million"] for each in _of(rounds, name)]
        parts = list(dict.fromkeys(part for each in found for part in each))
        if parts:
            medians = {p: statistics.median(each.get(p, 0.0) for each in found) for p in parts}
            bars[name] = medians
    # Synchronous sends cost a hundred times what a stream does: each kind has its own scale.
    slow = {name for name, bar in bars.items() if sum(bar.values()) > _SLOW_CPU_S}
    groups = ({n: b for n, b in bars.items() if (n in slow) == late} for late in (False, True))
    title = "processor seconds per million messages"
    shown = "".join(svg.stacked(group, title) for group in groups if group)
    return f"<h2>Processor seconds by process</h2>{shown}" if shown else ""


_SLOW_CPU_S: Final = 30.0


def _values(rounds: Sequence[Any]) -> str:
    """Every figure: the median and each round's."""
    body = []
    for name in _names(rounds):
        found = [each["values"] for each in _of(rounds, name)]
        for metric in dict.fromkeys(metric for each in found for metric in each):
            figures = [each[metric] for each in found if metric in each]
            shown = (name, metric, f"{statistics.median(figures):,.4g}")
            rest = ", ".join(f"{number:,.4g}" for number in figures)
            body.append("".join(f"<td>{escape(text)}</td>" for text in (*shown, rest)))
    head = "".join(f"<th>{name}</th>" for name in ("contestant", "metric", "median", "rounds"))
    trs = "".join(f"<tr>{each}</tr>" for each in body)
    return (
        "<h2>Every figure</h2><details><summary>by contestant and round</summary>"
        f"<table><tr>{head}</tr>{trs}</table></details>"
    )


def _names(rounds: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(name for each in rounds for name in each))


def _of(rounds: Sequence[Any], name: str) -> list[Any]:
    return [each[name] for each in rounds if name in each]
