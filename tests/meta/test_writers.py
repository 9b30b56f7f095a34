"""Files are made, written and removed by few modules, which look where they are led."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.tree import PACKAGES, ROOT, nodes, parsed, python_files

#: Modules that may, and why no link or name leads them astray.
WRITERS = {
    "shm/ownfiles.py": "the edge itself",
    "shm/storage.py": "the edge itself",
    "shm/marks.py": "tests only, O_EXCL",
    "shm/compile.py": "into a folder that shm/jit.py has judged",
    "shm/jit.py": "removes what lies in a folder that it has judged",
    "brokerd/bells.py": "a pipe of its own, by /proc/self/fd",
    "brokerd/temporaryhome.py": "removes what has its mark",
    "brokerd/salvage/__init__.py": "removes the folder that it has made",
    "brokerd/dump/__main__.py": "/dev/null",
    "clients/spark/sink/staging.py": "mode x: a new file",
    "clients/spark/sink/writer.py": "removes the folder that it has made",
    "clients/spark/table/files.py": "a table's folder, by PosixStorage",
    "gantrymq/cli/dlq_act.py": "mode x: a new file",
    "gantrymq/cli/leave.py": "/dev/null",
}
_METHODS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to"}
_FUNCTIONS = {"rmtree", "makedirs", "copyfile", "copy", "copy2", "copytree", "move"}
_READING = {"O_RDONLY", "O_PATH"}


def writes(tree: ast.AST) -> Iterator[int]:
    """Lines that make, write or remove files by their paths."""
    for node in nodes(tree):
        if isinstance(node, ast.Call) and _is_writing(node):
            yield node.lineno


def _is_writing(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    if last in _METHODS or (name.startswith(("os.", "shutil.")) and last in _FUNCTIONS):
        return True
    if "os.open" in (name, *map(ast.unparse, call.args)):  # called, or given to who calls it
        return not any(flag in ast.unparse(call) for flag in _READING)
    modes = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    texts = [each.value for each in modes if isinstance(each, ast.Constant)]
    return last == "open" and any(
        isinstance(text, str) and len(text) <= 3 and set(text) & set("wax+") for text in texts
    )


def test_only_named_modules_write_files_by_their_paths() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for package in PACKAGES
        for path in python_files(package)
        if (lines := list(writes(parsed(path))))
    }
    assert {name: lines for name, lines in found.items() if name not in WRITERS} == {}
    assert WRITERS.keys() - found.keys() == set(), "these write nothing any more"


@pytest.mark.parametrize(
    "code",
    [
        "os.open(p, os.O_RDWR | os.O_CREAT)", "open(p, 'w')", "p.open('ab')", "p.write_text('')",
        "shutil.rmtree(p)", "open(p, mode='x')",
    ],
)  # fmt: skip
def test_writing_is_found(code: str) -> None:
    assert list(writes(ast.parse(code))) == [1]


@pytest.mark.parametrize(
    "code", ["os.open(p, os.O_RDONLY)", "open(p)", "open(p, 'rb')", "storage.open(p, write=True)"]
)
def test_reading_is_none(code: str) -> None:
    assert list(writes(ast.parse(code))) == []
