"""docs/operators-day.md is what scripts/operators_day.py has played, and its commands are there."""

from __future__ import annotations

import re
import shlex

import pytest
import typer
from typer.core import TyperGroup

from gantrymq.cli.app import command_line
from gantrymq.shm.codes import Role
from scripts.day_stage import Do, Shell, Step
from scripts.day_steps import STEPS
from scripts.operators_day import INTRODUCTION, contents
from tests.support.tree import ROOT

PAGE = ROOT / "docs" / "operators-day.md"
#: What typer.BadParameter is a kind of; it has no public name.
USAGE_ERROR = typer.BadParameter.__mro__[1]
#: Where a command of ours ends inside a line of a shell.
_ENDS = {"|", "&", ";", "&&", "||", ">", ")"}


def typed(text: str) -> list[str]:
    """Lines that were typed, as a page or a part of it shows them."""
    return re.findall(r"^\$ (.*)$", text, re.MULTILINE)


def calls(line: str) -> list[list[str]]:
    """Arguments of each call of `gantrymq` in a line of a shell."""
    text = re.sub(r"\$\(|\)", lambda found: f" {found[0][-1]} ", line)
    words = list(shlex.shlex(text, posix=True, punctuation_chars="|&;>()"))
    found: list[list[str]] = []
    for at, word in enumerate(words):
        if word.rpartition("/")[2] != "gantrymq" or (at and words[at - 1] not in (*_ENDS, "(")):
            continue
        rest = words[at + 1 :]
        end = next((i for i, item in enumerate(rest) if item in (*_ENDS, "(")), len(rest))
        stands_for = ["ID"] if rest[end : end + 1] == ["("] else []  # what $( ... ) says
        found.append(rest[:end] + stands_for)
    return found


def parse(arguments: list[str]) -> None:
    """Let the command line parse a call without running it. Raises typer's errors."""
    command: object = command_line()
    if arguments == ["--version"]:
        return
    name = arguments[0]
    while isinstance(command, TyperGroup):
        name, *arguments = arguments
        assert name in command.commands, name
        command = command.commands[name]
    command.make_context(name, arguments)  # type: ignore[attr-defined]


LINES = [act.line for step in STEPS for act in step.acts]
CALLS = [call for step in STEPS for act in step.acts for call in calls(act.line)]


def test_the_page_has_the_scripts_steps_and_commands() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.startswith(INTRODUCTION + contents()), "play it again: make day"
    parts = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    assert [part.partition("\n")[0] for part in parts] == [step.title for step in STEPS]
    for part, step in zip(parts, STEPS, strict=True):
        assert step.why in part
        assert typed(part) == [act.line for act in step.acts], step.title


def test_the_page_shows_what_ended_otherwise_than_well() -> None:
    """Exit codes on the page are those that the script demands."""
    page = PAGE.read_text(encoding="utf-8")
    demanded = [
        act.code for step in STEPS for act in step.acts if isinstance(act, Shell) and act.code
    ]
    assert [int(code) for code in re.findall(r"^\[exit code (\d+)\]$", page, re.MULTILINE)] == (
        demanded
    )
    assert {2, 69, 74, 75} <= set(demanded)


def test_each_command_of_the_day_can_be_parsed() -> None:
    assert len(CALLS) > 30
    for call in CALLS:
        # Places of the day are not here; some options want a folder that exists.
        parse([str(ROOT) if word.startswith("/") else word for word in call])


def test_the_day_is_whole() -> None:
    """What an operator's day must have, and each step checks something."""
    titles = " ".join(step.title for step in STEPS)
    for word in ("Install", "Start", "Load", "Disk full", "Back-up", "Restore", "Upgrade"):
        assert word in titles
    killed = [title.split()[-1] for title in titles_of("Kill the")]
    assert sorted(killed) == sorted(role.name.lower() for role in Role)
    said = {call[0] for call in CALLS}
    looked = {"serve", "status", "top", "doctor", "metrics", "topic", "group", "send", "receive"}
    assert looked | {"tail", "get", "store"} <= said
    assert all(checks(step) for step in STEPS)


def titles_of(start: str) -> list[str]:
    return [step.title for step in STEPS if step.title.startswith(start)]


def checks(step: Step) -> bool:
    return any(isinstance(act, Do) or act.says or act.code for act in step.acts)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("gantrymq status --home x", 1),
        ("seq 5 | gantrymq send t && gantrymq top --once > f", 2),
        ("gantrymq get $(gantrymq tail t -n 1 --json | cut -f4)", 2),
        ("service start gantrymq", 0),
        ("mount -t tmpfs gantrymq /var/lib/gantrymq", 0),
    ],
)
def test_calls_are_found_in_a_shells_line(line: str, count: int) -> None:
    assert len(calls(line)) == count


@pytest.mark.parametrize("line", ["gantrymq send", "gantrymq tail orders --nonsense", "gantrymq x"])
def test_a_wrong_call_would_be_found(line: str) -> None:
    with pytest.raises((USAGE_ERROR, AssertionError)):
        parse(calls(line)[0])
