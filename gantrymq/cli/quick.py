"""Commands that only look, without the parser of options: it takes longer than they do.

A call of a usual form (words, `--home DIR`, flags) is run at once; everything else is the parser's:
other forms, mistakes, help.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

from gantrymq.cli.output import path_of, text_of


@dataclass(frozen=True, slots=True)
class Look:
    """A command: its function, how many words it has, its flags besides --json, other options.

    `values`: name, what it is if it is not given, and how it is read.
    """

    place: str
    function: str
    words: int = 0
    flags: tuple[str, ...] = ()
    values: tuple[tuple[str, Any, Callable[[str], Any]], ...] = ()


LOOKS: Final = {
    ("status",): Look("board", "show"),
    ("topic", "list"): Look("topic_show", "show_topics", flags=("system",)),
    ("topic", "describe"): Look("topic_show", "show_topic", words=1),
    ("group", "list"): Look("group_show", "show_groups"),
    ("group", "describe"): Look("group_show", "show_group", words=1),
    ("dlq", "list"): Look("dlq_show", "show_list"),
    ("delayed", "list"): Look(
        "delayed_show",
        "show_named",
        flags=("handles",),
        values=(*((name, None, text_of) for name in ("topic", "tag", "key")), ("limit", None, int)),
    ),
    ("tx", "list"): Look("tx_show", "show_list"),
    ("tx", "show"): Look("tx_show", "show_one", words=1, flags=("hex",)),
    ("metrics",): Look("metrics_show", "show_metrics"),
    ("get",): Look("message_show", "show_message", words=1),
    ("query",): Look(
        "query_show",
        "show_found",
        words=1,
        values=(
            *((name, None, text_of) for name in ("key", "id", "begin", "end")),
            ("before", None, int),
            ("limit", 32, int),
        ),
    ),
}


def plain(arguments: Sequence[str]) -> Callable[[], int] | None:
    """What a call does; None if the parser of options has to look at it."""
    for count in (1, 2):
        look = LOOKS.get(tuple(arguments[:count]))
        if look is not None:
            return _call(look, list(arguments[count:]))
    return None


def _call(look: Look, left: list[str]) -> Callable[[], int] | None:
    flags = {f"--{name}": name for name in look.flags} | {"--json": "as_json"}
    readers: dict[str, tuple[str, Callable[[str], Any]]] = {"--home": ("home", path_of)}
    readers |= {f"--{name}": (name, read) for name, _default, read in look.values}
    options: dict[str, Any] = {"home": None} | dict.fromkeys(flags.values(), False)
    options |= {name: default for name, default, _read in look.values}
    words: list[str] = []
    while left:
        item = left.pop(0)
        if item in readers:
            name, read = readers.pop(item)
            if not left or left[0].startswith("-"):
                return None
            try:
                options[name] = read(left.pop(0))
            except ValueError:
                return None
        elif item in flags:
            options[flags.pop(item)] = True
        elif item.startswith("-") or not _is_text(item):
            return None
        else:
            words.append(item)
    return partial(_run, look, words, options) if len(words) == look.words else None


def _is_text(word: str) -> bool:
    try:
        return bool(text_of(word))
    except ValueError:
        return False


def _run(look: Look, words: list[str], options: dict[str, Any]) -> int:
    function = getattr(import_module(f"gantrymq.cli.{look.place}"), look.function)
    code = function(*words, **options)
    sys.stdout.flush()
    return int(code or 0)
