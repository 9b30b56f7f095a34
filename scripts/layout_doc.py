"""Write docs/layout.md from the tables of shm/layout.py: `python -m scripts.layout_doc`."""

from __future__ import annotations

from pathlib import Path

from gantrymq.shm.layout import markdown

TARGET = Path(__file__).resolve().parent.parent / "docs" / "layout.md"


if __name__ == "__main__":
    TARGET.write_text(markdown(), encoding="utf-8")
