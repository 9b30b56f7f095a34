"""Every place where a crash test may kill the product is known, called once, and reached."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

import pytest

from gantrymq.shm.marks import MARKS
from tests.support import reached
from tests.support.tree import PACKAGES, ROOT, module_name, nodes, parsed, python_files

CRASH = ROOT / "tests" / "crash" / "test_marks.py"


def marks_in(tree: ast.AST) -> list[str]:
    """Names of `mark("...")` calls; a name that is no literal counts as ''."""
    found = []
    for node in nodes(tree):
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
        if module_name(path) != "gantrymq.shm.marks"
        for name in marks_in(parsed(path))
    )


def test_the_registry_lists_the_marks_of_the_product() -> None:
    assert set(marks_of_the_product()) == MARKS


def test_a_mark_names_one_place() -> None:
    assert not {name: count for name, count in marks_of_the_product().items() if count > 1}


def marks_tried_before(node: pytest.Item, items: list[pytest.Item]) -> set[str]:
    """Marks that crash tests in front of a test are there for, run or not yet."""
    found = set()
    for item in items[: items.index(node)]:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.path.parent.name == "crash" and parameters.get("name") in MARKS:
            found.add(parameters["name"])
    return found


def test_every_mark_is_reached_by_a_crash_test(request: pytest.FixtureRequest) -> None:
    """By those of this process if it has run them all before this test.

    A run of some, or of none, shows nothing of the others: then what the crash tests are written
    to try has to be every mark.
    """
    tried = marks_tried_before(request.node, request.session.stash[reached.BEGUN])
    shown = reached.in_this_run() if tried == MARKS else reached.tried_by_crash_tests()
    assert shown >= MARKS, f"not reached: {sorted(MARKS - shown)}"


@pytest.mark.parametrize("missing", ["", "writer.after_append"])
def test_only_a_run_with_all_crash_tests_is_judged_by_what_it_reached(
    request: pytest.FixtureRequest, missing: str
) -> None:
    """The items here stand for the crash tests of a run; this test itself is the one behind."""

    class Item:
        def __init__(self, name: str) -> None:
            self.path = CRASH
            self.callspec = type("callspec", (), {"params": {"name": name}})

    items: list[Any] = [Item(name) for name in sorted(MARKS) if name != missing]
    items += [request.node, Item(missing)]
    tried = marks_tried_before(request.node, items)
    assert tried == MARKS - {missing}


@pytest.mark.parametrize(
    ("program", "names"), [('mark("a.b")', ["a.b"]), ("mark(x)", [""]), ("other('a')", [])]
)
def test_calls_are_found(program: str, names: list[str]) -> None:
    assert marks_in(ast.parse(program)) == names
