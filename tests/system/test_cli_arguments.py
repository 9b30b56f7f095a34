"""Each argument of each command, found by the parser: what nobody can mean is refused by name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

import gantrymq
from gantrymq.cli.app import app, command_line
from gantrymq.clients.home import find_home, state_folder
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import ArgumentIllegal
from gantrymq.temporary import Broker
from tests.support.applications import bodies_of
from tests.support.brokers import command
from tests.support.forked import run_forked
from tests.support.trials import mends

#: As Python has an argument that holds the byte 0xFF.
NO_TEXT = "a\udcffz"
NO_USER = "~nosuchuser/x"


@dataclass(frozen=True)
class Argument:
    """One that a command takes: how it is named, and whether it is a path."""

    words: tuple[str, ...]
    name: str
    is_option: bool
    is_path: bool
    #: Values that the command wants besides, in order.
    before: tuple[str, ...]
    after: tuple[str, ...]

    def call(self, value: str) -> list[str]:
        """The command with it."""
        if self.is_option:
            return [*self.words, *self.before, self.name, value]
        return [*self.words, *self.before, value, *self.after]

    def __str__(self) -> str:
        return " ".join((*self.words, self.name))


def commands(of: typer.Typer, parser: Any, words: tuple[str, ...] = ()) -> Iterator[Any]:  # noqa: ANN401
    """Words, callback and parser of each command."""
    callbacks = [found.callback for found in of.registered_commands]
    plain = [found for name, found in parser.commands.items() if not hasattr(found, "commands")]
    for callback, found in zip(callbacks, plain, strict=True):
        yield (*words, found.name), callback, found
    for group in of.registered_groups:
        assert group.name is not None
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, parser.commands[group.name], (*words, group.name))


def arguments() -> Iterator[Argument]:
    """All that take a value."""
    for words, callback, parser in commands(app, command_line()):
        hints = get_type_hints(callback)
        places = [found for found in parser.params if found.param_type_name == "argument"]
        standing = ["/" if is_path(hints[place.name]) else "1" for place in places]
        for found in parser.params:
            if found.name == "help" or getattr(found, "is_flag", False):
                continue
            number = places.index(found) if found in places else len(places)
            yield Argument(
                words,
                found.metavar or found.name if found in places else found.opts[0],
                found not in places,
                is_path(hints[found.name]),
                tuple(standing[:number]),
                tuple(standing[number + 1 :]),
            )


def is_path(hint: object) -> bool:
    return Path in (hint, *get_args(hint))


ALL = list(arguments())


def test_there_are_texts_and_paths_to_try() -> None:
    assert sum(argument.is_path for argument in ALL) > 40
    assert sum(not argument.is_path for argument in ALL) > 80


@mends("S172")
@pytest.mark.parametrize(
    "argument", [a for a in ALL if not a.is_path and str(a) != "send --body"], ids=str
)
def test_a_text_that_is_no_text_is_refused_by_name(argument: Argument) -> None:
    ran = command(*argument.call(NO_TEXT))
    assert ran.returncode == ExitCode.USAGE, ran
    assert "Traceback" not in ran.stderr
    assert argument.name in ran.stderr


@mends("S172")
@pytest.mark.parametrize("argument", [a for a in ALL if a.is_path], ids=str)
def test_an_empty_path_is_refused_by_name(argument: Argument) -> None:
    ran = command(*argument.call(""))
    assert ran.returncode == ExitCode.USAGE, ran
    assert argument.name in ran.stderr
    assert "empty" in ran.stderr


@mends("S172")
def test_a_body_that_is_no_text_is_stored_as_it_is(broker: Broker, unique_name: str) -> None:
    ran = command("send", unique_name, "--body", NO_TEXT, "--home", broker.home)
    assert ran.returncode == 0, ran
    assert bodies_of(broker.home, unique_name, 1) == [b"a\xffz"]


@mends("S172")
@pytest.mark.parametrize("words", [["status"], ["send", "t", "--body", "x"], ["serve"], ["doctor"]])
def test_a_home_of_a_user_that_is_not_there_is_refused(words: list[str]) -> None:
    ran = command(*words, "--home", NO_USER)
    assert ran.returncode == ExitCode.USAGE, ran
    assert f"home is '{NO_USER}'" in ran.stderr
    assert "Traceback" not in ran.stderr


@mends("S172")
def test_clients_refuse_such_a_home_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentIllegal, match=f"home is '{NO_USER}'"):
        gantrymq.Producer(NO_USER)
    monkeypatch.setenv("GANTRYMQ_HOME", NO_USER)
    with pytest.raises(ArgumentIllegal, match=f"GANTRYMQ_HOME is '{NO_USER}'"):
        find_home()


@mends("S172")
def test_a_user_without_a_directory_has_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with pytest.raises(ArgumentIllegal, match="XDG_STATE_HOME"):
        state_folder()


@mends("S176")
@pytest.mark.parametrize(
    "words",
    [
        ["store", "dump"], ["store", "verify"], ["store", "verify", "--settings", "none"],
        ["store", "inspect", "0"], ["store", "rebuild"], ["adopt"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_store_that_is_not_to_be_looked_into_is_not_absent(
    tmp_path: Path, words: list[str]
) -> None:
    hidden = str(tmp_path / "closed" / "store")

    def close() -> None:
        """As if the folder above were another user's: the tests may run as root."""
        look = os.stat

        def refuse(path: Any, **how: Any) -> os.stat_result:  # noqa: ANN401 - as os.stat
            if not isinstance(path, int) and os.fspath(path) == hidden:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), hidden)
            return look(path, **how)

        os.stat = refuse

    ran = run_forked([*words, hidden], prepare=close)
    assert ran.returncode == ExitCode.NOT_PERMITTED, ran
    assert f"Permission denied: '{hidden}'" in ran.stderr
