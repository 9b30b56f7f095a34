"""Options that every command shares; output comes along."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from gantrymq.cli.output import home_of, path_of, print_json, print_rows, print_text, text_of

__all__ = [
    "HomeOption",
    "JsonOption",
    "SettingsOption",
    "Shared",
    "grouped",
    "home_of",
    "judge_arguments",
    "print_json",
    "print_rows",
    "print_text",
]

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", help="Directory of the broker; else GANTRYMQ_HOME, else the user's own.",
        show_default=False,
    ),
]  # fmt: skip
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting; may be given repeatedly."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Options of every command."""

    home: HomeOption = None
    as_json: JsonOption = False


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose dataclass parameters stand for their fields, each an option of its own."""
    groups: dict[str, Any] = {}
    flat: list[inspect.Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            flat += _parameters(parameter.annotation)
        else:
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def command(**values: object) -> None:
        for name, group in groups.items():
            taken = {field.name: values.pop(field.name) for field in fields(group)}
            values[name] = group(**taken)
        function(**values)

    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    command.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined] # typer reads it
    return command


def _parameters(group: Any) -> list[inspect.Parameter]:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(group, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(
            field.name, keyword, default=_default(field), annotation=hints[field.name]
        )
        for field in fields(group)
    ]


def _default(field: Field[Any]) -> Any:  # noqa: ANN401 - a field's value
    return inspect.Parameter.empty if field.default is MISSING else field.default


def judge_arguments(commands: typer.Typer) -> None:
    """Have each text and each path of these commands judged as it is parsed, by its name.

    Those that have a parser of their own are left to it.
    """
    for command in commands.registered_commands:
        if command.callback is not None:
            hints = get_type_hints(command.callback, include_extras=True)
            command.callback.__annotations__ = hints
            for hint in hints.values():
                _judge(hint)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            judge_arguments(group.typer_instance)


def _judge(hint: object) -> None:
    kind, *information = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    kinds = {kind, *get_args(kind)}
    for told in information:
        if told.parser is None and Path in kinds:
            told.parser = _there if told.exists else _path
            told.metavar = told.metavar or _metavar(told, "PATH")
        elif told.parser is None and kinds & {str, list[str]}:
            told.parser = _text
            told.metavar = told.metavar or _metavar(told, "TEXT")


def _metavar(told: object, kind: str) -> str | None:
    """What help shows for a value; an argument has its own name there."""
    return kind if isinstance(told, OptionInfo) else None


def _path(text: str) -> Path:
    try:
        return path_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _there(text: str) -> Path:
    """One that there has to be. Raises OSError where that is not to be seen: not permitted, say."""
    path = _path(text)
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise typer.BadParameter(f"path {text!r} does not exist") from None
    return path


def _text(text: str) -> str:
    try:
        return text_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
