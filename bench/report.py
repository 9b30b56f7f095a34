"""The table that people read and the JSON that is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.harness import Bound, Results, Value, Verdict
from bench.measure import Measurement

COLUMNS: Final = ("what", "ours", "peer / floor", "ratio", "must", "goal", "met?")
_SCALES: Final = ((1e6, " M"), (1e3, " k"))


def table(verdicts: Sequence[Verdict]) -> str:
    """Return a Markdown table with aligned columns, one line per verdict."""
    rows = [COLUMNS, *[_cells(verdict) for verdict in verdicts]]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, _line(["-" * width for width in widths], widths))
    return "\n".join(lines)


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


def write_json(
    path: Path, about: Mapping[str, object], verdicts: Sequence[Verdict], results: Results
) -> None:
    """Write everything that was measured, with the lines that the table shows."""
    rounds = [{name: asdict(each) for name, each in found.items()} for found in results.rounds]
    document = {
        **about,
        "lines": [_line_json(verdict) for verdict in verdicts],
        "rounds": rounds,
        "skipped": results.skipped,
        "failed": results.failed,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def figure(number: float, unit: str) -> str:
    """Return a number with three digits and its unit: `1.39 M/s`, `44.1 us`."""
    if unit.startswith("/"):
        for scale, letter in _SCALES:
            if number >= scale:
                return f"{number / scale:.3g}{letter}{unit}"
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:,.0f} {unit}"


def _cells(verdict: Verdict) -> tuple[str, ...]:
    line = verdict.line
    if verdict.missing:
        other = line.against.label if line.against else ""
        why = verdict.missing.partition(":")[0]
        return (line.what, "", other, "", *_bounds(verdict), why)
    return (
        line.what,
        _shown(line.ours, verdict.ours),
        _named(line.against, verdict.against),
        "" if verdict.ratio is None else f"{verdict.ratio:.2f}",
        *_bounds(verdict),
        {"no": "no", "": ""}.get(verdict.met, f"yes ({verdict.met})"),
    )


def _bounds(verdict: Verdict) -> tuple[str, str]:
    line = verdict.line
    unit = line.ours.unit if line.ours else ""
    return _bound(line.must, unit), _bound(line.goal, unit)


def _bound(bound: Bound | None, unit: str) -> str:
    if bound is None:
        return ""
    limit = f"{bound.limit:g}x" if bound.of == "ratio" else figure(bound.limit, unit)
    return f"{bound.sign} {limit}"


def _shown(value: Value | None, number: float | None) -> str:
    return "" if value is None or number is None else figure(number, value.unit)


def _named(value: Value | None, number: float | None) -> str:
    return "" if value is None else f"{value.label}: {_shown(value, number)}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "| " + " | ".join(padded) + " |"


def _names(results: Results) -> list[str]:
    return list(dict.fromkeys(name for found in results.rounds for name in found))


def _median_cpu(found: Sequence[Measurement], role: str) -> float:
    figures = sorted(each.cpu_s_per_million.get(role, 0.0) for each in found)
    return figures[len(figures) // 2]


def _line_json(verdict: Verdict) -> dict[str, object]:
    line = verdict.line
    return {
        "row": line.row,
        "what": line.what,
        "ours": verdict.ours,
        "against": verdict.against,
        "against_label": line.against.label if line.against else None,
        "ratio": verdict.ratio,
        "must": asdict(line.must) if line.must else None,
        "goal": asdict(line.goal) if line.goal else None,
        "met": verdict.met,
        "missing": verdict.missing,
    }
