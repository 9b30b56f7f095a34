"""`gantrymq delayed ...`: messages that wait for their time, and cancelling them."""

from __future__ import annotations

from typing import Annotated

import typer

from gantrymq.cli.completion import topic_names
from gantrymq.cli.options import HomeOption, JsonOption

app = typer.Typer(help="Look at delayed messages, and cancel them.", no_args_is_help=True)


@app.command(
    "list",
    help="""List messages that wait for their time, the next one first.

All of them, as the log and the scheduler's note tell: parked ones that were neither delivered nor
cancelled when it was read; retries that wait are among them (topic %RETRY%GROUP). A message that is
delivered meanwhile may still be shown. All parked timers that retention has kept are read: a
million takes seconds. Where no broker runs the store itself is read, all of its log.

\b
due            when it is delivered (`due_ms` in JSON: Unix ms)
kind           exact, or the delay level; `absent`: it was due, but its topic is gone
recall_handle  what `delayed recall` takes; levels have none

\b
Example: gantrymq delayed list --topic orders --limit 5
Example: gantrymq delayed list --json
Exit codes: 0 done; 69 no broker, and no store; 70 the log is damaged.
""",
)
def list_delayed(
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="Only to this one.", autocompletion=topic_names),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=0, help="How many are shown: 20, all with --handles."),
    ] = None,
    handles: Annotated[
        bool, typer.Option("--handles", help="Print recall handles only, one a line.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List messages that wait for their time."""
    from gantrymq.cli.delayed_show import show_delayed

    show_delayed(home=home, topic=topic, limit=limit, handles=handles, as_json=as_json)


@app.command(
    help="""Cancel a delayed message: it is never delivered, if it was not already.

HANDLE is the `recall_handle` of its receipt, or of `delayed list`; `-` reads handles from standard
input, one a line: what is no handle is named, and the others are cancelled. Messages with a delay
level cannot be cancelled. The broker must run: a recall is a record of its log.

\b
Example: gantrymq delayed list --topic orders --handles > h; gantrymq delayed recall orders - < h
Exit codes: 0 all are cancelled; 1 one was delivered already, or nothing that waits has the
handle; 2 it, or one of them, is no handle of this topic; 69 no broker, or no answer.
"""
)
def recall(
    topic: Annotated[
        str, typer.Argument(help="The topic it was sent to.", autocompletion=topic_names)
    ],
    handle: Annotated[str, typer.Argument(help="Its recall handle, or -.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a delayed message."""
    from gantrymq.cli.delayed_show import recall_all

    raise typer.Exit(recall_all(home, topic, handle, as_json=as_json))
