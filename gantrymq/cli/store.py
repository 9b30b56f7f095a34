"""`gantrymq store ...`: look into a store's files; no broker is needed."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from gantrymq.cli.options import JsonOption, complain, print_json
from shm.codes import ExitCode

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

A stopped store is checked whole. The broker may run: then what is dispatched is checked. After a
kill it is what was durable; the next start makes good what lies behind.

\b
Example: gantrymq store verify ~/.local/state/gantrymq/store
Exit codes: 0 all is well; 1 something is damaged or does not agree; 2 the settings do not fit;
74 unreadable; 75 held by another program's broker.
"""
)
def verify(
    directory: DirectoryArgument,
    settings: Annotated[
        Path | None, typer.Option(help="key=value lines with RocketMQ's names.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every record's CRC and every derived file."""
    from brokerd.verify import verify as run

    report = run(directory, settings, _progress if sys.stderr.isatty() else None)
    if as_json:
        print_json({"ok": report.ok, **asdict(report)})
    else:
        sys.stdout.write(f"{report}\n")
    if not report.ok:
        complain("the store does not hold what it should; see above")
        raise typer.Exit(ExitCode.DOES_NOT_HOLD)


def _progress(done: int, total: int, what: str) -> None:
    sys.stderr.write(f"\r{what}: {100 * done // max(total, 1)} %\x1b[K")
    if done >= total:
        sys.stderr.write("\n")
    sys.stderr.flush()
