"""docs/faults.md has a row for each fault, and what it names is there."""

from __future__ import annotations

import re

from scripts.soak import PARTS
from tests.support.evidence import problem_with, rows_of
from tests.support.tree import ROOT

PAGE = ROOT / "docs" / "faults.md"
FAULTS = 29


def test_each_fault_has_its_row() -> None:
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    assert [row.point for row in rows] == [f"F{number}" for number in range(1, FAULTS + 1)]
    assert not [row.point for row in rows if not row.shown_by]


def test_every_named_test_is_there() -> None:
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    found = [(row.point, name, problem_with(name)) for row in rows for name in row.shown_by]
    assert not [f"{point}: `{name}`: {text}" for point, name, text in found if text]


def test_every_part_of_soak_is_named_and_there() -> None:
    """In the column of soak a word in backticks is a part of scripts/soak.py."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "| F"]
    named = {name for line in lines for name in re.findall(r"`(\w+)`", line.split("|")[5])}
    assert named == {part.name for part in PARTS} - {"bench"}  # which brings no fault about


def test_what_soak_runs_is_there() -> None:
    words = [word for part in PARTS for word in part.command(1) if word.startswith("tests")]
    paths = [word.partition("::")[0] for word in words]
    there = [ROOT / word if "/" in word else ROOT / (word.replace(".", "/")) for word in paths]
    missing = [p for p in there if not (p.exists() or p.with_suffix(".py").exists())]
    assert not missing
    named = [word for word in words if "::" in word]
    assert named
    assert not [word for word in named if problem_with(word)]
