"""What `gantrymq tx list` and `show` print. Needs no parser of options."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gantrymq.cli.board import running_board
from gantrymq.cli.output import home_of, print_json, print_rows
from gantrymq.cli.records import local_time, message_of, print_bytes, print_fields
from gantrymq.clients.home import no_store, store_of
from gantrymq.clients.message import as_sent
from gantrymq.shm.errors import BrokerGone, Rejected
from gantrymq.shm.lognames import DIRECTORY as LOG
from gantrymq.shm.properties import GANTRY_TX, GANTRY_TX_DELAY
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.transactions.indoubt import Doubt, Entry, InDoubt

if TYPE_CHECKING:
    from pathlib import Path

_SHOWN: Final = ("state", "age", "checks", "topic", "group", "position", "message_id")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which half messages, and how many of them are shown."""

    topic: str | None = None
    group: str | None = None
    state: str | None = None
    limit: int = 20

    def has(self, doubt: Doubt) -> bool:
        """Whether all holds that is asked for."""
        return (
            self.topic in (None, doubt.topic)
            and self.group in (None, doubt.group)
            and self.state in (None, doubt.state)
        )


def show_list(
    wanted: Wanted | None = None, *, home: Path | None, as_json: bool, ids: bool = False
) -> None:
    """Print those in doubt. Raises Corrupt, OSError."""
    wanted = wanted or Wanted()
    found = [doubt for doubt in look(home_of(home)).read() if wanted.has(doubt)]
    shown = found[: wanted.limit]
    if ids:
        for doubt in shown:
            sys.stdout.write(f"{doubt.message_id}\n")
        return
    print_rows([_row(doubt, for_people=not as_json) for doubt in shown], as_json=as_json)
    if not as_json:
        open_count = sum(doubt.state == "open" for doubt in found)
        less = f", {len(shown)} shown" if len(shown) < len(found) else ""
        sys.stdout.write(f"{open_count} open, {len(found) - open_count} given up{less}\n")


def show_one(message: str, *, home: Path | None, as_json: bool, hex: bool = False) -> None:
    """Print half messages and what is known of them. Raises Rejected, Corrupt, OSError."""
    for number, (doubt, history) in enumerate(_find(look(home_of(home)), message)):
        fields = _all_of(doubt, history)
        if as_json:
            fields["body"] = doubt.record.body.hex() if hex else fields["body"]
            print_json(fields)
            continue
        if number:
            sys.stdout.write("\n")
        _print_one(fields, doubt.record.body if hex else None)


def _print_one(fields: dict[str, Any], raw: bytes | None) -> None:
    history, body = fields.pop("history"), fields.pop("body")
    fields["age_s"] = _span(fields["age_s"])
    shown = {name: "-" if value is None else value for name, value in fields.items()}
    print_fields(shown if raw is not None else shown | {"body": body})
    for entry in history:
        more = f" for the {entry['checks']}. time" if "checks" in entry else ""
        more += f" by {entry['by']}" if "by" in entry else ""
        what = str(entry["what"]).replace("_", " ")
        sys.stdout.write(f"{local_time(int(entry['at_ms']))}  {what}{more}\n")
    if raw is not None:
        print_bytes(raw, 0)


def look(home: Path) -> InDoubt:
    """The files of a home, with the board of the broker if one runs."""
    storage = PosixStorage(str(store_of(home)))
    if not storage.exists(LOG):
        raise no_store(home)
    try:
        board = running_board(home)
    except BrokerGone:
        board = None
    return InDoubt(storage, board)


def _row(doubt: Doubt, *, for_people: bool) -> dict[str, Any]:
    age_s = max(time.time() - doubt.stored_ms / 1000, 0.0)
    row = {
        "state": doubt.state,
        "stored_ms": doubt.stored_ms,
        "age_s": round(age_s, 3),
        "checks": doubt.checks,
        "topic": doubt.topic,
        "group": doubt.group,
        "position": doubt.position,
        "message_id": doubt.message_id,
        "transaction_id": doubt.transaction_id,
        "delay": doubt.properties.get(GANTRY_TX_DELAY),
        "size": len(doubt.record.body),
    }
    if not for_people:
        return row
    row["age"] = _span(age_s)
    return {name: "-" if row[name] is None else row[name] for name in _SHOWN}


def _find(doubts: InDoubt, text: str) -> list[tuple[Doubt, list[Entry]]]:
    """What an id or position means, in doubt or decided, with its history."""
    from gantrymq.workers.transactions.decided import Decided

    try:
        found = [(doubt, doubts.history(doubt)) for doubt in doubts.find(text)]
    except Rejected:
        found = []
    if found and text.lower() != found[0][0].transaction_id:
        return found
    decided = Decided(doubts)
    found += [(doubt, decided.history(doubt)) for doubt in decided.find(text)]
    if not found:
        raise Rejected(f"no half message has the id {text}: it was never stored, or is removed")
    return found


def _all_of(doubt: Doubt, history: list[Entry]) -> dict[str, Any]:
    message = message_of(doubt.record)
    return _row(doubt, for_people=False) | {
        "number": doubt.properties.get(GANTRY_TX, "").partition(",")[2] or None,
        "queue": int(doubt.properties.get("REAL_QID", 0)),
        "half_offset": doubt.half_offset,
        "tag": message["tag"],
        "keys": message["keys"],
        "properties": as_sent("", doubt.properties)[1],
        "born_timestamp": message["born_timestamp"],
        "history": [entry.told() for entry in history],
        "body": message["body"],
    }


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
