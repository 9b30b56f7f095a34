"""Whatever a number of a file says: who reads it names the file, or takes no harm."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from gantrymq.shm.errors import GantryError
from tests.support.sweptfiles import FILES, Reader, SweptFile, changed, wrong_numbers
from tests.support.tree import FOLDERS, ROOT, nodes, parsed, python_files


def outcome(file: SweptFile, read: Reader, root: Path) -> list[object]:
    """What is wrong with how a reader took a file."""
    try:
        return list(wrong_numbers(read(root)))
    except GantryError as error:
        return [] if file.name in str(error) else [error]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a broadcasting consumer keeps its offsets; no waiting for a disk."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power is cut here


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_value_of_a_file_ends_its_readers(file: SweptFile, tmp_path: Path) -> None:
    for content in changed(file.content):
        for read in file.readers:
            file.write(tmp_path, content)
            assert outcome(file, read, tmp_path) == [], content


#: What takes a text of JSON, or a file of it, apart.
PARSERS = frozenset(
    {"parse_json", "parse_object", "parse_config", "read_config", "read_content", "decode_json"}
)
#: Who does so, but reads no file that anything is told by.
NO_READERS = {
    "clients/spark/catalog.py:options_in": "the comment of a column of Spark's",
    "gantrymq/cli/bench.py:bench": "figures that this command has made just now",
    "gantrymq/cli/send.py:_from_json": "lines of the standard input",
    "gantrymq/temporary.py:start": "settings that this object has written itself",
    "brokerd/backup.py:_read_whole": "whether it is JSON at all: it is copied as it is",
    "brokerd/handover/groupfiles.py:_is_good": "whether it is JSON at all",
    "brokerd/salvage/copying.py:_readable": "whether it is JSON at all: it is copied as it is",
}  # fmt: skip


def readers() -> set[str]:
    """All functions of the product that read JSON."""
    found = set()
    for path in python_files(*FOLDERS, "gantrymq"):
        for node in nodes(parsed(path)):
            if isinstance(node, ast.FunctionDef) and _parses(node):
                found.add(f"{path.relative_to(ROOT)}:{node.name}")
    return found


def _parses(function: ast.FunctionDef) -> bool:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(isinstance(call, ast.Name) and call.id in PARSERS for call in calls)


def called_by(act: Callable[[], object]) -> set[str]:
    """Functions of the product that are called meanwhile."""
    found = set()

    def note(frame: FrameType, event: str, _value: object) -> None:
        if event == "call":
            found.add(frame.f_code)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    files = {code: Path(code.co_filename).resolve() for code in found}
    return {
        f"{path.relative_to(ROOT)}:{code.co_name}"
        for code, path in files.items()
        if path.is_relative_to(ROOT)
    }


def test_every_reader_of_json_is_in_the_sweep(tmp_path: Path) -> None:
    """A new one fails here until a file of its own is in tests/support/sweptfiles.py."""
    reached: set[str] = set()
    for file in FILES:
        for read in file.readers:
            file.write(tmp_path, file.content)
            reached |= called_by(partial(outcome, file, read, tmp_path))
    known = readers()
    assert known - reached == NO_READERS.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_sound_file_of_the_sweep_is_taken(file: SweptFile, tmp_path: Path) -> None:
    """Else nobody would look at what lies behind the first value that is refused."""
    for read in file.readers:
        file.write(tmp_path, file.content)
        read(tmp_path)
