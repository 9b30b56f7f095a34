"""The table of `make interop`: its rows, a file that keeps them, and its place in README.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

VERSIONS: Final = ("5.4.0", "5.3.3")
BEGIN: Final = "<!-- interop: begin -->"
END: Final = "<!-- interop: end -->"
ACCEPTED: Final = "yes"
REFUSED: Final = "**no**"
NOT_RUN: Final = "not run"
_HEAD: Final = ("store", "what RocketMQ did", *VERSIONS, "s")


@dataclass(frozen=True, slots=True)
class Row:
    """A store, and what a RocketMQ has to do with it."""

    store: str
    did: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a row with one version; `said` is the checker's last word, or its complaint."""

    store: str
    did: str
    version: str
    accepted: bool
    seconds: float
    said: str

    @property
    def row(self) -> Row:
        """Which row it belongs to."""
        return Row(self.store, self.did)


def table(rows: Iterable[Row], outcomes: Iterable[Outcome], *, every: bool = False) -> str:
    """Markdown: a line for each row with an outcome, or for `every` row.

    Seconds are those of all versions together.
    """
    found: dict[Row, dict[str, Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.row, {})[outcome.version] = outcome
    lines = [_HEAD, *(_cells(row, found.get(row, {})) for row in rows if every or row in found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in (lines[0], rule, *lines[1:])
    )


def _cells(row: Row, found: dict[str, Outcome]) -> tuple[str, ...]:
    marks = [
        (ACCEPTED if found[version].accepted else REFUSED) if version in found else NOT_RUN
        for version in VERSIONS
    ]
    return row.store, row.did, *marks, f"{sum(outcome.seconds for outcome in found.values()):.0f}"


def save(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write outcomes as JSON."""
    partial = path.with_name(path.name + ".partial")
    text = json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def load(path: Path) -> list[Outcome]:
    """Outcomes of a file; none if it is not there. Raises ValueError, TypeError."""
    if not path.exists():
        return []
    return [Outcome(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


def between_markers(text: str) -> str:
    """What stands in README.md now. Raises ValueError without the markers."""
    _, begin, rest = text.partition(BEGIN)
    inside, end, _ = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{BEGIN} and {END} are not in the text")
    return inside.strip("\n")


def put_between_markers(text: str, new: str) -> str:
    """The text with another table. Raises ValueError without the markers."""
    between_markers(text)
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n{new}\n{END}{rest.partition(END)[2]}"


def rows_between_markers(text: str) -> list[tuple[Row, tuple[str, ...]]]:
    """Rows of the table in README.md, each with what its columns of versions say."""
    lines = between_markers(text).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [(Row(store, did), tuple(rest[:-1])) for store, did, *rest in cells]
