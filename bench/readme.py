"""`python -m bench.readme FILE ...`: the README's table from the JSON of `python -m bench`.

Of several files the later ones' lines replace the earlier ones': a long run can be made in parts,
some of them full ones and some quick. A line says what it is about, its sizes too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench import rows
from bench.report import LineJson, markdown
from bench.sizes import FULL, QUICK, Sizes

README: Final = Path(__file__).resolve().parents[1] / "README.md"
BEGIN: Final = "<!-- bench: begin -->"
END: Final = "<!-- bench: end -->"
SIZES: Final = (FULL, QUICK)
"""Sets whose figures mean something; where a line was measured with both, the first is shown."""
NOT_MEASURED: Final = "Not measured at these sizes yet, rows of `python -m bench --only`: "


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite what is between the README's markers; return 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.readme", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON of a run")
    parser.add_argument("--readme", type=Path, default=README, help="(default: %(default)s)")
    parser.add_argument(
        "--without", nargs="+", default=(), metavar="ROW", help="rows that nobody has measured yet"
    )
    options = parser.parse_args(arguments)
    found = [json.loads(path.read_text(encoding="utf-8")) for path in options.files]
    text = options.readme.read_text(encoding="utf-8")
    options.readme.write_text(rewritten(text, found, options.without), encoding="utf-8")
    return 0


def rewritten(text: str, found: Sequence[Mapping[str, Any]], without: Collection[str] = ()) -> str:
    """Return the README with the table of these documents between its markers.

    Rows `without` are named below it as not measured. Raises SystemExit if the documents lack a
    line of another, or the README its markers.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the README has no {BEGIN} ... {END}")
    measured = {key(line): line for each in found for line in each["lines"]}
    choices = list(zip(*(keys(each, without) for each in SIZES), strict=True))
    lacking = sorted({" / ".join(names[-1]) for names in choices if not measured.keys() & {*names}})
    if lacking:
        raise SystemExit(f"not measured, quick or full: {'; '.join(lacking)}")
    shown = markdown([next(measured[n] for n in names if n in measured) for names in choices])
    missing = f"\n{NOT_MEASURED}{', '.join(f'`{row}`' for row in without)}.\n" if without else ""
    return f"{before}{BEGIN}\n{_heading(found)}\n\n{shown}\n{missing}{END}{after}"


def keys(sizes: Sizes, without: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return what names the README's lines: all that have figures of ours, but for some rows."""
    found = [line for line in rows.lines(sizes) if line.ours and line.row not in without]
    return [(line.what, line.against.label if line.against else "") for line in found]


def key(line: LineJson) -> tuple[str, str]:
    """Return what names a line in the JSON."""
    return line["what"], line["against_label"] or ""


def _heading(found: Sequence[Mapping[str, Any]]) -> str:
    """Where the figures come from, in a line."""
    said = []
    for each in found:
        machine, count = each["machine"], len(each["rounds"])
        where = f"{machine['processor']}, {machine['cpus']} CPUs, {machine['filesystem']}"
        run = f"{each['sizes']}, {count} round{'s' * (count > 1)}"
        said.append(f"{where}; commit {each['commit']}; {each['date'][:10]}; {run}")
    return "Measured: " + " · ".join(dict.fromkeys(said)) + "."


if __name__ == "__main__":
    sys.exit(main())
