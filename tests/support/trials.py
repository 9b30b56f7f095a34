"""What broke when GantryMQ was tried from outside, and the tests that show it mended.

The rows are in trials.toml. A test names the rows that it shows:

    @mends("R3.1", "R3.2")
    def test_...

`python -m scripts.trials_doc` writes docs/trials.md from the rows and these marks.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.tree import ROOT, nodes, parsed, python_files

#: What each list is called in docs/trials.md.
LISTS = {
    "R": "An adversary: power cuts, kills, hostile clients",
    "A": "An application's developer",
    "D": "A data engineer",
    "H": "A reader of all of the code",
    "S": "Another adversary, and wider simulation, after all of these were mended",
}

#: Name of a row, and what broke.
ROWS: dict[str, str] = tomllib.loads((ROOT / "tests/support/trials.toml").read_text("utf-8"))

#: Rows that no test can show mended, with the reason: no defect after all, or due elsewhere.
EXCUSED: dict[str, str] = {
    "D9": (
        "half of it is mended: a merge makes row groups of 131,072 rows (test_ingest.py::"
        "test_a_merge_makes_whole_row_groups). That no query which has listed a folder meets a file"
        " gone needs names that open and are not listed, which no file system has: so `--no-merge`"
        " leaves merging to a run at a quiet hour, and docs/spark.md says what a query meets;"
        " tables with snapshots (Delta, Iceberg) are the remedy"
    ),
}

#: pytest's mark; its arguments are rows.
mends = pytest.mark.mends


@dataclass(frozen=True)
class Shown:
    """A test that shows rows mended: its id for pytest, and the line of its mark."""

    test: str
    path: str
    line: int
    rows: tuple[str, ...]


def shown() -> list[Shown]:
    """Return all marks of the suite's tests, by file and line."""
    return [mark for path in python_files("tests") for mark in _marks_of(parsed(path), path)]


def _marks_of(tree: ast.Module, path: object) -> Iterator[Shown]:
    name = str(path).removeprefix(f"{ROOT}/")
    inside = {
        id(child): parent.name
        for parent in nodes(tree)
        if isinstance(parent, ast.ClassDef)
        for child in parent.body
    }
    for node in nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "mends":
                rows = tuple(ast.literal_eval(argument) for argument in mark.args)
                outer = f"{inside[id(node)]}::" if id(node) in inside else ""
                yield Shown(f"{name}::{outer}{node.name}", name, mark.lineno, rows)
