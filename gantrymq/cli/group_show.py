"""What `gantrymq group list` and `describe` show. Needs no parser of options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gantrymq.cli.board import running_board
from gantrymq.cli.group_members import member_for_people, member_rows, members_of
from gantrymq.cli.output import home_of, print_json, print_rows
from gantrymq.clients.home import store_of
from gantrymq.shm.errors import GantryError, Rejected

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.shm.board import Board
    from gantrymq.workers.groups.progress import GroupProgress, Progress


def show_groups(*, home: Path | None, as_json: bool) -> None:
    """Print groups with their topics, members and lags."""
    where = home_of(home)
    board = running_board(where)
    members: dict[str, set[int]] = {}
    for member in members_of(where):
        members.setdefault(member.group, set()).add(member.session)
    rows = []
    for name, progress in sorted(_groups(where).items()):
        queues = _queues(board, progress)
        rows.append(
            {
                "group": name,
                "topics": ",".join(sorted({row["topic"] for row in queues})),
                "queues": len(queues),
                "members": len(members.get(name, set()).union(_holders(queues))),
                "lag": sum(row["lag"] for row in queues),
            }
        )
    print_rows(rows, as_json=as_json)


def show_group(name: str, *, home: Path | None, as_json: bool) -> None:
    """Print a group's members and queues. Raises Rejected if there is no such group."""
    where = home_of(home)
    board = running_board(where)
    progress = find_group(where, name)
    queues = _queues(board, progress)
    for row in queues:
        row["oldest_ms"] = _oldest_ms(board, where, row)
    members = member_rows(members_of(where, name), _holders(queues))
    pids = {row["session"]: row["pid"] for row in members}
    for row in queues:
        row["pid"] = pids.get(row["session"])
    oldest_ms = max((row["oldest_ms"] for row in queues if row["oldest_ms"]), default=None)
    lag = sum(row["lag"] for row in queues)
    if as_json:
        whole = {"group": name, "lag": lag, "oldest_ms": oldest_ms}
        print_json(whole | {"members": members, "queues": queues})
        return
    age = "" if oldest_ms is None else f", the oldest {oldest_ms} ms old"
    sys.stdout.write(
        f"group {name}: members {len(members)}, queues {len(queues)}, lag {lag}{age}\n\n"
    )
    if members:
        print_rows([member_for_people(row) for row in members], as_json=False)
        sys.stdout.write("\n")
    print_rows([plain(row) for row in queues], as_json=False)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row for people: what is missing is a dash."""
    return {name: "-" if value is None else value for name, value in row.items()}


def _groups(home: Path) -> dict[str, GroupProgress]:
    from gantrymq.shm.storage import PosixStorage
    from gantrymq.workers.groups.ledgerreader import LedgerReader

    return LedgerReader(PosixStorage(str(store_of(home)))).refresh()


def find_group(home: Path, name: str) -> GroupProgress:
    """What the ledger says of a group. Raises Rejected if there is none of that name."""
    progress = _groups(home).get(name)
    if progress is None:
        raise Rejected(f"there is no group {name}: `gantrymq group list` shows all", group=name)
    return progress


def _oldest_ms(board: Board, home: Path, row: dict[str, Any]) -> int | None:
    """How long ago the oldest message was stored that the group has not consumed; ms."""
    import time

    from gantrymq.shm.storage import PosixStorage
    from gantrymq.shm.storereader import StoreReader

    offset = row["offset"]
    if offset is None or not row["lag"]:
        return None
    reader = StoreReader(PosixStorage(str(store_of(home))))
    queue = row["topic"], row["queue"]
    try:
        units = reader.units(*queue, offset, offset + 1, board.cq_bytes)
        record = reader.of_unit(units[0]) if units else None
        stored_ms = None if record is None else record.store_timestamp
    except (GantryError, OSError):  # retention was quicker, or nobody can say
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


def _holders(queues: list[dict[str, Any]]) -> list[int]:
    """The session of each queue that somebody owns."""
    return [row["session"] for row in queues if row["session"] is not None]
