"""Options that every command shares; output comes along."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from gantrymq.cli.output import home_of, home_path, print_json, print_rows, print_text

__all__ = [
    "HomeOption",
    "JsonOption",
    "SettingsOption",
    "Shared",
    "grouped",
    "home_of",
    "print_json",
    "print_rows",
    "print_text",
]

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", help="Directory of the broker; else GANTRYMQ_HOME, else the user's own.",
        show_default=False, parser=home_path, metavar="PATH",
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
