"""docs/layout.md is what shm/layout.py says; write it again with `make layout`."""

from __future__ import annotations

from gantrymq.shm.layout import markdown
from tests.support.tree import ROOT


def test_the_page_of_layouts_is_fresh() -> None:
    page = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    assert page == markdown(), "docs/layout.md is out of date: run `make layout`"
