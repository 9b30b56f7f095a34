"""`gantrymq store ...`: look into a store's files; no broker is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from gantrymq.cli.options import HomeOption, JsonOption, home_of, print_json
from gantrymq.clients.home import store_of
from gantrymq.shm.codes import ExitCode

app = typer.Typer(help="Look into a store's files, ours or a RocketMQ's.", no_args_is_help=True)
DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Root of the store: HOME/store.", exists=True)
]


@app.command(
    help="""Print a store as JSON lines (they are JSON with and without --json). Changes nothing.

\b
Example: gantrymq store dump ~/.local/state/gantrymq/store | head
Exit codes: 0 done; 2 the settings do not fit the files; 74 unreadable.
"""
)
def dump(
    directory: DirectoryArgument,
    settings: Annotated[
        Path | None, typer.Option(help="key=value lines with RocketMQ's names.")
    ] = None,
    stage: Annotated[
        str, typer.Option(help="recovered: as after a start; disk: as it lies there.")
    ] = "recovered",
    as_json: JsonOption = False,
) -> None:
    """Print a store as JSON lines (they are JSON with and without --json)."""
    del as_json
    from gantrymq.cli.store_dump import dump as run

    stages: dict[str, Literal["recovered", "disk"]] = {"recovered": "recovered", "disk": "disk"}
    if stage not in stages:
        raise typer.BadParameter("choose recovered or disk", param_hint="--stage")
    run(directory, settings, stages[stage], sys.stdout)


@app.command(
    help="""Check every record's CRC and every derived file. Changes nothing.

With --salvage a new store is made of all that is sound: records keep their positions and queue
offsets, what was lost is named. Point a broker at its home, or move it into the old one's place.

A stopped store is checked whole. The broker may run: then what is dispatched is checked. After a
kill it is what was durable; the next start makes good what lies behind.

\b
Example: gantrymq store verify ~/.local/state/gantrymq/store
Example: gantrymq store verify --salvage /srv/new/store ~/.local/state/gantrymq/store
Exit codes: 0 all is well; 1 something is damaged or does not agree; 2 the settings do not fit;
74 unreadable, or no store; 75 held by another program's broker.
"""
)
def verify(
    directory: DirectoryArgument,
    settings: Annotated[
        Path | None, typer.Option(help="key=value lines with RocketMQ's names.")
    ] = None,
    salvage: Annotated[
        Path | None,
        typer.Option(metavar="DEST", help="Copy what is sound into this new store root."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every record's CRC and every derived file."""
    from gantrymq.cli import store_verify

    if salvage is None:
        code = store_verify.verify(directory, settings, as_json=as_json)
    else:
        code = store_verify.salvage(directory, salvage, settings, as_json=as_json)
    if code != ExitCode.OK:
        raise typer.Exit(code)


@app.command(
    help="""Show what lies at a log position as its fields and bytes. Changes nothing.

PLACE is a log position, or an offset message id (`offset_msg_id` of receipts and `tail --json`).

\b
Example: gantrymq store inspect 0 ~/.local/state/gantrymq/store
Exit codes: 0 a record or a filler; 1 what is there is damaged, or no record; 2 no segment holds it;
74 unreadable.
"""
)
def inspect(
    place: Annotated[str, typer.Argument(help="A log position, or an offset message id.")],
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]", help="Root of the store; else that of --home.", exists=True
        ),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what lies at a log position as its fields and bytes."""
    from gantrymq.cli.store_inspect import inspect as run

    code = run(place, directory or store_of(home_of(home)), as_json=as_json)
    if code != ExitCode.OK:
        raise typer.Exit(code)


@app.command(
    help="""Copy a store so that a broker can start on the copy; the broker may run meanwhile.

DEST becomes a home of its own: the log up to what is durable, configuration, groups' offsets, what
was deleted or purged.
What is derived (`store rebuild --help` lists it) is left out: the first start on the copy makes it
again. docs/operate.md tells how to restore.

\b
Example: gantrymq store backup ./mq-copy --home ./mq
Exit codes: 0 done; 2 DEST exists, there is nothing to copy, or a broker must be started first; 70
the store failed; 74 an I/O error; 75 another back-up to DEST is at work.
"""
)
def backup(
    destination: Annotated[
        Path, typer.Argument(metavar="DEST", help="New directory, on the disk for back-ups.")
    ],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a store so that a broker can start on the copy."""
    from dataclasses import asdict

    from gantrymq.brokerd.backup import backup as run
    from gantrymq.cli.store_verify import show_progress

    progress = show_progress if sys.stderr.isatty() else None
    copied = run(home_of(home), destination.absolute(), progress)
    if as_json:
        print_json(asdict(copied))
    else:
        sys.stdout.write(
            f"{copied.home}: the log from {copied.low} to {copied.durable}, {copied.segments}"
            f" segments, {copied.bytes} bytes copied\n"
        )


@app.command(
    help="""Delete what is derived and make it again of the log. The broker must be stopped.

Killed at any point, it can be run again, or the broker be started. Log, gantry/ledger,
gantry/ranges.json and config/ stay as they are. What goes:

\b
consumequeue/              ConsumeQueues
gantry/memberqueues/       those of topics of type BatchCQ
consumequeue_ext/          their extension (bits of SQL92 filters)
gantry/bitmaps.json        which filters these bits are of
index/                     IndexFiles: messages by key
gantry/index.json          how far the index has come
gantry/segments/           sidecars
gantry/queues.json         table of queues: how far the ConsumeQueues have come
gantry/producers           table of producers: what of each is stored
gantry/schedule.json       how far the scheduler has come
gantry/timers/             its buckets of messages that wait
gantry/transactions.json   how far the txn-checker has come

\b
Example: gantrymq store rebuild --dry-run ~/.local/state/gantrymq/store
Exit codes: 0 done; 70 the log is damaged; 74 unreadable or no space; 75 a broker holds the store.
"""
)
def rebuild(
    directory: DirectoryArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the files that would go.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete what is derived and make it again of the log."""
    from gantrymq.cli.store_rebuild import rebuild as run

    run(directory, dry_run=dry_run, as_json=as_json)
