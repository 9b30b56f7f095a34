"""What `gantrymq delayed list` shows. Needs no parser of options."""

from __future__ import annotations

import sys
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any, Final

from gantrymq.cli.board import running_board
from gantrymq.cli.delayed_chosen import Wanted, records
from gantrymq.cli.output import home_of, print_rows
from gantrymq.cli.records import local_time
from gantrymq.clients.home import store_of
from gantrymq.shm.errors import BrokerGone

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.brokerd.handover.stopped import StoppedMessages
    from gantrymq.cli.delayed_chosen import Look
    from gantrymq.shm.record import Record
    from gantrymq.workers.scheduler.waiting import WaitingMessages

#: Messages that are shown to people who say nothing.
_SHOWN: Final = 20


def show_named(
    *, topic: str | None, tag: str | None, key: str | None, home: Path | None, limit: int | None,
    handles: bool, as_json: bool,
) -> None:  # fmt: skip
    """`show_delayed` for whoever has read no times and kinds."""
    wanted = Wanted(topic=topic, tag=tag, key=key)
    show_delayed(wanted, home=home, limit=limit, handles=handles, as_json=as_json)


def show_delayed(
    wanted: Wanted, *, home: Path | None, limit: int | None, handles: bool, as_json: bool
) -> None:
    """Print what waits. Raises Corrupt, Incompatible, OSError.

    Handles are all printed, if there is no `limit`: they are for a program.
    """
    where = home_of(home)
    look, broker = look_at_store(where)
    found = wanted.among(look, look.read())
    limit = _limit_of(limit, len(found), handles=handles)
    rows = (_row(place, record, broker) for place, record in records(look, found[:limit]))
    if handles:
        for row in rows:
            if row["recall_handle"] is not None:
                sys.stdout.write(row["recall_handle"] + "\n")
    elif as_json:
        print_rows(list(rows), as_json=True)
    else:
        print_rows([_for_people(row) for row in rows], as_json=False)
        shown = f", {limit} shown" if len(found) > limit else ""
        sys.stdout.write(f"{len(found)} waiting{shown}\n")


def _limit_of(given: int | None, found: int, *, handles: bool) -> int:
    if given is not None:
        return given
    return found if handles else _SHOWN


def look_at_store(home: Path) -> tuple[Look, str]:
    """Whatever can be read, and the broker's name: a running broker's store, or a stopped one's."""
    try:
        return _running(home)
    except BrokerGone:
        if not (store_of(home) / "commitlog").is_dir():
            raise
        return _stopped(home)


def _running(home: Path) -> tuple[WaitingMessages, str]:
    from gantrymq.shm.storage import PosixStorage
    from gantrymq.workers.scheduler.waiting import WaitingMessages

    board = running_board(home)
    broker, precision_ms = _settings(home)
    return WaitingMessages(PosixStorage(str(store_of(home))), board, precision_ms), broker


def _stopped(home: Path) -> tuple[StoppedMessages, str]:
    from gantrymq.brokerd.handover.stopped import StoppedMessages

    look = StoppedMessages(home)
    return look, look.settings.broker_name


def _settings(home: Path) -> tuple[str, int]:
    """broker_name and timer_precision_ms of the running broker."""
    from gantrymq.clients.control import look_at
    from gantrymq.shm import wire

    with look_at(home) as control:
        values = control.request(wire.ShowSettings(), wire.Settings).values
    return str(values["broker_name"]), int(values["timer_precision_ms"])


def _row(place: Any, record: Record, broker: str) -> dict[str, Any]:  # noqa: ANN401 - of WAITING
    properties = record.property_map()
    topic, unique = properties.get("REAL_TOPIC", "?"), properties.get("UNIQ_KEY")
    level, due_ms = int(place["level"]), int(place["due_ms"])
    handle = None
    if not level and unique and (out_ms := properties.get("TIMER_OUT_MS", "")).isdecimal():
        text = f"v1 {topic} {broker} {int(out_ms) + 1} {unique}"  # DT-70
        handle = urlsafe_b64encode(text.encode()).decode()
    return {
        "due_ms": due_ms or None,
        "kind": f"level {level}" if level else "exact" if due_ms else "absent",
        "topic": topic,
        "message_id": unique or record.offset_message_id,
        "size": len(record.body),
        "recall_handle": handle,
    }


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    due_ms = row.pop("due_ms")
    shown = {"due": local_time(due_ms) if due_ms else "-"} | row
    return {name: "-" if value is None else value for name, value in shown.items()}
