"""`gantrymq group ...`: who consumes what, how far, who holds the queues; and moving them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clients.home import store_of
from gantrymq.cli.board import running_board
from gantrymq.cli.completion import group_names, topic_names
from gantrymq.cli.options import HomeOption, JsonOption, home_of, print_json, print_rows
from shm.errors import GantryError, Rejected

if TYPE_CHECKING:
    from pathlib import Path

    from shm.board import Board
    from workers.ledger import GroupProgress
    from workers.progress import Progress

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
    where = home_of(home)
    board = running_board(where)
    rows = []
    for name, progress in sorted(_groups(where).items()):
        queues = _queues(board, progress)
        rows.append(
            {
                "group": name,
                "topics": ",".join(sorted({row["topic"] for row in queues})),
                "queues": len(queues),
                "members": len({row["session"] for row in queues} - {None}),
                "lag": sum(row["lag"] for row in queues),
            }
        )
    print_rows(rows, as_json=as_json)


@app.command(
    help="""Show a group's queues: what is committed, what is being worked on, and by whom.

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
    """Show a group's queues."""
    where = home_of(home)
    board = running_board(where)
    progress = _group(where, name)
    queues = _queues(board, progress)
    for row in queues:
        row["oldest_ms"] = _oldest_ms(board, where, row)
    pids = _pids_of(where, sorted({row["session"] for row in queues} - {None}))
    for row in queues:
        row["pid"] = pids.get(str(row["session"]))
    if as_json:
        lag = sum(row["lag"] for row in queues)
        print_json({"group": name, "lag": lag, "queues": queues})
        return
    sys.stdout.write(f"group {name}\n\n")
    print_rows([_plain(row) for row in queues], as_json=False)


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
Exit codes: 0 done; 2 no such group, topic, queue or place; 69 no broker; 75 no answer in time.
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
    from gantrymq.cli.group_reset import carry_out, plan

    where = home_of(home)
    running_board(where)
    progress = _group(where, name)
    rows = plan(where, progress, topic, queue, to)
    if not dry_run:
        carry_out(where, name, rows, patience)
    shown = [{key: row[key] for key in row if key != "board_queue"} for row in rows]
    if as_json:
        print_json({"group": name, "changed": not dry_run, "queues": shown})
        return
    print_rows([_plain(row) for row in shown], as_json=False)
    if dry_run:
        sys.stdout.write("\nnothing was changed\n")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: "-" if value is None else value for name, value in row.items()}


def _groups(home: Path) -> dict[str, GroupProgress]:
    from shm.storage import PosixStorage
    from workers.ledgerreader import LedgerReader

    return LedgerReader(PosixStorage(str(store_of(home)))).refresh()


def _group(home: Path, name: str) -> GroupProgress:
    progress = _groups(home).get(name)
    if progress is None:
        raise Rejected(f"there is no group {name}: `gantrymq group list` shows all", group=name)
    return progress


def _oldest_ms(board: Board, home: Path, row: dict[str, Any]) -> int | None:
    """How long ago the oldest message was stored that the group has not consumed; ms."""
    import time

    from shm.storage import PosixStorage
    from shm.storereader import StoreReader

    offset = row["offset"]
    if offset is None or not row["lag"]:
        return None
    reader = StoreReader(PosixStorage(str(store_of(home))))
    queue = row["topic"], row["queue"]
    try:
        places = reader.units(*queue, offset, offset + 1, board.cq_bytes)
        stored_ms = reader.record(places[0]).store_timestamp if places else None
    except (GantryError, OSError):  # retention was quicker
        stored_ms = None
    return None if stored_ms is None else max(0, time.time_ns() // 1_000_000 - stored_ms)


def _queues(board: Board, progress: GroupProgress) -> list[dict[str, Any]]:
    topics = {topic.name: topic for topic in board.topics() if topic.perm}
    rows = []
    for (name, queue_id), queue in sorted(progress.queues.items()):
        topic = topics.get(name)
        if topic is None or queue_id >= topic.queue_count:
            continue
        end = board.queue(topic.queue_base + queue_id)["max_offset"]
        offset = queue.committed if queue.committed >= 0 else None
        rows.append(
            {
                "topic": name,
                "queue": queue_id,
                "offset": offset,
                "started": queue.started if queue.started >= 0 else None,
                "max_offset": end,
                "lag": max(0, end - offset) if offset is not None else 0,
                "in_flight": _in_flight(queue),
                "retries": max((count for _first, _end, count in queue.attempts), default=0),
                "session": queue.lease.session if queue.lease else None,
            }
        )
    return rows


def _in_flight(queue: Progress) -> int:
    """Messages that were handed out and are not done with."""
    done = sum(end - first for first, end in queue.done)
    return max(0, queue.started - queue.committed - done) if queue.committed >= 0 else 0


def _pids_of(home: Path, sessions: list[int]) -> dict[str, int]:
    """Processes of sessions; none if the supervisor does not answer."""
    from clients.control import look_at
    from shm import wire

    found: dict[str, int] = {}
    try:
        with look_at(home) as control:
            for at in range(0, len(sessions), wire.SESSIONS_ASKED_MAX):
                asked = wire.ShowSessions(sessions[at : at + wire.SESSIONS_ASKED_MAX])
                found |= control.request(asked, wire.SessionPids).pids
    except (GantryError, OSError):
        return found
    return found
