"""docs/operate.md says what commands, events and exit codes there are, and so does contrib."""

from __future__ import annotations

import re
from configparser import ConfigParser

import pytest
from typer.core import TyperGroup

from gantrymq.brokerd.config import Settings
from gantrymq.brokerd.rebuild import DERIVED
from gantrymq.cli.app import command_line
from gantrymq.shm import errors
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.exitcode import exit_code
from tests.meta.test_events import in_code
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def codes() -> dict[int, str]:
    """Exit code -> what a supervisor should do."""
    rows = re.findall(r"^\| (\d+) \|[^|]+\|([^|]*)\|$", section("Exit codes"), re.MULTILINE)
    return {int(code): what.strip() for code, what in rows}


def is_command(words: list[str]) -> bool:
    found: object = command_line()
    while isinstance(found, TyperGroup):
        if not words or words[0] not in found.commands:
            return False
        found, words = found.commands[words[0]], words[1:]
    return True


def test_every_exit_code_is_listed() -> None:
    assert sorted(codes()) == sorted(map(int, ExitCode))


def test_every_error_has_its_exit_code() -> None:
    """Of each error that is public, by what it is about."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    found = {kind.__name__: exit_code(kind("x")) for kind in kinds if issubclass(kind, Exception)}
    assert ExitCode.OK not in found.values()
    wanted = {"BrokerGone": 69, "StoreFailed": 70, "Corrupt": 70, "DiskFull": 74, "StoreBusy": 75}
    wanted |= {"NotPermitted": 77, "Rejected": 2, "TopicNotFound": 2, "MessageIllegal": 2}
    assert {name: int(found[name]) for name in wanted} == wanted
    assert exit_code(OSError(5, "x")) == ExitCode.IO_ERROR
    assert exit_code(PermissionError(13, "x")) == ExitCode.NOT_PERMITTED


def test_commands_that_the_page_names_are_there() -> None:
    named = re.findall(r"`gantrymq ((?:[a-z][a-z-]* ?)+)", PAGE)
    assert len(named) > 10
    for words in named:
        assert is_command(words.split()), words


@pytest.mark.parametrize(
    "runbook", ["Disk full", "Failed store", "Corrupt store", "Stuck consumer", "Stuck agent"]
)
def test_a_runbook_says_by_what_it_is_known_and_what_to_do(runbook: str) -> None:
    text = section("Runbooks").split(f"### {runbook}\n")[1].split("\n### ")[0]
    shown = text.splitlines()[0]
    assert shown.startswith("Shown by: ")
    assert "\n1. " in text
    events = {event for _level, event in in_code()}
    named = re.findall(r"`([a-z_]+)`", shown)
    assert [name for name in named if "_" in name and name not in events | {"exit_code"}] == []


def test_supervisord_leaves_alone_what_a_restart_does_not_mend() -> None:
    parser = ConfigParser(comment_prefixes=(";",))
    parser.read(ROOT / "contrib" / "supervisord.conf")
    program = parser["program:gantrymq"]
    given = {int(code) for code in program["exitcodes"].split(",")}
    assert given == {code for code, what in codes().items() if what in ("leave it", "not restart")}
    assert program["autorestart"] == "unexpected"
    _path, *words = program["command"].split()
    assert words == ["serve", "--home", program["directory"]]
    assert program["stopsignal"] == "TERM"
    assert not program.getboolean("stopasgroup"), "the agents are stopped by their supervisor"
    assert int(program["stopwaitsecs"]) >= Settings().stop_timeout + 10


def test_all_that_is_derived_is_named_where_an_operator_looks() -> None:
    """The runbook of a damaged file, the architecture, and the help of what makes them again."""
    found: object = command_line()
    assert isinstance(found, TyperGroup)
    store = found.commands["store"]
    assert isinstance(store, TyperGroup)
    help_text = store.commands["rebuild"].help or ""
    named = set(re.findall(r"^(\S+?)/?  +\w", help_text, re.MULTILINE))
    assert named == set(DERIVED)
    runbook = PAGE.split("Damage in a derived file")[1].split("\n4. ")[0]
    architecture = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    promise = architecture.split("**Derived files can be deleted**")[1].split("Truth is")[0]
    for text in (runbook, promise):
        assert set(DERIVED) <= {name.rstrip("/") for name in re.findall(r"`([\w./]+)`", text)}
