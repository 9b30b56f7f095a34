"""`gantrymq group reset-offset`: where a group goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clients.home import store_of
from gantrymq.cli.board import running_board
from gantrymq.cli.topic import find_topic
from shm.errors import Rejected

if TYPE_CHECKING:
    from pathlib import Path

    from workers.ledger import GroupProgress


def plan(
    home: Path, progress: GroupProgress, topic_name: str, queue_id: int | None, place: str
) -> list[dict[str, Any]]:
    """A row for each queue: its offset before and after, and the messages in between.

    Raises Rejected.
    """
    from clients.groupreset import offset_of

    board = running_board(home)
    topic = find_topic(board, topic_name)
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
                "board_queue": topic.queue_base + number,
            }
        )
    return rows


def carry_out(home: Path, group: str, rows: list[dict[str, Any]], patience_s: float) -> None:
    """Set the offsets; rows say afterwards what they were at that moment."""
    from clients.groupreset import reset_offsets

    wanted = {row["board_queue"]: row["after"] for row in rows}
    before = reset_offsets(home, group, wanted, patience_s)
    for row in rows:
        known = before.get(row["board_queue"], -1)
        row["before"] = known if known >= 0 else None
