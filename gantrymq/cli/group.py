"""`gantrymq group ...`: who consumes what, how far, and who holds the queues."""

from __future__ import annotations

from typing import Annotated

import typer

from gantrymq.cli.completion import group_names
from gantrymq.cli.group_show import show_group, show_groups
from gantrymq.cli.options import HomeOption, JsonOption

app = typer.Typer(help="Look at consumer groups.", no_args_is_help=True)


@app.command(
    "list",
    help="""List groups with their topics, members and lags.

\b
Example: gantrymq group list --home ./mq
Exit codes: 0 done; 69 no broker.
""",
)
def list_groups(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List groups with their topics, members and lags."""
    show_groups(home=home, as_json=as_json)


@app.command(
    help="""Show a group's queues: what is committed, what is being worked on, and by whom.

\b
offset   next message to consume, as committed
started  next message that was not handed out yet; [offset, started) is being worked on
lag      messages up to the queue's end that are not committed
retries  highest number of deliveries begun of a message that is not committed
pid      the process that holds the queue; - if none does

\b
Example: gantrymq group describe billing --home ./mq
Exit codes: 0 done; 2 no such group; 69 no broker.
"""
)
def describe(
    name: Annotated[str, typer.Argument(help="The group.", autocompletion=group_names)],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a group's queues."""
    show_group(name, home=home, as_json=as_json)
