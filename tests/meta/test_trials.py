"""docs/trials.md: each row that trials broke has a test, or a reason why it has none."""

from __future__ import annotations

import pytest

from scripts.trials_doc import TARGET, page
from tests.support.evidence import problem_with
from tests.support.trials import EXCUSED, ROWS, Shown, shown


@pytest.mark.parametrize("mark", shown(), ids=lambda mark: mark.test)
def test_a_mark_names_rows_that_there_are_and_a_test_that_runs(mark: Shown) -> None:
    assert set(mark.rows) <= set(ROWS), "rows are listed in tests/support/trials.py"
    assert problem_with(mark.test) is None


def test_each_row_has_a_test_or_a_reason() -> None:
    marked = {row for mark in shown() for row in mark.rows}
    assert set(ROWS) == marked | set(EXCUSED)
    assert not marked & set(EXCUSED)


def test_the_page_is_what_its_generator_writes() -> None:
    """But for commits, which a mark has only once it is committed."""
    written = TARGET.read_text(encoding="utf-8")
    assert _without_commits(written) == _without_commits(page(commit_of=lambda _mark: ""))


def _without_commits(text: str) -> list[str]:
    return [line.rpartition(" | ")[0] or line for line in text.splitlines()]
