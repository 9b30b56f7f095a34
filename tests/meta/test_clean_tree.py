"""Files of the project name no machine and no registry, and nothing foreign lies among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.tree import ROOT, project_files

#: Written in pieces, so that this file is not its own offender.
_FOLDERS = "|".join(["work", "ro" + "ot", r"home/\w+", r"Users/\w+", "mnt", "data" + "1"])
MACHINE_PATH = re.compile(
    rf"""(?:^|[\s"'`(=:,\[])/(?:{_FOLDERS})(?=[/\s"'`),\]]|$)""", re.MULTILINE
)
_HOSTS = [
    "pypi" + r"\.org",
    "pythonhosted" + r"\.org",
    "arti" + "factory",
    "dev" + "pi",
    "jf" + "rog",
]
_SETTINGS = ["index" + "-url", "find" + "-links", "trusted" + "-host", "repo1?" + r"\.maven"]
REGISTRY = re.compile("|".join(_HOSTS + _SETTINGS))


def offences(text: str) -> list[str]:
    """Return the machine paths and registry addresses in a text."""
    return [
        match.group().strip() for rule in (MACHINE_PATH, REGISTRY) for match in rule.finditer(text)
    ]


def readable(path: Path) -> str:
    """Return the text of a file, nothing for data."""
    raw = path.read_bytes()
    return (
        ""
        if b"\0" in raw[:4096] or path.suffix in (".gz", ".zip")
        else raw.decode(errors="replace")
    )


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = {path.relative_to(ROOT): offences(readable(path)) for path in project_files()}
    assert not {str(path): lines for path, lines in found.items() if lines}


def test_nothing_that_is_made_is_kept() -> None:
    made = (".pyc", ".so", ".whl", ".nbi", ".nbc", ".orig", ".rej")
    assert not [str(path) for path in project_files() if path.suffix in made]


@pytest.mark.parametrize(
    "text",
    [
        "see /wo" + "rk/main",
        "'/ro" + "ot'",
        "path=/ho" + "me/anna/x",
        "https://pypi." + "org/simple",
    ],
)
def test_an_offence_is_found(text: str) -> None:
    assert len(offences(text)) == 1


@pytest.mark.parametrize("text", ["GET /api/work", "workers/agent.py", "~/.cache", "store/root/x"])
def test_what_is_no_offence_is_spared(text: str) -> None:
    assert not offences(text)
