"""`gantrymq topic ...`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gantrymq.cli.completion import topic_names
from gantrymq.cli.options import HomeOption, JsonOption, home_of, print_json
from gantrymq.cli.topic_show import show_topic, show_topics
from gantrymq.shm.codes import Level

app = typer.Typer(help="Create, list, describe and delete topics.", no_args_is_help=True)
NameArgument = Annotated[
    str,
    typer.Argument(help="Letters, digits, '_', '-', '%' and '|'.", autocompletion=topic_names),
]


@app.command(
    help="""Create a topic; the same again is fine.

\b
Example: gantrymq topic create orders --queues 8 --durability durable
Exit codes: 0 done; 2 the name, or what exists, does not allow it; 69 no broker.
"""
)
def create(
    name: NameArgument,
    queues: Annotated[int, typer.Option("--queues", min=1, max=1024)] = 4,
    durability: Annotated[
        str, typer.Option(help="written, or durable: consumers see what a power cut cannot take.")
    ] = "written",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a topic."""
    from gantrymq.clients.control import look_at
    from gantrymq.shm import wire

    with look_at(home_of(home)) as control:
        made = control.request(wire.CreateTopic(name, queues, durability), wire.TopicOpened)
    level = Level(made.level).name.lower()
    row = {"topic": made.name, "queues": made.write_queues, "durability": level}
    if as_json:
        print_json(row)
    else:
        sys.stdout.write(f"topic {made.name}: {made.write_queues} queues, {level}\n")


@app.command(
    "list",
    help="""List topics with their messages.

\b
Example: gantrymq topic list --json
Exit codes: 0 done; 69 no broker.
""",
)
def list_topics(
    home: HomeOption = None,
    system: Annotated[bool, typer.Option("--system", help="RocketMQ's own topics too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List topics with their messages."""
    show_topics(home=home, system=system, as_json=as_json)


@app.command(
    help="""Show a topic's queues and their offsets.

\b
Example: gantrymq topic describe orders
Exit codes: 0 done; 2 no such topic; 69 no broker.
"""
)
def describe(name: NameArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show a topic's queues and their offsets."""
    show_topic(name, home=home, as_json=as_json)


@app.command(
    help="""Delete a topic: nobody can open it any more. Its records stay until they expire.

\b
Example: gantrymq topic delete orders
Exit codes: 0 done; 2 no such topic; 69 no broker.
"""
)
def delete(name: NameArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Delete a topic: nobody can open it any more."""
    from gantrymq.clients.control import look_at
    from gantrymq.shm import wire

    with look_at(home_of(home)) as control:
        control.request(wire.DeleteTopic(name), wire.Done)
    if as_json:
        print_json({"topic": name, "deleted": True})
    else:
        sys.stdout.write(f"topic {name} is deleted\n")
