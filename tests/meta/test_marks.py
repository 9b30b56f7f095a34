"""Every place where a crash test may kill the product is known, called once, and reached."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from shm.marks import MARKS
from tests.support import reached
from tests.support.tree import PACKAGES, module_name, parsed, python_files


def marks_in(tree: ast.AST) -> list[str]:
    """Names of `mark("...")` calls; a name that is no literal counts as ''."""
    found = []
    for node in ast.walk(tree):
        named = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "mark"
        if named and isinstance(node, ast.Call):
            first = node.args[0] if node.args else None
            literal = isinstance(first, ast.Constant) and isinstance(first.value, str)
            found.append(str(first.value) if literal and isinstance(first, ast.Constant) else "")
    return found


def marks_of_the_product() -> Counter[str]:
    return Counter(
        name
        for path in python_files(*PACKAGES)
        if module_name(path) != "shm.marks"
        for name in marks_in(parsed(path))
    )


def test_the_registry_lists_the_marks_of_the_product() -> None:
    assert set(marks_of_the_product()) == MARKS


def test_a_mark_names_one_place() -> None:
    assert not {name: count for name, count in marks_of_the_product().items() if count > 1}


def test_every_mark_is_reached_by_a_crash_test() -> None:
    """By those of this run if they ran, else by what they say that they try."""
    ran = reached.in_this_run()
    shown = ran or reached.tried_by_crash_tests()
    assert shown >= MARKS, f"not reached: {sorted(MARKS - shown)}"


@pytest.mark.parametrize(
    ("program", "names"), [('mark("a.b")', ["a.b"]), ("mark(x)", [""]), ("other('a')", [])]
)
def test_calls_are_found(program: str, names: list[str]) -> None:
    assert marks_in(ast.parse(program)) == names
