"""What every command shares: options, output, and how errors are told."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from clients.home import find_home

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", help="Directory of the broker; else GANTRYMQ_HOME, else the user's own.",
        show_default=False,
    ),
]  # fmt: skip
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
        inspect.Parameter(field.name, keyword, default=field.default, annotation=hints[field.name])
        for field in fields(group)
    ]


def home_of(given: Path | None) -> Path:
    """The home directory that a command means."""
    return find_home(given)


def print_json(value: object) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _plain(value: object) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


def print_rows(rows: Sequence[Mapping[str, object]], *, as_json: bool) -> None:
    """A table with the keys as its head, or a line of JSON per row."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        return
    heads = list(rows[0])
    lines = [heads, *([str(row[head]) for head in heads] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
