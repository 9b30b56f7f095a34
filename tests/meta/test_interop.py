"""The table of `make interop` in README.md is the script's and says what came of each row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import interop, interop_table
from scripts.interop_table import Outcome, Row, rows_between_markers
from tests.support.tree import ROOT


def outcomes_of(rows: list[Row], refused: Row | None = None) -> list[Outcome]:
    return [
        Outcome(row.store, row.did, version, row != refused, 2.5, "OK")
        for row in rows
        for version in interop_table.VERSIONS
    ]


def test_rows_of_the_readme_are_those_of_the_script() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = rows_between_markers(text)
    assert [row for row, _ in rows] == interop.all_rows()
    marks = (interop_table.ACCEPTED, interop_table.REFUSED, interop_table.NOT_RUN)
    for row, said in rows:
        assert len(said) == len(interop_table.VERSIONS), row
        assert set(said) <= set(marks), row


def test_no_row_is_there_twice() -> None:
    rows = interop.all_rows()
    assert len(set(rows)) == len(rows)
    assert not [row for row in rows if "|" in row.store + row.did]


def test_a_table_in_the_readme_says_what_came_of_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{interop_table.BEGIN}\nold\n{interop_table.END}\nbehind\n")
    monkeypatch.setattr(interop, "README", readme)
    rows = interop.all_rows()
    interop.write_readme(outcomes_of(rows, refused=rows[3]))
    text = readme.read_text()
    assert text.startswith(f"before\n{interop_table.BEGIN}\n| store")
    assert text.endswith(f"|\n{interop_table.END}\nbehind\n")
    assert [row for row, _ in rows_between_markers(text)] == rows
    refused = [row for row, said in rows_between_markers(text) if interop_table.REFUSED in said]
    assert refused == [rows[3]]


def test_a_row_that_was_not_run_says_so_in_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{interop_table.BEGIN}\nold\n{interop_table.END}\n")
    monkeypatch.setattr(interop, "README", readme)
    rows = interop.all_rows()
    interop.write_readme(outcomes_of(rows)[:-1])
    said = dict(rows_between_markers(readme.read_text()))
    assert said[rows[-1]] == (interop_table.ACCEPTED, interop_table.NOT_RUN)
    assert {said[row] for row in rows[:-1]} == {(interop_table.ACCEPTED,) * 2}


def test_outcomes_are_kept_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "interop.json"
    outcomes = outcomes_of(interop.all_rows()[:2])
    assert interop_table.load(file) == []
    interop_table.save(file, outcomes)
    assert interop_table.load(file) == outcomes


def test_what_was_accepted_is_not_run_again(tmp_path: Path) -> None:
    rows = interop.all_rows()
    run = interop.Interop(
        tmp_path, [], list(interop_table.VERSIONS), tmp_path, outcomes_of(rows, refused=rows[3])
    )
    assert run.todo() == [(rows[3], version) for version in interop_table.VERSIONS]


def test_a_store_is_chosen_by_its_name_or_a_part(tmp_path: Path) -> None:
    def chosen(*names: str) -> set[str]:
        run = interop.Interop(tmp_path, list(names), ["5.3.3"], tmp_path)
        return {row.store for row, _ in run.todo()}

    assert chosen("killed") == {"killed"}
    assert chosen("filler", "log al") == {"filler edges", "log alone"}
    assert chosen("no such store") == set()


def test_without_a_checker_it_says_so_and_is_skipped() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.interop"],
        env={}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (interop.SKIPPED, "")
    assert interop.VARIABLE in done.stderr
