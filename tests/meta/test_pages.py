"""The pages speak of what is there: files they name, pages they link, decisions in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gantrymq
from gantrymq import Client, Message, Producer, PullConsumer, PushConsumer, SendReceipt
from tests.support.tree import PACKAGES, ROOT, project_files, python_files

PAGES = sorted(path for path in project_files() if path.suffix == ".md")
DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))
FIRST = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/glossary.md")
_FOLDERS = (*PACKAGES, "tests", "bench", "scripts", "examples", "docs")


def named_files(text: str) -> set[str]:
    """Files of the project that a text names, as `shm/layout.py`."""
    folders = "|".join(_FOLDERS)
    return set(re.findall(rf"(?<![\w/.])(?:{folders})/[\w/.-]*\w\.(?:py|md|sh)\b", text))


def links(text: str) -> set[str]:
    """Targets of relative links."""
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    return {target for target in found if "://" not in target}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_names_and_links_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert sorted(name for name in named_files(text) if not (ROOT / name).is_file()) == []
    assert sorted(to for to in links(text) if not (page.parent / to).exists()) == []


def test_the_first_pages_are_there() -> None:
    assert [name for name in FIRST if not (ROOT / name).is_file()] == []


def test_the_maps_name_every_package_and_agent() -> None:
    """Each package is in ARCHITECTURE.md, each agent in the contracts' list of files."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    internals = (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")
    assert [name for name in PACKAGES if f"`{name}/`" not in text] == []
    alone = {"writer", "flusher", "supervisor"}
    assert {agent for agent in alone if f"{agent}.py" not in internals} == set()
    packages = {path.parent.name for path in (ROOT / "workers").glob("*/agent.py")}
    assert packages == {"reader", "housekeeper", "groups", "scheduler", "transactions"}
    (line,) = (line for line in internals.splitlines() if "`agent.py` in " in line)
    assert [name for name in packages if name not in line] == []


def test_decisions_are_numbered_and_whole() -> None:
    assert [int(path.name[:4]) for path in DECISIONS] == [*range(1, len(DECISIONS) + 1)]
    for path in DECISIONS:
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {path.name[:4]} "), path.name
        for part in ("Status", "Context", "Decision", "Consequences"):
            assert f"**{part}" in text, f"{path.name}: no {part}"


def test_migrating_names_what_there_is() -> None:
    """Names of ours are there; what is "not there yet" is not, so that the page is kept up."""
    text = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    ours = {
        name for row in rows for name in re.findall(r"`(?:producer\.|consumer\.)?(\w+)\(", row[-1])
    }
    faces = (Client, Producer, PullConsumer, PushConsumer, SendReceipt, Message)
    there = {name for face in faces for name in dir(face)} | {*dir(gantrymq), "dict", "await"}
    assert {"send", "send_async", "poll", "commit", "seek"} <= ours
    assert ours - there == set()
    later = {name for row in rows if row[-1].startswith("*not") for name in words(row[0])}
    assert {"SimpleConsumer", "receive"} <= later
    of_others = {"send", "commit", "Producer", "FilterExpression"}
    assert later & there <= of_others, "of other objects, or SQL"


def words(text: str) -> set[str]:
    """Names that are called in a text."""
    return set(re.findall(r"(\w+)\(", text))


def test_what_is_missing_would_be_found() -> None:
    text = "see `shm/nothing.py` and [there](docs/nowhere.md), [not](https://example.org/a.md)"
    assert named_files(text) == {"shm/nothing.py", "docs/nowhere.md"}
    assert links(text) == {"docs/nowhere.md"}
    assert len(python_files(*PACKAGES)) > 50
