"""Which crash marks the crash tests of this test run have reached."""

from __future__ import annotations

import ast

import pytest

from gantrymq.shm.marks import MARKS
from tests.support.tree import parsed, python_files

#: Tests that this process has begun, in their order: it may share the files with another.
BEGUN = pytest.StashKey[list[pytest.Item]]()

_reached: set[str] = set()


def record(name: str) -> None:
    """Called by a crash test once a process has died at the mark."""
    if name not in MARKS:
        raise ValueError(f"no mark {name}")
    _reached.add(name)


def in_this_run() -> frozenset[str]:
    """Marks that crash tests of this test run have reached."""
    return frozenset(_reached)


def tried_by_crash_tests() -> frozenset[str]:
    """Marks that tests/crash names, or all if a test there walks over MARKS itself."""
    found: set[str] = set()
    for path in python_files("tests"):
        if path.parent.name == "crash":
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.Name) and node.id == "MARKS":
                    return MARKS
                if isinstance(node, ast.Constant) and node.value in MARKS:
                    found.add(str(node.value))
    return frozenset(found)
