"""`gantrymq tail`: the last messages of a topic, and those that come."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from gantrymq.cli.board import running_board
from gantrymq.cli.completion import topic_names
from gantrymq.cli.options import HomeOption, JsonOption, home_of, print_json
from gantrymq.cli.topic_show import find_topic
from gantrymq.clients.home import store_of

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.shm.board import Board, TopicSlot
    from gantrymq.shm.record import Record
    from gantrymq.shm.storereader import Unit

HELP = """Print the last messages of a topic, as no member of any group: nothing is committed.

\b
Example: gantrymq tail orders --home ./mq -n 5
Example: gantrymq tail orders -f --json | jq .body
Exit codes: 0 done; 2 no such topic; 69 no broker, or it has ended.
"""
_LOOK_S = 0.05
_AT_ONCE = 1000


def tail(
    topic: Annotated[str, typer.Argument(help="The topic.", autocompletion=topic_names)],
    count: Annotated[int, typer.Option("-n", min=0, help="How many of each queue at first.")] = 10,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with those that come, for ever.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print messages as they are in the log."""
    where = home_of(home)
    board = running_board(where)
    try:
        for record in _records(where, board, find_topic(board, topic), (count, follow)):
            _show(record, as_json)
    except KeyboardInterrupt:
        return


def _records(
    home: Path, board: Board, topic: TopicSlot, wanted: tuple[int, bool]
) -> Iterator[Record]:
    """In the order of storing, as far as one look shows several.

    Without following they end where the queues ended at the first look, however many come.
    """
    from gantrymq.clients.running import require_board
    from gantrymq.shm.storage import PosixStorage
    from gantrymq.shm.storereader import StoreReader

    reader = StoreReader(PosixStorage(str(store_of(home))))
    count, follow = wanted
    ends = {slot: board.queue(slot)["max_offset"] for slot in _queues(topic)}
    at = {slot: max(end - count, 0) for slot, end in ends.items()}
    while True:
        units: list[Unit] = []
        if follow:  # it may be made again, with more queues or in another place
            topic = board.topic_named(topic.name) or topic
        for slot in _queues(topic):
            words = board.queue(slot)
            start = max(at.get(slot, 0), words["min_offset"])
            last = words["max_offset"] if follow else ends[slot]
            end = max(start, min(last, start + _AT_ONCE))
            queue_id = slot - topic.queue_base
            units += reader.units(topic.name, queue_id, start, end, board.cq_bytes)
            at[slot] = end
        for unit in sorted(units):
            record = reader.of_unit(unit)
            if record is not None:  # else its segment has just expired
                yield record
        if units:
            continue
        if not follow:
            return
        require_board(home, board)
        time.sleep(_LOOK_S)


def _queues(topic: TopicSlot) -> range:
    return range(topic.queue_base, topic.queue_base + topic.queue_count)


def _show(record: Record, as_json: bool) -> None:
    from gantrymq.cli.records import message_of

    message = message_of(record)
    if as_json:
        print_json(message)
        return
    sys.stdout.buffer.write(message["body"] + b"\n")
    sys.stdout.buffer.flush()
