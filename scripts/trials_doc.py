"""Write docs/trials.md from the marks of the tests: `python -m scripts.trials_doc`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.trials import EXCUSED, LISTS, ROWS, Shown, shown

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "trials.md"
HEAD = """# What trials from outside broke

GantryMQ was tried by people who had not written it, and read by one who had not, either.
Each row is a defect that they found; the tests beside it fail on the code of that time. The
commit is the one in which the test's mark came.
`python -m scripts.trials_doc` writes this page from the marks.
"""


def commit_of(mark: Shown) -> str:
    """Return the short hash of the commit that brought a mark; empty if it is not committed."""
    command = ["git", "blame", "-s", "--abbrev=8", f"-L{mark.line},{mark.line}", "--", mark.path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = done.stdout.split(" ", 1)[0].lstrip("^")[:8]
    return "" if not found.strip("0") else found


def page(commit_of: Callable[[Shown], str] = commit_of) -> str:
    """Return the whole page; a row without a test says why."""
    by_row: dict[str, list[Shown]] = {row: [] for row in ROWS}
    for mark in shown():
        for row in mark.rows:
            by_row[row].append(mark)
    parts = [HEAD]
    for letter, title in LISTS.items():
        parts += [
            f"\n## {title}\n",
            "| row | what broke | shown mended by | commit |",
            "|---|---|---|---|",
        ]
        for row in (row for row in ROWS if row[0] == letter):
            commits = dict.fromkeys(filter(None, map(commit_of, by_row[row])))
            parts.append(_line(row, by_row[row], ", ".join(commits)))
    return "\n".join(parts) + "\n"


def _line(row: str, marks: list[Shown], commits: str) -> str:
    tests = ", ".join(f"`{mark.test}`" for mark in marks)
    return f"| {row} | {ROWS[row]} | {tests or EXCUSED[row]} | {commits} |"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
