"""`gantrymq group reset-offset`: where a group goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.cli.board import running_board
from gantrymq.cli.group_show import find_group, plain
from gantrymq.cli.output import home_of, print_json, print_rows
from gantrymq.cli.topic_show import find_topic
from gantrymq.clients.home import store_of
from gantrymq.shm.errors import Rejected

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.shm.board import Board, TopicSlot
    from gantrymq.workers.groups.progress import GroupProgress

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for; `queue` None: all of the topic."""

    group: str
    topic: str
    queue: int | None
    place: str
    patience_s: float


def show_reset(wish: Wish, *, home: Path | None, dry_run: bool, as_json: bool) -> None:
    """Carry a wish out unless it is a dry run, and print what changed. Raises Rejected, ..."""
    where = home_of(home)
    board = running_board(where)
    topic = find_topic(board, wish.topic)
    plan = partial(_plan, where, find_group(where, wish.group), wish)
    rows = plan(board, topic) if dry_run else _carry_out(where, wish, plan)
    if as_json:
        print_json({"group": wish.group, "changed": not dry_run, "queues": rows})
        return
    print_rows([plain(row) for row in rows], as_json=False)
    if dry_run:
        sys.stdout.write("\nnothing was changed\n")


def _plan(home: Path, progress: GroupProgress, wish: Wish, board: Board, topic: TopicSlot) -> Rows:
    """A row for each queue: its offset before and after, and the messages in between.

    Raises Rejected.
    """
    from gantrymq.clients.groupreset import offset_of

    topic_name, queue_id, place = wish.topic, wish.queue, wish.place
    if queue_id is not None and queue_id >= topic.queue_count:
        raise Rejected(f"{topic_name} has {topic.queue_count} queues, no queue {queue_id}")
    if place.isdecimal() and queue_id is None and topic.queue_count > 1:
        raise Rejected(
            f"an offset is a place of one queue: name it with --queue, {place} of which?"
        )
    rows = []
    for number in range(topic.queue_count) if queue_id is None else [queue_id]:
        known = progress.queues.get((topic_name, number))
        before = known.committed if known and known.committed >= 0 else None
        after = offset_of(place, str(store_of(home)), board, topic, number)
        slot = board.queue(topic.queue_base + number)
        if not slot["min_offset"] <= after <= slot["max_offset"]:
            held = f"{slot['min_offset']} to {slot['max_offset']}"
            raise Rejected(f"{topic_name}/{number} holds offsets {held}, not {after}")
        rows.append(
            {
                "topic": topic_name,
                "queue": number,
                "before": before,
                "after": after,
                "lag": slot["max_offset"] - after,
            }
        )
    return rows


def _carry_out(home: Path, wish: Wish, plan: Callable[[Board, TopicSlot], Rows]) -> Rows:
    """Set the offsets; rows say what they were at that moment."""
    from gantrymq.clients.groupreset import reset_offsets

    rows: Rows = []

    def offsets(board: Board, topic: TopicSlot) -> dict[int, int]:
        rows.extend(plan(board, topic))
        return {row["queue"]: row["after"] for row in rows}

    before = reset_offsets(home, wish.group, wish.topic, offsets, wish.patience_s)
    for row in rows:
        known = before.get(row["queue"], -1)
        row["before"] = known if known >= 0 else None
    return rows
