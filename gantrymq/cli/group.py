"""`gantrymq group ...`: who consumes what, how far, who holds the queues; and moving them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gantrymq.cli.completion import group_names, topic_names
from gantrymq.cli.group_show import show_group, show_groups
from gantrymq.cli.options import HomeOption, JsonOption, home_of, print_json

app = typer.Typer(help="Look at consumer groups, and move them.", no_args_is_help=True)


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
    help="""Show who is in a group, and its queues: what is committed, what is being worked on.

Members are all that have joined, those for whom no queue was left too. Who broadcasts joins no
group: such consumers keep their offsets themselves.

\b
session  a member's number in this life of the broker
queues   how many it owns: `by_hand` in JSON if it has named them itself
joined   since when it is a member (`joined_ms` in JSON: Unix ms)

\b
offset   next message to consume, as committed
started  next message that was not handed out yet
lag      messages up to the queue's end that are not committed
in_flight  messages below `started` that are not done with: they are being worked on
retries  highest number of deliveries begun of a message that is not committed
oldest_ms  how long ago the first message was stored that is not committed
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
    """Show a group's members and queues."""
    show_group(name, home=home, as_json=as_json)


@app.command(
    "reset-offset",
    help="""Let a group go on somewhere else: messages come again, or are left out.

\b
Members may be at work: they finish what runs, give the queues back, and get them again at the new
place. Who has not given back after --patience seconds loses its session. What is left out is not
kept for the group; `--dry-run` shows what would change.

\b
--to     begin, end, an offset (with --queue), or a time such as 2026-01-31T08:00 or
         2026-01-31T08:00:00+01:00: the first message stored then or later

\b
Example: gantrymq group reset-offset billing --topic orders --to begin --dry-run
Exit codes: 0 done; 2 no such group, topic, queue or place; 69 no broker; 74 the disk is full.
""",
)
def reset_offset(
    name: Annotated[str, typer.Argument(help="The group.", autocompletion=group_names)],
    topic: Annotated[str, typer.Option("--topic", help="The topic.", autocompletion=topic_names)],
    to: Annotated[str, typer.Option("--to", help="begin, end, an offset, or a time.")],
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Only this one.")] = None,
    patience: Annotated[
        float, typer.Option("--patience", min=0, max=3600, help="Seconds that members have.")
    ] = 30.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a group go on somewhere else."""
    from gantrymq.cli.group_reset import Wish, show_reset

    wish = Wish(name, topic, queue, to, patience)
    show_reset(wish, home=home, dry_run=dry_run, as_json=as_json)


@app.command(
    help="""Forget a group: how far it is in its topics, and its entry in subscriptionGroup.json.

\b
Its members have to be ended before. Its retry topic is deleted with it; messages that wait in it,
or for it, are delivered to nobody, or to a group made anew under this name. Its dead-letter topic
is deleted if no letter was ever in it: else `gantrymq dlq` shows what it holds, and
`gantrymq topic delete` ends it.
A group that is made anew under the name begins where its first member says.

\b
Example: gantrymq group delete retired --home ./mq
Exit codes: 0 done; 2 no such group, or it has members; 69 no broker; 74 the disk is full.
"""
)
def delete(
    name: Annotated[str, typer.Argument(help="The group.", autocompletion=group_names)],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a group."""
    from gantrymq.clients.groupdelete import delete_group

    deleted = delete_group(home_of(home), name)
    if as_json:
        print_json({"group": name, "deleted": True, "topics": deleted.topics})
        return
    also = f", and {', '.join(deleted.topics)}" if deleted.topics else ""
    sys.stdout.write(f"group {name} is deleted{also}\n")
