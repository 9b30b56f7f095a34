"""The table that people read and the JSON that is kept."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypedDict

from bench.harness import Bound, Results, Verdict
from bench.measure import Measurement

COLUMNS: Final = ("what", "ours", "peer / floor", "ratio", "must", "goal", "met?")
_SCALES: Final = ((1e6, " M"), (1e3, " k"))


class BoundJson(TypedDict):
    """A bound as the JSON keeps it."""

    of: str
    sign: str
    limit: float


class LineJson(TypedDict):
    """A line of the table as the JSON keeps it: all that is shown of it."""

    row: str
    what: str
    ours: float | None
    unit: str
    against: float | None
    against_label: str | None
    against_unit: str
    ratio: float | None
    must: BoundJson | None
    goal: BoundJson | None
    met: str
    missing: str


def table(verdicts: Sequence[Verdict]) -> str:
    """Return a Markdown table with aligned columns, one line per verdict."""
    return markdown([as_json(verdict) for verdict in verdicts])


def markdown(lines: Sequence[LineJson]) -> str:
    """Return the same of lines as the JSON has them."""
    rows = [COLUMNS, *[cells(line) for line in lines]]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    shown = [_line(row, widths) for row in rows]
    shown.insert(1, _line(["-" * width for width in widths], widths))
    return "\n".join(shown)


def processor_table(results: Results) -> str:
    """Return processor seconds per million messages of each process, medians over the rounds."""
    lines = []
    for name in _names(results):
        found = [each[name] for each in results.rounds if name in each]
        roles = dict.fromkeys(role for each in found for role in each.cpu_s_per_million)
        parts = [f"{role} {_median_cpu(found, role):.3g}" for role in roles]
        sums = {each.checksum for each in found if each.checksum}
        checked = f" (consumed: checksum {sums.pop()})" if len(sums) == 1 else ""
        if parts:
            lines.append(f"  {name}: {', '.join(parts)}{checked}")
    return "\n".join(lines)


def document(
    about: Mapping[str, object], verdicts: Sequence[Verdict], results: Results
) -> dict[str, Any]:
    """Return everything that was measured, with the lines that the table shows."""
    rounds = [{name: asdict(each) for name, each in found.items()} for found in results.rounds]
    return {
        **about,
        "lines": [as_json(verdict) for verdict in verdicts],
        "rounds": rounds,
        "skipped": results.skipped,
        "failed": results.failed,
    }


def write_json(path: Path, found: Mapping[str, Any]) -> None:
    """Write a document for programs, and for `python -m bench.readme`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def figure(number: float, unit: str) -> str:
    """Return a number with three digits and its unit: `1.39 M/s`, `44.1 us`."""
    if unit.startswith("/"):
        for scale, letter in _SCALES:
            if number >= scale:
                return f"{number / scale:.3g}{letter}{unit}"
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:,.0f} {unit}"


def cells(line: LineJson) -> tuple[str, ...]:
    """Return what COLUMNS show of a line."""
    bounds = (_bound(line["must"], line["unit"]), _bound(line["goal"], line["unit"]))
    other = line["against_label"] or ""
    if line["missing"]:
        return (line["what"], "", other, "", *bounds, line["missing"].partition(":")[0])
    if other:
        other += f": {_shown(line['against'], line['against_unit'])}"
    return (
        line["what"],
        _shown(line["ours"], line["unit"]),
        other,
        "" if line["ratio"] is None else f"{line['ratio']:.2f}",
        *bounds,
        {"no": "no", "": ""}.get(line["met"], f"yes ({line['met']})"),
    )


def _bound(bound: BoundJson | None, unit: str) -> str:
    if bound is None:
        return ""
    limit = bound["limit"]
    shown = f"{limit:g}x" if bound["of"] == "ratio" else figure(limit, unit)
    return f"{bound['sign']} {shown}"


def _shown(number: float | None, unit: str) -> str:
    return "" if number is None else figure(number, unit)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return "| " + " | ".join(padded) + " |"


def _names(results: Results) -> list[str]:
    return list(dict.fromkeys(name for found in results.rounds for name in found))


def _median_cpu(found: Sequence[Measurement], role: str) -> float:
    return statistics.median(each.cpu_s_per_million.get(role, 0.0) for each in found)


def as_json(verdict: Verdict) -> LineJson:
    """Return a line with its figures as the JSON keeps it."""
    line = verdict.line
    return {
        "row": line.row,
        "what": line.what,
        "ours": verdict.ours,
        "unit": line.ours.unit if line.ours else "",
        "against": verdict.against,
        "against_label": line.against.label if line.against else None,
        "against_unit": line.against.unit if line.against else "",
        "ratio": verdict.ratio,
        "must": _bound_json(line.must),
        "goal": _bound_json(line.goal),
        "met": verdict.met,
        "missing": verdict.missing,
    }


def _bound_json(bound: Bound | None) -> BoundJson | None:
    return None if bound is None else {"of": bound.of, "sign": bound.sign, "limit": bound.limit}
