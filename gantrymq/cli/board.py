"""The board of the running broker, as values and as text. Needs no parser of options."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from gantrymq.cli.output import home_of, print_json, print_rows
from gantrymq.clients.home import no_broker, store_of
from gantrymq.clients.running import find_board
from gantrymq.shm import layout
from gantrymq.shm.board import NOBODYS, Board
from gantrymq.shm.codes import BrokerState, ExitCode, Role

_TABLES = ("topics", "queues")


def show(*, home: Path | None, as_json: bool) -> int:
    """Print what `status` shows; returns the exit code."""
    where = home_of(home)
    board = running_board(where)
    shown = describe(board, where)
    if as_json:
        print_json(shown)
    else:
        _print(shown)
    sys.stdout.flush()
    state = board.half(layout.BOARD_STATE)
    if state == BrokerState.FAILED:
        return ExitCode.STORE
    return ExitCode.OK if state == BrokerState.READY else ExitCode.NO_BROKER


def running_board(home: Path) -> Board:
    """The board of a broker that runs; a killed one's is left over, but nobody holds the lock."""
    board = find_board(home)
    if board is None:
        raise no_broker(
            home,
            f"no broker runs at {home}: start one with `gantrymq serve --home {home}`, or name"
            " another home with --home or GANTRYMQ_HOME",
        )
    return board


def describe(board: Board, home: Path) -> dict[str, Any]:
    """What the board says, as plain values (docs/operate.md); positions are bytes of the log."""
    appended = board.word(layout.BOARD_APPENDED)
    durable = board.word(layout.BOARD_DURABLE)
    dispatched = board.word(layout.BOARD_DISPATCHED)
    indexed = board.word(layout.BOARD_INDEXED)
    return {
        "home": str(home),
        "state": BrokerState(board.half(layout.BOARD_STATE)).name.lower(),
        "epoch": f"{board.epoch:x}",
        "uptime_s": round(time.time() - board.started_ms / 1000, 1),
        "failed_errno": board.half(layout.BOARD_FAILED_ERRNO),
        "sessions": board.half(layout.BOARD_SESSION_COUNT),
        "topics": len([topic for topic in board.topics() if topic.perm and not topic.system]),
        "queues": board.half(layout.BOARD_QUEUE_COUNT),
        "places": _places(board),
        "store": _store(board, home),
        "log": {
            "appended": appended,
            "settled": board.word(layout.BOARD_SETTLED),
            "durable": durable,
            "dispatched": dispatched,
            "indexed": None if indexed < 0 else indexed,
            "low": board.word(layout.BOARD_LOW),
            "durable_lag_bytes": appended - durable,
            "dispatch_lag_bytes": appended - dispatched,
            "index_lag_bytes": None if indexed < 0 else appended - indexed,
        },
        "transactions": _transactions(board),
        "delayed": _delayed(board),
        "processes": [_process(board, role) for role in Role if board.process(role)["started_ms"]],
        "groups": _groups(board, home),
        "dead_letters": _dead_letters(board, home),
    }


def _places(board: Board) -> dict[str, int]:
    """Slots of the board's tables: those of deleted topics are not free at once."""
    deleted = [topic for topic in board.topics() if topic.deleted]
    return {
        "topics_used": sum(1 for topic in board.topics() if not topic.name.startswith(NOBODYS)),
        "topics_max": board.topics_max,
        "queues_used": board.queues_used(),
        "queues_max": board.queues_max,
        "deleted_topics": len(deleted),
        "deleted_queues": sum(topic.queue_count for topic in deleted),
    }


def _store(board: Board, home: Path) -> dict[str, int]:
    room = os.statvfs(store_of(home))
    return {
        "segment_bytes": board.segment_bytes,
        "segments": board.segments,
        "log_bytes": board.word(layout.BOARD_APPENDED) - board.word(layout.BOARD_LOW),
        "disk_free_bytes": room.f_bavail * room.f_frsize,
        "disk_used_percent": board.half(layout.BOARD_DISK_USED),
        "disk_full": board.half(layout.BOARD_DISK_FULL),
    }


def _transactions(board: Board) -> dict[str, float | None]:
    """Half messages in doubt (`gantrymq tx list`)."""
    oldest_ms = board.word(layout.BOARD_OLDEST_HALF_MS)
    return {
        "open": board.word(layout.BOARD_OPEN_HALVES),
        "oldest_s": round(max(time.time() - oldest_ms / 1000, 0.0), 1) if oldest_ms else None,
        "given_up": board.word(layout.BOARD_GIVEN_UP),
        "checks": board.word(layout.BOARD_CHECKS_SENT),
    }


def _delayed(board: Board) -> dict[str, int | None]:
    """What waits for its time, and how late it was when it was delivered."""
    from gantrymq.brokerd.delays import Delays

    delays = Delays.of(board)
    timed = sum(delays.counts)
    return {
        "levels": delays.levels,
        "timers": delays.timers,
        "delivered": delays.delivered,
        "late_p50_ms": delays.late_within_ms(0.5),
        "late_p99_ms": delays.late_within_ms(0.99),
        "late_max_ms": delays.late_max_ms if timed else None,
    }


def _dead_letters(board: Board, home: Path) -> list[dict[str, object]]:
    from gantrymq.brokerd.delays import dead_letters
    from gantrymq.shm.storage import PosixStorage

    found = dead_letters(board, PosixStorage(str(store_of(home))))
    return [
        {"group": row.group, "messages": row.messages, "resent": row.resent}
        for row in found
        if row.messages
    ]


def _groups(board: Board, home: Path) -> list[dict[str, object]]:
    """Lags by group and topic, from the file that is exported every few seconds."""
    from gantrymq.brokerd.lags import lags
    from gantrymq.shm.storage import PosixStorage
    from gantrymq.workers.groups.offsetfile import read_offsets

    found: dict[tuple[str, str], int] = {}
    for row in lags(board, read_offsets(PosixStorage(str(store_of(home))))):
        key = (row.group, row.topic)
        found[key] = found.get(key, 0) + row.lag
    return [{"group": group, "topic": topic, "lag": lag} for (group, topic), lag in found.items()]


def _process(board: Board, role: Role) -> dict[str, object]:
    slot = board.process(role)
    return {
        "agent": role.name.lower(),
        "pid": slot["pid"] or None,
        "restarts": slot["restarts"],
        "started_ms": slot["started_ms"],
        "heartbeats": slot["heartbeat"],
        "busy_cycles": slot["busy"],
        "work": slot["work"],
        "bytes": slot["bytes"],
        "refused": slot["refused"],
        "cut_off": slot["faults"],
    }


def _disk_line(store: dict[str, int]) -> str:
    """What an operator asks first when sends are refused."""
    free = store["disk_free_bytes"]
    line = f"disk: {store['disk_used_percent']} % used, {free} bytes free"
    if store["disk_full"]:
        line += "; above disk_space_warning_level_ratio: sends are refused"
    elif free < store["segment_bytes"]:
        line += "; no room for another segment: sends are refused once the last one is full"
    return line + "\n"


def _places_line(places: dict[str, int]) -> str:
    """Nothing unless deleted topics keep places, or few are left."""
    line = (
        f"board: {places['topics_used']} of {places['topics_max']} topics,"
        f" {places['queues_used']} of {places['queues_max']} queues"
    )
    few = any(10 * places[f"{what}_used"] > 9 * places[f"{what}_max"] for what in _TABLES)
    if places["deleted_topics"]:
        return (
            f"{line}; {places['deleted_topics']} topics with {places['deleted_queues']} queues are"
            " deleted: what had messages leaves at the first start after retention took them\n"
        )
    return f"{line}\n" if few else ""


def _print(shown: dict[str, Any]) -> None:
    log = shown["log"]
    index = "no index" if log["indexed"] is None else f"index {log['index_lag_bytes']} behind"
    sys.stdout.write(
        f"broker at {shown['home']}: {shown['state']}, up {shown['uptime_s']} s,"
        f" epoch {shown['epoch']}\n"
        f"{shown['sessions']} sessions, {shown['topics']} topics\n"
        f"log: appended {log['appended']}, durable {log['durable']} "
        f"({log['durable_lag_bytes']} behind), dispatched {log['dispatched']} "
        f"({log['dispatch_lag_bytes']} behind), {index}, low {log['low']}\n"
    )
    sys.stdout.write(_places_line(shown["places"]) + _disk_line(shown["store"]))
    halves = shown["transactions"]
    if halves["open"] or halves["given_up"]:
        age = "" if halves["oldest_s"] is None else f", the oldest {halves['oldest_s']} s"
        sys.stdout.write(
            f"transactions in doubt: {halves['open']} open{age}, {halves['given_up']} given up\n"
        )
    delayed = shown["delayed"]
    if delayed["levels"] or delayed["timers"] or delayed["delivered"]:
        late = delayed["late_p99_ms"]
        lateness = ""
        if late is not None:
            lateness = (
                f", 99 % of them within {late} ms, the latest {delayed['late_max_ms']} ms late"
            )
        sys.stdout.write(
            f"delayed: {delayed['timers']} timers and {delayed['levels']} of levels wait,"
            f" {delayed['delivered']} delivered{lateness}\n"
        )
    sys.stdout.write("\n")
    hidden = ("started_ms", "heartbeats", "busy_cycles")
    processes = [
        {name: "-" if value is None else value for name, value in row.items() if name not in hidden}
        for row in shown["processes"]
    ]
    print_rows(processes, as_json=False)
    if shown["groups"]:
        sys.stdout.write("\n")
        print_rows(shown["groups"], as_json=False)
    if shown["dead_letters"]:
        sys.stdout.write("\ndead letters\n")
        print_rows(shown["dead_letters"], as_json=False)
