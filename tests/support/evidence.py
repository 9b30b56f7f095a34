"""Reads docs/evidence.md: a Markdown table whose last column names tests and commands in backticks.

| point | shown by |
|---|---|
| a torn tail is cut | `tests/crash/test_torn.py::test_every_byte`, `make demo` |
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import rows
from bench.sizes import FULL
from tests.support.tree import ROOT, nodes, parsed

#: Calls and marks by which a test may end without having shown anything.
_SKIPS = {"skip", "skipif", "xfail", "importorskip"}
_SEPARATOR = re.compile(r"[:\-\s]+")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    line: int
    point: str
    shown_by: tuple[str, ...]


def rows_of(text: str) -> list[Row]:
    """Return the rows of all tables in a page, without headings and separators."""
    found: list[Row] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        cells = _cells(line)
        follows = _cells(lines[number]) if number < len(lines) else []
        if not cells or _is_separator(cells) or _is_separator(follows):
            continue
        found.append(Row(number, cells[0], tuple(re.findall(r"`([^`]+)`", cells[-1]))))
    return found


def problem_with(reference: str) -> str | None:
    """Say why a reference shows nothing; None if it stands."""
    if reference.startswith("tests/"):
        return _problem_with_test(reference)
    return _problem_with_command(reference.split())


def _cells(line: str) -> list[str]:
    stripped = line.strip()
    if not stripped.startswith("|"):
        return []
    return [cell.strip() for cell in stripped.strip("|").split("|")]


def _is_separator(cells: list[str]) -> bool:
    return bool(cells) and all(_SEPARATOR.fullmatch(cell) for cell in cells)


def _problem_with_test(reference: str) -> str | None:
    name, *inside = reference.partition("[")[0].split("::")
    path = ROOT / name
    if not path.is_file():
        return "no such file"
    tree = parsed(path)
    if _skips([node for node in tree.body if not isinstance(node, _DEFINITIONS)]):
        return "the whole file may be skipped"
    if not inside:
        return _problem_with_file(tree)
    node: ast.AST = tree
    for part in inside:
        inner = _definition(node, part)
        if inner is None:
            return f"no {part} in {name}"
        node = inner
        if _skips(node.decorator_list if isinstance(node, ast.ClassDef) else [node]):
            return "may be skipped or is expected to fail"
    return None


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)


def _problem_with_file(tree: ast.Module) -> str | None:
    tests = [n for n in nodes(tree) if isinstance(n, _FUNCTIONS) and n.name.startswith("test")]
    machines = [n for n in tree.body if isinstance(n, ast.Assign) and "TestCase" in ast.dump(n)]
    if not tests and not machines:
        return "no test in it"
    return "a test in it may be skipped" if _skips(tests) else None


def _definition(node: ast.AST, name: str) -> ast.stmt | None:
    """Return what binds `name`; a Hypothesis machine is bound by `TestX = XMachine.TestCase`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _DEFINITIONS) and child.name == name:
            return child
        if isinstance(child, ast.Assign) and name in map(ast.unparse, child.targets):
            return child
    return None


def _skips(trees: Sequence[ast.AST]) -> bool:
    """True if pytest.skip and its kin occur in any of the trees."""
    return any(
        isinstance(inner, ast.Attribute) and inner.attr in _SKIPS
        for tree in trees
        for inner in nodes(tree)
    )


def _problem_with_command(words: list[str]) -> str | None:
    if words[0] == "make":
        return None if words[1] in make_targets() else f"no target {words[1]} in the Makefile"
    if words[0] == "gantrymq":
        return None if len(words) > 1 and _is_subcommand(words[1]) else "no such subcommand"
    if words[:3] == ["python", "-m", "bench"]:
        return _problem_with_bench(words[3:])
    if words[:2] == ["python", "-m"]:
        path = ROOT / words[2].replace(".", "/")
        exists = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        return None if exists else f"no module {words[2]}"
    if words[0].startswith(("bench/", "scripts/")):
        return None if (ROOT / words[0]).is_file() else "no such file"
    return "neither a test (tests/...) nor a command that is known"


def _problem_with_bench(options: list[str]) -> str | None:
    """A run of the benchmarks names rows that there are."""
    known = {line.row for line in rows.lines(FULL)}
    unknown = [word for word in options[1:] if word not in known]
    if options[:1] != ["--only"] or len(options) < 2 or unknown:
        return f"no rows {' '.join(unknown) or 'named'}"
    return None


def make_targets() -> set[str]:
    """Return the targets of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z]+):", text, re.MULTILINE))


def _is_subcommand(word: str) -> bool:
    """True if the command line has a command or a group of commands of that name."""
    pattern = re.compile(rf"""\bdef {word}\b|["']{word}["']""")
    files = (ROOT / "gantrymq" / "cli").glob("*.py")
    return any(pattern.search(Path(path).read_text(encoding="utf-8")) for path in files)
