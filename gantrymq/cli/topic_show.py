"""What `gantrymq topic list` and `describe` show. Needs no parser of options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gantrymq.cli.board import running_board
from gantrymq.cli.output import home_of, print_json, print_rows
from gantrymq.shm.codes import Level
from gantrymq.shm.errors import TopicNotFound

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.shm.board import Board, TopicSlot


def show_topics(*, home: Path | None, system: bool, as_json: bool) -> None:
    """Print all topics with their messages; `system`: RocketMQ's own too."""
    board = running_board(home_of(home))
    shown = [topic for topic in board.topics() if topic.perm and (system or not topic.system)]
    rows = [_row(board, topic) for topic in sorted(shown, key=lambda topic: topic.name)]
    print_rows(rows, as_json=as_json)


def show_topic(name: str, *, home: Path | None, as_json: bool) -> None:
    """Print a topic's queues and their offsets. Raises TopicNotFound."""
    board = running_board(home_of(home))
    topic = find_topic(board, name)
    queues = []
    for queue_id in range(topic.queue_count):
        slot = board.queue(topic.queue_base + queue_id)
        row = {"queue": queue_id, "min_offset": slot["min_offset"]}
        row |= {"max_offset": slot["max_offset"], "next_offset": slot["next_offset"]}
        queues.append(row)
    if as_json:
        print_json(_row(board, topic) | {"queue_offsets": queues})
    else:
        print_rows([_row(board, topic)], as_json=False)
        sys.stdout.write("\n")
        print_rows(queues, as_json=False)


def find_topic(board: Board, name: str) -> TopicSlot:
    """A topic that is there. Raises TopicNotFound."""
    topic = board.topic_named(name)
    if topic is not None and topic.perm:
        return topic
    raise TopicNotFound(f"there is no topic {name}: `gantrymq topic list` shows all", topic=name)


def _row(board: Board, topic: TopicSlot) -> dict[str, object]:
    first, count = topic.queue_base, topic.queue_count
    slots = [board.queue(queue) for queue in range(first, first + count)]
    return {
        "topic": topic.name,
        "queues": count,
        "durability": Level(topic.level).name.lower(),
        "messages": sum(slot["max_offset"] - slot["min_offset"] for slot in slots),
        "system": bool(topic.system),
    }
