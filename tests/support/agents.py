"""A broker's agents as a test sees them: processes, restarts, positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gantrymq.clients.home import read_board_file
from gantrymq.shm import layout
from gantrymq.shm.board import Board, attach_board
from gantrymq.shm.codes import BrokerState, Role
from tests.support.watchdog import poll_until

AGENTS = tuple(role for role in Role if role is not Role.SUPERVISOR)


def board_of(home: Path) -> Board:
    """The board of the life that runs."""
    return attach_board(read_board_file(home)["board"])


def pid_of(home: Path, role: Role) -> int:
    """An agent's process; waits while it is being replaced."""
    return poll_until(lambda: int(board_of(home).process(role)["pid"]), f"{role.name} runs")


def restarts_of(home: Path) -> dict[Role, int]:
    """How many times each agent was started again."""
    board = board_of(home)
    return {role: int(board.process(role)["restarts"]) for role in AGENTS}


def wait_until_shown(home: Path) -> None:
    """Until every record is in its queue, visible, and on the disk; the broker must be well."""
    board = board_of(home)

    def is_shown() -> bool:
        assert board.half(layout.BOARD_STATE) == BrokerState.READY
        appended = board.word(layout.BOARD_APPENDED)
        behind = (layout.BOARD_DISPATCHED, layout.BOARD_DURABLE)
        return all(board.word(word) == appended for word in behind) and _queues_are_level(board)

    poll_until(is_shown, "all is dispatched and durable")


def _queues_are_level(board: Board) -> bool:
    for topic in board.topics():
        for number in range(topic.queue_base, topic.queue_base + topic.queue_count):
            words = board.queue(number)
            if not words["next_offset"] == words["written"] == words["max_offset"]:
                return False
    return True


def log_lines(home: Path) -> list[dict[str, Any]]:
    """What a temporary broker has logged in all its lives."""
    text = (home / "broker.log").read_text(errors="replace")
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
