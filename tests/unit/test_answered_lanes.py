"""A writer that is killed as it answers: what was told to be refused is not stored by the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gantrymq.brokerd.lanes import take_cursors
from gantrymq.clients.lane import WriterLane
from gantrymq.clients.writerlink import WriterLink
from gantrymq.shm import layout
from gantrymq.shm.codes import ParkMode, Status
from gantrymq.shm.kernels import frames, ring
from gantrymq.shm.kernels.words import load_word, store_word
from tests.support.memory_sessions import memory_board, memory_session
from tests.support.simbell import SimBell
from tests.support.trials import mends
from tests.unit.test_park import Parking, machine

AT_ONCE = (int(ParkMode.NONE), 0)
#: What the writer stores of a lane as it answers, in its order.
STORES = (
    layout.LANE_NEXT_DOWN, layout.LANE_NEXT_UP, layout.LANE_DOWN_TAIL, layout.LANE_UP_HEAD,
)  # fmt: skip


@pytest.fixture
def parking(tmp_path: Path) -> Iterator[Parking]:
    made = machine(tmp_path / "store", ("orders", 1))
    yield made
    made.close()


def refuse_one(parking: Parking, done: int) -> list[dict[str, int]]:
    """A full disk refuses a message, and the writer dies behind so many of its stores.

    What the client has read of it.
    """
    arena, control = parking.session.arena, parking.session.plan.writer.control
    route = parking.route("orders")
    parking.put(route, AT_ONCE, b"first")
    assert [answer["status"] for answer in parking.settle()] == [Status.OK]
    before = {word: load_word(arena, control + word) for word in STORES}
    parking.board.set_half(layout.BOARD_DISK_FULL, 1)
    parking.put(route, AT_ONCE, b"refused")
    parking.agents[0].do_work(parking.clock.monotonic_ns())
    for word in STORES[done:]:
        store_word(arena, control + word, before[word])
    return parking.answers()


@mends("S215")
@pytest.mark.parametrize("done", range(len(STORES) + 1))
def test_what_was_refused_is_not_stored_by_the_next_writer(parking: Parking, done: int) -> None:
    """P1, P7: answered once, and stored only where nobody was told that it is not."""
    answers = refuse_one(parking, done)
    was_told = done >= 3
    assert [answer["status"] for answer in answers] == [Status.DISK_FULL] * was_told
    parking.board.set_half(layout.BOARD_DISK_FULL, 0)
    parking.replace_writer()
    answers = parking.settle()
    assert [answer["status"] for answer in answers] == [Status.OK] * (not was_told)
    control = parking.session.plan.writer.control
    assert load_word(parking.session.arena, control + layout.LANE_UP_HEAD) == load_word(
        parking.session.arena, control + layout.LANE_UP_TAIL
    )
    parking.put(0, AT_ONCE, b"last")
    assert [answer["status"] for answer in parking.settle()] == [Status.OK]
    stored = [b"first", b"last"] if was_told else [b"first", b"refused", b"last"]
    assert [record.body for record in parking.records()] == stored


@pytest.mark.parametrize("up", [-8, 4, 1 << 40])
def test_a_client_that_writes_over_the_words_harms_itself_alone(parking: Parking, up: int) -> None:
    """They count only between head and tail; a cursor that cannot be ends the session."""
    refuse_one(parking, len(STORES) - 1)
    arena, control = parking.session.arena, parking.session.plan.writer.control
    head = load_word(arena, control + layout.LANE_UP_HEAD)
    store_word(arena, control + layout.LANE_NEXT_UP, head + up)
    words = take_cursors(parking.session)
    assert words is None if up == 4 else words is not None and words[frames.UP_CURSOR] == head


@mends("S215")
def test_what_was_refused_is_not_sent_again_to_the_next_broker(parking: Parking) -> None:
    """The broker died as it answered: its client reads the answer, and what it had not taken."""
    refuse_one(parking, len(STORES) - 1)
    made, old = memory_session(2), parking.session
    link, board = WriterLink(None, 1.0), memory_board({"orders": 1})
    lane = WriterLane(old.arena, old.plan.writer, 0, 0)
    lane.words[:] = parking.lane[: len(lane.words)]

    def session_of(arena: Any, plan: Any) -> Any:  # noqa: ANN401
        return SimpleNamespace(
            arena=arena, plan=plan, board=board, writer_bell=SimBell(), bell=SimBell(),
            store_failed=False, close=lambda: None,
        )  # fmt: skip

    link._attach(session_of(old.arena, old.plan), lane)
    form = np.array([0, 0, -1, 0, 0, 0], np.int64)
    none = np.zeros(0, np.uint8)
    assert ring.put(old.arena, lane.words, form, np.frombuffer(b"unanswered", np.uint8), none) == 3
    link._go_on_with(session_of(made.arena, made.plan))
    assert [seq for seq, _entry in link.lane.unsettled()] == [3]
