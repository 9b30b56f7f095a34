"""What `gantrymq delayed list` shows and `recall` says. Needs no parser of options."""

from __future__ import annotations

import sys
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any, Final

from clients.home import store_of
from gantrymq.cli.board import running_board
from gantrymq.cli.output import home_of, print_json, print_rows
from gantrymq.cli.records import local_time
from shm import layout
from shm.codes import ExitCode
from shm.errors import BrokerGone, MessageIllegal
from shm.record import STRUCTURE, Record, parse_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from brokerd.handover.stopped import StoppedMessages
    from workers.scheduler.waiting import WaitingMessages

    Look = WaitingMessages | StoppedMessages

#: Messages that are shown to people who say nothing.
_SHOWN: Final = 20
#: Where the body is if both hosts have four bytes; its length is before it.
_BODY_AT: Final = layout.RECORD_HEAD_BYTES
_FLAGS_AT: Final = layout.RECORD_SYS_FLAG
_V6: Final = layout.SYS_BORN_V6 | layout.SYS_STORE_V6


def show_delayed(
    *, home: Path | None, topic: str | None, limit: int | None, handles: bool, as_json: bool
) -> None:
    """Print what waits, of one topic or of all (None). Raises Corrupt, Incompatible, OSError.

    Handles are all printed, if there is no `limit`: they are for a program.
    """
    where = home_of(home)
    look: Look
    try:
        look, broker = _running(where)
    except BrokerGone:
        if not (store_of(where) / "commitlog").is_dir():
            raise
        look, broker = _stopped(where)
    found = look.read()
    if topic is not None:
        found = found[_of_topic(look, found, topic)]
    limit = _limit_of(limit, len(found), handles=handles)
    rows = (_row(place, record, broker) for place, record in _records(look, found[:limit]))
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


def recall_all(home: Path | None, topic: str, handle: str, *, as_json: bool) -> int:
    """Cancel the message of a handle, of all on standard input for `-`; the exit code."""
    from clients.producer import Producer
    from clients.recalls import RecallOutcome

    _require_running(home_of(home))

    is_list = handle == "-"
    given = [line.strip() for line in sys.stdin if line.strip()] if is_list else [handle]
    missed = wrong = 0
    with Producer(home=home_of(home)) as producer:
        for item in given:
            try:
                outcome = producer.recall_message(topic, item)
            except MessageIllegal as error:
                if not is_list:
                    raise
                sys.stderr.write(f"gantrymq: {error}\n")
                wrong += 1
                continue
            missed += outcome != RecallOutcome.CANCELLED
            if as_json:
                print_json({"topic": topic, "recall_handle": item, "outcome": str(outcome)})
            elif not is_list:
                sys.stdout.write(str(outcome).replace("_", " ") + "\n")
    if is_list and not as_json:
        sys.stdout.write(f"{len(given) - missed - wrong} of {len(given)} cancelled\n")
    if wrong:
        return ExitCode.USAGE
    return ExitCode.DOES_NOT_HOLD if missed else ExitCode.OK


def _require_running(home: Path) -> None:
    """A recall is a record of the log, and only a broker writes there. Raises BrokerGone."""
    try:
        running_board(home)
    except BrokerGone as error:
        raise BrokerGone(
            f"only a running broker can cancel, and none runs at {home}: start it with `gantrymq"
            f" serve --home {home}` and recall again; what is due by then is delivered first",
            home=str(home),
        ) from error


def _running(home: Path) -> tuple[WaitingMessages, str]:
    from shm.storage import PosixStorage
    from workers.scheduler.waiting import WaitingMessages

    board = running_board(home)
    broker, precision_ms = _settings(home)
    return WaitingMessages(PosixStorage(str(store_of(home))), board, precision_ms), broker


def _stopped(home: Path) -> tuple[StoppedMessages, str]:
    from brokerd.handover.stopped import StoppedMessages

    look = StoppedMessages(home)
    return look, look.settings.broker_name


def _settings(home: Path) -> tuple[str, int]:
    """broker_name and timer_precision_ms of the running broker."""
    from clients.control import look_at
    from shm import wire

    with look_at(home) as control:
        values = control.request(wire.ShowSettings(), wire.Settings).values
    return str(values["broker_name"]), int(values["timer_precision_ms"])


def _of_topic(look: Look, found: NDArray[np.void], topic: str) -> NDArray[np.bool_]:
    """Which of them are to a topic."""
    import numpy as np

    chosen = np.zeros(len(found), np.bool_)
    mark = f"REAL_TOPIC\x01{topic}\x02".encode()
    for at, (position, size) in enumerate(found[["position", "size"]].tolist()):
        try:
            base, view = look.views.segment(position)
        except FileNotFoundError:  # it has just expired
            continue
        data = view[position - base : position - base + size].tobytes()
        chosen[at] = mark in data and _is_to(data, topic, mark)
    return chosen


def _is_to(record: bytes, topic: str, mark: bytes) -> bool:
    """Bodies and names of properties may hold what looks like it: the record decides then."""
    body_bytes = int.from_bytes(record[_BODY_AT - 4 : _BODY_AT], "big")
    flags = int.from_bytes(record[_FLAGS_AT : _FLAGS_AT + 4], "big")
    if not flags & _V6 and record.find(b"\x02" + mark, _BODY_AT + body_bytes) >= 0:
        return True
    found = parse_record(record, 0, len(record), STRUCTURE)
    return isinstance(found, Record) and found.property_map().get("REAL_TOPIC") == topic


def _records(look: Look, found: NDArray[np.void]) -> Iterator[tuple[Any, Record]]:
    for place in found:
        position = int(place["position"])
        try:
            base, view = look.views.segment(position)
        except FileNotFoundError:  # it has just expired
            continue
        record = parse_record(view.data, position - base, view.size, STRUCTURE, position)
        if isinstance(record, Record):
            yield place, record


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
