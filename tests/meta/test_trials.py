"""docs/trials.md: each row that trials broke has a test, or a reason why it has none."""

from __future__ import annotations

import pytest

from scripts.trials_doc import TARGET
from tests.support.evidence import problem_with
from tests.support.trials import ROWS, Shown, shown


@pytest.mark.parametrize("mark", shown(), ids=lambda mark: mark.test)
def test_a_mark_names_rows_that_there_are_and_a_test_that_runs(mark: Shown) -> None:
    assert set(mark.rows) <= set(ROWS), "rows are listed in tests/support/trials.py"
    assert problem_with(mark.test) is None


def test_the_page_has_each_row() -> None:
    page = TARGET.read_text(encoding="utf-8")
    assert [row for row in ROWS if f"\n| {row} | " not in page] == []
