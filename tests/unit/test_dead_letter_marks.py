"""Marks of dead letters are by queue offset: no other letter may ever have the offset of a mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.brokerd.delays import dead_letters
from gantrymq.brokerd.metadata import Metadata
from gantrymq.cli import dlq_letters
from gantrymq.cli.dlq_letters import DeadLetters
from gantrymq.clients.home import store_of
from gantrymq.shm import layout
from gantrymq.shm.board import Board
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.groups.deadletternote import FILE, DeadLetterNote, read_note, write_note
from tests.support.trials import mends
from tests.unit.test_metadata import Found, make_board, open_metadata

#: Of its one queue: all units are of letters that have expired.
GONE = (100, 100, 100)


def topic_of(group: str) -> str:
    return f"%DLQ%{group}"


def made(store: Path, board: Board, *groups: str) -> Metadata:
    """A store in which these groups have had a hundred dead letters."""
    metadata = open_metadata(store, board)
    for group in groups:
        slot = metadata.open(topic_of(group), create=True, of_member=True)
        board.set_word(board.queue_at(slot.queue_base) + layout.QUEUE_NEXT_OFFSET, GONE[0])
    return metadata


def mark(store: Path, *groups: str) -> None:
    note = DeadLetterNote()
    for group in groups:
        note.of(group, 0).purged.append((0, GONE[0]))
    write_note(PosixStorage(str(store)), note)


def start(store: Path, board: Board, *groups: str) -> Metadata:
    """A start on a log that has nothing of these groups' letters any more."""
    found = {(topic_of(group), 0): GONE for group in groups}
    return open_metadata(store, board, Found(queues=found))


@mends("S206")
@pytest.mark.parametrize("is_damaged", [False, True])
def test_offsets_that_have_marks_do_not_come_again(store_dir: Path, *, is_damaged: bool) -> None:
    """Not if the file with the marks is damaged either: it may be put back."""
    metadata = made(store_dir, make_board(), "marked", "other")
    for group in ("marked", "other"):
        metadata.delete(topic_of(group))
    mark(store_dir, "marked")
    text = (store_dir / FILE).read_bytes()
    if is_damaged:
        (store_dir / FILE).write_bytes(text[:-9])
    start(store_dir, make_board(), "marked", "other")
    (store_dir / FILE).write_bytes(text)
    board = make_board()
    again = start(store_dir, board, "marked").open(topic_of("marked"), create=True, of_member=True)
    at = board.queue_at(again.queue_base)
    board.set_word(at + layout.QUEUE_MAX_OFFSET, GONE[0] + 5)
    counts = {row.group: row.messages for row in dead_letters(board, PosixStorage(str(store_dir)))}
    assert (board.word(at + layout.QUEUE_NEXT_OFFSET), counts) == (GONE[0], {"marked": 5})
    assert {topic.name for topic in board.topics()} == {topic_of("marked")}


@mends("S206")
def test_marks_of_a_deleted_topic_go_and_then_it_does(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever changes marks next leaves them out; the board is that of the broker of then."""
    home = store_dir / "home"
    store = store_of(home)
    store.mkdir(parents=True)
    boards = [make_board(), make_board()]
    monkeypatch.setattr(dlq_letters, "running_board", lambda _home: boards[0])
    made(store, boards[0], "there", "gone")
    mark(store, "there", "gone", "never")
    dead = DeadLetters(home)
    boards.pop(0)
    start(store, boards[0], "there", "gone").delete(topic_of("gone"))
    dead.refresh()
    write_note(dead.storage, dead.note)
    assert read_note(PosixStorage(str(store))).marked() == {"there"}
    board = make_board()
    start(store, board, "there", "gone")
    assert [topic.name for topic in board.topics()] == [topic_of("there")]
