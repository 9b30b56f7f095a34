"""What opens a descriptor hands it to an object that closes it, in all that applications run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tree import ROOT
from tests.support.trials import mends

#: Calls of `os` whose result is a number that nobody gives back.
OPENING = {"open", "dup", "eventfd", "memfd_create", "pidfd_open", "pipe", "pipe2"}
#: Run by brokers alone, whose signal handlers raise nothing; and by tests.
OTHERS = {"shm/arena.py", "shm/marks.py"}
FILES = sorted(
    str(path.relative_to(ROOT))
    for room in ("shm", "clients")
    for path in (ROOT / room).rglob("*.py")
)


def _calls(text: str) -> Iterator[int]:
    """Lines in which such a call is made, where its result could be lost."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of = node.func.value
        if node.func.attr in OPENING and isinstance(of, ast.Name) and of.id == "os":
            yield node.lineno


@mends("S103")
@pytest.mark.parametrize("name", FILES)
def test_no_descriptor_is_a_mere_number(name: str) -> None:
    """CPython hears signals behind a call, before its result is anybody's: see shm/held.py."""
    if name not in OTHERS:
        assert not list(_calls((ROOT / name).read_text())), "give the call to a Descriptor"


def test_such_a_call_is_seen() -> None:
    assert list(_calls("import os\nnumber = os.open('x', 0)\n")) == [2]
    assert not list(_calls("Descriptor(os.open, 'x', 0)\nopen('x')\nstorage.open('x')\n"))
    assert all(list(_calls(Path(ROOT / name).read_text())) for name in OTHERS)
