"""What `gantrymq dlq list` and `show` print. Needs no parser of options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from gantrymq.cli.dlq_letters import DeadLetters, Wanted
from gantrymq.cli.output import home_of, print_rows
from gantrymq.cli.records import local_time
from gantrymq.workers.groups.deadletternote import counted

if TYPE_CHECKING:
    from pathlib import Path

_SHOWN: Final = ("offset", "dead", "topic", "message_id", "attempts", "reason", "resent", "body")
_CHARACTERS: Final = 48


def show_list(group: str | None = None, *, home: Path | None, as_json: bool) -> None:
    """Print groups with dead letters. Raises Rejected if there is no such group."""
    dead = DeadLetters(home_of(home))
    names = sorted(dead.groups()) if group is None else [group]
    rows = [row for name in names if (row := _summary(dead, name)) is not None]
    if not as_json:
        for row in rows:
            for name in ("oldest", "newest"):
                moment = row.pop(f"{name}_ms")
                row[name] = "-" if moment is None else local_time(moment)
    print_rows(rows, as_json=as_json)
    if not as_json:
        total = sum(row["messages"] for row in rows)
        sys.stdout.write(f"{total} dead letters\n")


def show_letters(
    group: str, wanted: Wanted, part: tuple[int, int], *, home: Path | None, as_json: bool
) -> None:
    """Print a group's dead letters; `part`: first queue offset, and how many. Raises Rejected."""
    dead = DeadLetters(home_of(home))
    dead.require_named(group, wanted)
    start, limit = part
    rows: list[dict[str, Any]] = []
    more = None
    for letter in dead.letters(group, wanted, start):
        if len(rows) == limit:
            more = letter.record.queue_offset
            break
        rows.append(letter.fields())
    if as_json:
        print_rows(rows, as_json=True)
        return
    print_rows([_for_people(row) for row in rows], as_json=False)
    rest = "" if more is None else f"; there are more: --offset {more}"
    sys.stdout.write(f"{len(rows)} shown{rest}\n")


def _summary(dead: DeadLetters, group: str) -> dict[str, Any] | None:
    """A group's row; None if it has no dead letters."""
    messages = resent = 0
    for _queue, low, high, marks in dead.queues(group):
        some, again = counted(marks, low, high)
        messages, resent = messages + some, resent + again
    if not messages:
        return None
    oldest = next(dead.letters(group, Wanted()), None)
    newest = dead.newest(group)
    return {
        "group": group,
        "messages": messages,
        "resent": resent,
        "oldest_ms": oldest.record.store_timestamp if oldest else None,
        "newest_ms": newest.record.store_timestamp if newest else None,
    }


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    body = row["body"].decode("utf-8", "replace")
    shown = row | {
        "dead": local_time(row["dead_ms"]),
        "reason": _short(row["reason"] or "-"),
        "body": _short(body),
        "resent": "yes" if row["resent"] else "no",
        "topic": row["topic"] or "-",
    }
    return {name: shown[name] for name in _SHOWN}


def _short(text: str) -> str:
    line = "".join(c if c.isprintable() else " " for c in text[: _CHARACTERS + 1])
    return line if len(text) <= _CHARACTERS else line[: _CHARACTERS - 3] + "..."
