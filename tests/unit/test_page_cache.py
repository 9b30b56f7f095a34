"""The log's end stays in memory, what lies behind goes: only what is durable, read and sealed."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from gantrymq.brokerd import pagecache
from gantrymq.brokerd.flusher import Flusher
from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.shm.sidecar import DIRECTORY as SIDECARS
from gantrymq.shm.storage import PosixFile
from tests.support.parking import Life, Parked
from tests.support.simclock import SimClock

SEGMENT = 1 << 16
KEEP = 1 << 16
STEP = 1 << 13
Call = tuple[int, int, int]  # base, start, count


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What files let go of."""
    found: list[Call] = []
    let_go = PosixFile.let_go

    def noted(file: PosixFile, start: int, count: int) -> None:
        found.append((int(Path(file.name).name), start, count))
        let_go(file, start, count)

    monkeypatch.setattr(PosixFile, "let_go", noted)
    monkeypatch.setattr(pagecache, "STEP_BYTES", STEP)
    return found


def fill(life: Life, segments: int) -> None:
    """Append so many segments of records, and let all agents work."""
    number = 0
    while life.board.word(layout.BOARD_APPENDED) < segments * SEGMENT:
        number += 1
        life.park(Parked("later", 0, {"UNIQ_KEY": f"{number:032x}"}, body=b"x" * 2000))
    life.run_for(3000)


def a_life(directory: Path, **sizes: object) -> Life:
    given = {"mapped_file_size_commit_log": SEGMENT, "log_page_cache": KEEP, **sizes}
    return Life(directory, SimClock(), given)


@pytest.mark.parametrize("index", [False, True])
def test_pages_far_behind_are_let_go_of_once(
    tmp_path: Path, calls: list[Call], index: bool
) -> None:
    """From the first one on, without gaps, and none of the last `log_page_cache` bytes."""
    life = a_life(tmp_path, message_index_enable=index)
    fill(life, 5)
    places = [base + start for base, start, _count in calls]
    ends = [place + count for place, (_, _, count) in zip(places, calls, strict=True)]
    assert places[0] == 0
    assert places[1:] == ends[:-1]
    durable = life.board.word(layout.BOARD_DURABLE)
    assert ends[-1] <= durable - KEEP
    assert ends[-1] > durable - KEEP - SEGMENT - STEP
    life.stop()


def test_nothing_is_let_go_of_that_somebody_has_to_read(tmp_path: Path, calls: list[Call]) -> None:
    """A segment without its sidecar, and what is not in the queues yet, is read once more."""
    life = a_life(tmp_path)
    fill(life, 5)
    done = calls.copy()
    pages = pagecache.PageCache(life.storage, life.board, KEEP, indexed=False)
    pages._next = 0
    life.storage.unlink(f"{SIDECARS}/{SEGMENT:020d}")
    durable = life.board.word(layout.BOARD_DURABLE)
    while pages.follow(durable):
        pass
    assert pages._next == SEGMENT, "what has no sidecar stays, and all behind it"
    life.board.set_word(layout.BOARD_DISPATCHED, KEEP)
    pages._next = 0
    assert pages.follow(durable) == 0
    life.board.set_word(layout.BOARD_DISPATCHED, durable)
    life.board.set_word(layout.BOARD_INDEXED, KEEP)
    assert pagecache.PageCache(life.storage, life.board, KEEP, indexed=True).follow(durable) == 0
    assert len(calls) > len(done)


def test_segments_that_retention_took_are_passed_over(tmp_path: Path, calls: list[Call]) -> None:
    """What is gone has no sidecar and needs no care; what is behind it does."""
    life = a_life(tmp_path)
    fill(life, 6)
    calls.clear()
    pages = pagecache.PageCache(life.storage, life.board, KEEP, indexed=False)
    pages._next = 0
    for directory in ("commitlog", SIDECARS):
        life.storage.unlink(f"{directory}/{0:020d}")
    life.board.set_word(layout.BOARD_LOW, SEGMENT)
    life.storage.unlink(f"commitlog/{SEGMENT:020d}")  # amid its steps
    while pages.follow(life.board.word(layout.BOARD_DURABLE)):
        pass
    bases = {base for base, _start, _count in calls}
    assert bases == set(range(2 * SEGMENT, pages._next, SEGMENT))
    assert len(bases) > 1


def test_without_a_bound_the_kernel_decides(tmp_path: Path, calls: list[Call]) -> None:
    """`log_page_cache = 0`."""
    life = a_life(tmp_path, log_page_cache=0)
    fill(life, 4)
    assert calls == []
    life.stop()


def test_an_error_is_noted_and_harms_nobody(
    tmp_path: Path, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is as durable as before, and the flusher goes on."""

    def failing(_file: PosixFile, _start: int, _count: int) -> None:
        raise OSError(22, "no advice here")

    monkeypatch.setattr(PosixFile, "let_go", failing)
    life = a_life(tmp_path)
    fill(life, 4)
    events = [event for _level, event, _fields in life.tables[Role.FLUSHER].notes]
    assert events == ["log_stays_in_memory"]
    durable = life.board.word(layout.BOARD_DURABLE)
    assert durable == life.board.word(layout.BOARD_APPENDED)
    assert calls == []


def test_who_waits_for_a_sync_waits_for_little_of_it(
    tmp_path: Path, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durable messages come first; what is behind goes a few pages after each sync."""
    monkeypatch.setattr(pagecache, "HURRIED_BYTES", 2 * STEP)
    life = a_life(tmp_path)
    fill(life, 5)
    flusher = cast("Flusher", life.agents[Role.FLUSHER])
    now_ns = life.clock.monotonic_ns()
    steps = []
    for wanted in (life.board.word(layout.BOARD_APPENDED) + 1, 0):
        flusher._pages._next = 0
        calls.clear()
        life.board.set_word(layout.BOARD_DURABLE_WANTED, wanted)
        flusher.do_work(now_ns)
        steps.append(len(calls))
    assert steps[0] == 2
    assert steps[1] > 20


def test_it_keeps_up_while_somebody_always_waits(
    tmp_path: Path, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much goes after a sync as was written before it."""
    monkeypatch.setattr(pagecache, "HURRIED_BYTES", STEP)
    life = a_life(tmp_path, log_page_cache=0)
    fill(life, 8)
    pages = pagecache.PageCache(life.storage, life.board, KEEP, indexed=False)
    pages._next = pages._seen = 0
    for durable in range(SEGMENT, 8 * SEGMENT, SEGMENT):
        pages.follow(durable, hurried=True)
    assert pages._next >= 6 * SEGMENT - STEP
    assert len(calls) > 7
