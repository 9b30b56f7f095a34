"""What commands print. Without the parser of options, which takes longer than a look does."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gantrymq.clients.home import find_home


def path_of(text: str) -> Path:
    """What a path was given as. Raises ValueError for nothing: an unset variable of a shell.

    Empty it would mean the working directory.
    """
    if not text:
        raise ValueError("a path is wanted: the name is empty")
    return Path(text)


def text_of(text: str) -> str:
    """An argument that is no path. Raises ValueError unless it was given in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is no text in UTF-8") from None
    return text


def home_of(given: Path | None) -> Path:
    """The home directory that a command means."""
    return find_home(given)


def print_json(value: object) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """On standard output, at once."""
    sys.stdout.write(text)
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
