"""`gantrymq query`: a topic's messages by key, id and time, and offsets by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from gantrymq.cli.completion import topic_names
from gantrymq.cli.options import HomeOption, JsonOption, grouped

HELP = """Print a topic's messages with a key, or all of a time, the newest first.

--key is one of the keys that a message was sent with, --id its `message_id`; the record itself is
compared. Times are those of storing, in this machine's zone, or Unix milliseconds; both ends count.
A page ends with the `--before` of the next one (in JSON: field `before` of its last row). What the
key index does not have yet is looked for in the log; if that is too much, a line on standard error
says what was left out. The store itself is read, also while no broker runs.

\b
--offset-at TIME  prints instead, for each queue, the offset of the first message stored then or
                  later (`lower`), and of the last one stored then or earlier (`upper`)

\b
Example: gantrymq query orders --key 42 --begin 2026-01-31T08:00
Example: gantrymq query orders --limit 3 --json
Example: gantrymq query orders --offset-at 2026-01-31T08:00
Exit codes: 0 done, also if there are none; 2 no such topic, or nothing that a message can have;
69 neither a broker nor a store; 70 a message is damaged; 74 unreadable.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class What:
    """Which messages."""

    key: Annotated[str | None, typer.Option("--key", help="One of their keys.")] = None
    id: Annotated[str | None, typer.Option("--id", help="Their message id.")] = None
    begin: Annotated[
        str | None, typer.Option("--begin", metavar="TIME", help="Stored then or later.")
    ] = None
    end: Annotated[
        str | None, typer.Option("--end", metavar="TIME", help="Stored then or earlier.")
    ] = None
    before: Annotated[
        int | None,
        typer.Option("--before", metavar="POSITION", help="Go on below this log position."),
    ] = None
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many at most.")] = 32
    scan_bytes: Annotated[
        int | None,
        typer.Option(
            "--scan-bytes", min=0, help="Bytes of the log to look through at most.",
            show_default="1 GiB",
        ),
    ] = None  # fmt: skip
    no_index: Annotated[
        bool, typer.Option("--no-index", help="Look through the log, all of it.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Where, and in which form."""

    offset_at: Annotated[
        str | None, typer.Option("--offset-at", metavar="TIME", help="Offsets, no messages.")
    ] = None
    home: HomeOption = None
    as_json: JsonOption = False


@grouped
def query(
    topic: Annotated[
        str, typer.Argument(help="The topic.", autocompletion=topic_names, show_default=False)
    ],
    what: What,
    how: How,
) -> None:
    """Print messages of a topic."""
    from gantrymq.cli.query_show import show_found, show_offsets

    if how.offset_at is not None:
        show_offsets(topic, how.offset_at, home=how.home, as_json=how.as_json)
        return
    show_found(
        topic, key=what.key, id=what.id, begin=what.begin, end=what.end, before=what.before,
        limit=what.limit, scan_bytes=what.scan_bytes, no_index=what.no_index, home=how.home,
        as_json=how.as_json,
    )  # fmt: skip
