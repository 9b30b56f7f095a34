"""Every point that docs/evidence.md claims is shown by something that exists and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import evidence
from tests.support.evidence import problem_with, rows_of
from tests.support.tree import ROOT

PAGE = ROOT / "docs" / "evidence.md"


def test_every_point_is_shown_by_something() -> None:
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    assert rows, "docs/evidence.md has no table"
    assert not [f"line {row.line}: {row.point}" for row in rows if not row.shown_by]


def test_what_is_named_exists_and_is_not_skipped() -> None:
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    found = [(row.line, name, problem_with(name)) for row in rows for name in row.shown_by]
    assert not [f"line {line}: `{name}`: {text}" for line, name, text in found if text]


def test_a_table_is_read_without_its_heading() -> None:
    table = "text\n| point | shown by |\n|---|:--|\n| a | `make test`, `tests/x.py::y` |\n| b | |\n"
    assert [(row.line, row.point, row.shown_by) for row in rows_of(table)] == [
        (4, "a", ("make test", "tests/x.py::y")),
        (5, "b", ()),
    ]


SKIPPING = """
import pytest

@pytest.mark.skipif(True, reason="here")
def test_marked(): ...

def test_inside():
    pytest.skip("now")

@pytest.mark.xfail
class TestAll:
    def test_in_class(self): ...

def test_good(): ...
"""


@pytest.fixture
def tests_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one test file, in place of this one."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(SKIPPING)
    (tmp_path / "tests" / "test_off.py").write_text(
        "import pytest\npytestmark = pytest.mark.skip\n"
    )
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "test_a.py",
        "test_a.py::test_marked",
        "test_a.py::test_inside",
        "test_a.py::test_missing",
        "test_a.py::TestAll::test_in_class",
        "test_off.py::test_any",
        "test_none.py",
    ],
)
def test_a_skipped_or_missing_test_shows_nothing(tests_tree: Path, name: str) -> None:
    assert problem_with(f"tests/{name}")


def test_a_plain_test_stands(tests_tree: Path) -> None:
    assert problem_with("tests/test_a.py::test_good[1-2]") is None


@pytest.mark.parametrize(
    "command",
    [
        "make nothing",
        "python -m bench.nothing",
        "python -m bench --only nothing",
        "python -m bench",
        "scripts/nothing.py",
        "gantrymq nothing",
        "rm",
    ],
)
def test_a_command_that_is_not_there_shows_nothing(command: str) -> None:
    assert problem_with(command)


@pytest.mark.parametrize(
    "command",
    [
        "make test",
        "scripts/check.py",
        "python -m bench --only sync floors",
        "python -m scripts.java",
    ],
)
def test_a_command_that_is_there_stands(command: str) -> None:
    assert problem_with(command) is None
