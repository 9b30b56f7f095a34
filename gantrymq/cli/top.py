"""`gantrymq top`: what moves in the broker, again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gantrymq.cli.board import running_board
from gantrymq.cli.options import HomeOption, JsonOption, home_of, print_json
from gantrymq.clients.home import store_of

if TYPE_CHECKING:
    from rich.console import RenderableType

HELP = """Show rates per topic, group and agent on a terminal, until Ctrl-C.

\b
Example: gantrymq top --home ./mq --once
Exit codes: 0 done; 2 standard output is no terminal (use --once); 69 no broker, or it has ended.
"""
_ROWS_MAX = 20


def top(
    home: HomeOption = None,
    interval: Annotated[
        float, typer.Option(min=0.1, max=60, help="Seconds between two looks.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval, and end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what moves."""
    where = home_of(home)
    if not once and not as_json and not sys.stdout.isatty():
        raise typer.BadParameter("standard output is no terminal: add --once", param_hint="top")
    looks = _looks(where, interval)
    if as_json:
        for shown in looks:
            print_json(shown)
            if once:
                return
    from rich.console import Console

    console = Console()
    if once:
        console.print(_page(where, next(looks)))
        return
    from rich.live import Live

    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for shown in looks:
                live.update(_page(where, shown), refresh=True)
    except KeyboardInterrupt:
        return


def _looks(home: Path, interval: float) -> Iterator[dict[str, Any]]:
    """Rates over each interval, as long as this life of the broker goes on."""
    from gantrymq.brokerd.sample import rates, take
    from gantrymq.clients.running import require_board
    from gantrymq.shm.storage import PosixStorage
    from gantrymq.workers.groups.ledgerreader import LedgerReader
    from gantrymq.workers.groups.offsetfile import offsets_of

    board = running_board(home)
    ledger = LedgerReader(PosixStorage(str(store_of(home))))
    before = take(board, offsets_of(ledger.refresh()), time.monotonic())
    while True:
        time.sleep(interval)
        require_board(home, board)
        now = take(board, offsets_of(ledger.refresh()), time.monotonic())
        yield rates(before, now)
        before = now


def _page(home: Path, shown: dict[str, Any]) -> RenderableType:
    from rich.console import Group

    log = shown["log"]
    lag = log["index_lag_bytes"]
    index = "no index" if lag is None else f"{_scaled(lag)}B not indexed"
    head = (
        f"broker at {home}: {shown['state']}, {shown['sessions']} sessions; log"
        f" {_scaled(log['appended'])}B, +{_scaled(log['appended_per_s'])}B/s,"
        f" {_scaled(log['durable_lag_bytes'])}B not durable,"
        f" {_scaled(log['dispatch_lag_bytes'])}B not dispatched, {index}"
        f"{_in_doubt(shown)}{_delayed(shown)}"
    )
    topics = sorted(shown["topics"], key=lambda row: -row["sent_per_s"])
    groups = sorted(shown["groups"], key=lambda row: -row["lag"])
    return Group(
        head,
        *_table("topics by rate", topics),
        *_table("groups by lag", groups),
        *_table("agents", shown["agents"]),
    )


def _in_doubt(shown: dict[str, Any]) -> str:
    """Transactions, where there are any."""
    halves = shown["transactions"]
    if not (halves["open"] or halves["given_up"]):
        return ""
    return f"; {halves['open']} half messages open, {halves['given_up']} given up"


def _delayed(shown: dict[str, Any]) -> str:
    """Delayed messages, where there are any."""
    delayed = shown["delayed"]
    if not (delayed["waiting"] or delayed["late_p99_ms"] is not None):
        return ""
    late = delayed["late_p99_ms"]
    lateness = "" if late is None else f", 99 % within {late} ms of their time"
    return (
        f"; {_scaled(delayed['waiting'])}delayed wait, {_scaled(delayed['delivered_per_s'])}"
        f"delivered/s{lateness}"
    )


def _table(title: str, rows: list[dict[str, Any]]) -> tuple[RenderableType, ...]:
    from rich import box
    from rich.table import Table

    more = f" ({len(rows) - _ROWS_MAX} more)" if len(rows) > _ROWS_MAX else ""
    heading = f"\n{title}{more}" if rows else f"\n{title}: none"
    if not rows:
        return (heading,)
    table = Table(box=box.SIMPLE, expand=False)
    for name in rows[0]:
        words = isinstance(rows[0][name], str)
        table.add_column(name.replace("_per_s", "/s"), justify="left" if words else "right")
    for row in rows[:_ROWS_MAX]:
        table.add_row(*(_cell(value) for value in row.values()))
    return heading, table


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int | float):
        return _scaled(value) if value >= 100_000 else f"{value:g}"
    return str(value)


def _scaled(value: float) -> str:
    for unit in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.3g} {unit}".rstrip() if unit else f"{value:g} "
        value /= 1000
    return f"{value:.3g} T"
