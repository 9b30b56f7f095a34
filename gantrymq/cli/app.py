"""The command `gantrymq`: its groups, and the exit codes of all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated

import typer
import typer.main

from gantrymq.cli import (
    bench,
    delayed,
    dlq,
    doctor,
    filter,
    get,
    group,
    handover,
    ingest,
    metrics,
    query,
    receive,
    send,
    serve,
    status,
    store,
    tail,
    top,
    topic,
    tx,
    warm,
)
from gantrymq.cli.options import judge_arguments

_EPILOG = (
    "Exit codes: 0 done; 1 the checked thing does not hold; 2 usage; 69 no broker; 70 store corrupt"
    " or failed; 74 I/O error; 75 another broker holds the store; 77 not permitted."
)

app = typer.Typer(
    name="gantrymq",
    help="GantryMQ: Apache RocketMQ's broker on one host, over shared memory.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("serve", help=serve.HELP)(serve.serve)
app.command("status", help=status.HELP)(status.status)
app.command("top", help=top.HELP)(top.top)
app.command("doctor", help=doctor.HELP)(doctor.doctor)
app.command("warm", help=warm.HELP)(warm.warm)
app.command("metrics", help=metrics.HELP)(metrics.metrics)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(delayed.app, name="delayed")
app.add_typer(dlq.app, name="dlq")
app.add_typer(filter.app, name="filter")
app.add_typer(tx.app, name="tx")
app.command("send", help=send.HELP)(send.send)
app.command("receive", help=receive.HELP)(receive.receive)
app.command("tail", help=tail.HELP)(tail.tail)
app.command("get", help=get.HELP)(get.get)
app.command("query", help=query.HELP)(query.query)
app.add_typer(store.app, name="store")
app.command("ingest", help=ingest.HELP)(ingest.ingest)
app.command("handover", help=handover.HANDOVER_HELP)(handover.handover)
app.command("adopt", help=handover.ADOPT_HELP)(handover.adopt)
app.command("bench", help=bench.HELP)(bench.bench)


def _print_version(wished: bool) -> None:
    """Before a command is looked for: `gantrymq --version` has none."""
    if wished:
        from importlib.metadata import version

        sys.stdout.write(version("gantrymq") + "\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    del version


@cache
def command_line() -> Callable[[], object]:
    """The parser of all commands, as a command; made once, for that takes 60 ms."""
    judge_arguments(app)
    return typer.main.get_command(app)
