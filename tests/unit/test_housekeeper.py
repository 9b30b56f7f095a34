"""The housekeeper: sealing beside a reader that never rests, sidecars, pace, bounded steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gantrymq.shm import layout, sidecar
from gantrymq.shm.codes import Role
from gantrymq.shm.lognames import segment_name
from gantrymq.shm.properties import encode_properties
from gantrymq.shm.storage import PosixFile, PosixStorage, map_file, read_file
from gantrymq.workers.housekeeper import pace, sidecars
from gantrymq.workers.housekeeper.pace import Pace
from gantrymq.workers.housekeeper.progress import PROGRESS_FILE, read_progress
from gantrymq.workers.outlet import Copy
from tests.support.memory_sessions import memory_board
from tests.support.parking import HOST, Life, Parked
from tests.support.simclock import SimClock

SEGMENT = 1 << 16
MS = 1_000_000


def a_life(directory: Path, **more: object) -> Life:
    sizes = {"mapped_file_size_commit_log": SEGMENT, **more}
    return Life(directory, SimClock(), sizes, topics=("later", "a", "payments"))


def put(life: Life, topic: str, body: bytes) -> None:
    """Append a message soon; nobody waits for it."""
    made = Copy(
        life.slot(topic), 0, body, encode_properties({}), -1, 0, 0, life.clock.wall_ms(),
        HOST, HOST, 0,
    )  # fmt: skip
    assert life.outlet.put(made, None)
    life.outlet.poll()


def fill(life: Life, segments: int) -> None:
    """So many segments of records of several topics, and time for all agents."""
    number = 0
    while life.board.word(layout.BOARD_APPENDED) < segments * SEGMENT:
        number += 1
        topic = ("later", "a", "payments")[number % 3]
        life.park(Parked(topic, 0, {}, body=bytes(number % 2000)))
    life.run_for(3000)


def sealed(storage: PosixStorage) -> list[str]:
    return [name for name in storage.list(sidecar.DIRECTORY) if name.isdigit()]


def test_a_reader_that_never_rests_starves_no_sealing(tmp_path: Path) -> None:
    """Segments are sealed and progress is noted while each cycle of the reader has work."""
    life = a_life(tmp_path)
    life.park(Parked("a", 0, {}))
    life.settle()
    rests: list[int] = []
    reader = life.agents[Role.READER]
    do_work = reader.do_work

    def watched(now_ns: int) -> int:
        work = do_work(now_ns)
        rests.append(not work)
        return work

    reader.do_work = watched  # type: ignore[method-assign]
    for _ in range(5_000):
        put(life, "a", bytes(1000))
        life.turn()
        life.clock.advance(MS)
        if len(sealed(life.storage)) > 3:
            break
    assert not any(rests), "it has rested"
    assert len(sealed(life.storage)) > 3
    progress = read_progress(life.storage)
    assert progress is not None
    assert progress[0] >= 3 * SEGMENT
    life.run_for(1000)
    life.stop()


@pytest.mark.parametrize("records", [1, 7, 2048])
def test_a_sidecar_is_the_same_whoever_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """In any number of steps, byte for byte as from the segment in one go."""
    monkeypatch.setattr(sidecars, "RECORDS_A_STEP", records)
    monkeypatch.setattr(sidecars, "PIECES_A_STEP", 3)
    life = a_life(tmp_path)
    fill(life, 4)
    names = sealed(life.storage)
    assert len(names) >= 3
    for name in names:
        view = map_file(life.storage, segment_name(int(name)))
        built = sidecar.build_from_segment(view, int(name))
        assert len(built.names) > 2
        assert read_file(life.storage, f"{sidecar.DIRECTORY}/{name}") == built.encode()
    life.stop()


def test_a_segment_with_a_topic_that_nobody_knows_is_sealed(tmp_path: Path) -> None:
    """As in a restored store whose config/topics.json is older than its log."""
    life = a_life(tmp_path)
    fill(life, 3)
    first = sealed(life.storage)[0]
    path = f"{sidecar.DIRECTORY}/{first}"
    before = read_file(life.storage, path)
    life.storage.unlink(path)
    slot = life.slot("payments")
    life.board.memory[life.board.topic_at(slot) + layout.TOPIC.offset("name")] ^= 1
    life.kill(Role.HOUSEKEEPER)
    life.run_for(1000)
    assert read_file(life.storage, path) == before


def test_records_of_unknown_topics_are_found_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step walks more of a segment than its share, however small that is."""
    life = a_life(tmp_path)
    fill(life, 2)
    name = sealed(life.storage)[0]
    view = map_file(life.storage, segment_name(int(name)))
    spans: list[int] = []
    walk = sidecar.walk

    def noted(view: NDArray[np.uint8], base: int, *limits: int) -> NDArray[np.int64]:
        found = walk(view, base, *limits)
        spans.append(len(found))
        return found

    monkeypatch.setattr(sidecar, "walk", noted)
    steps = sidecar.build_in_steps(view, int(name), 1000)
    built = None
    while built is None:
        before = len(spans)
        try:
            next(steps)
        except StopIteration as end:
            built = end.value
        assert len(spans) - before <= 1
    assert max(spans) <= 1000 // layout.RECORD_BYTES_MIN + 1
    assert built.encode() == read_file(life.storage, f"{sidecar.DIRECTORY}/{name}")
    life.stop()


def test_units_made_anew_are_noted_though_all_is_sealed(tmp_path: Path) -> None:
    """A start without gantry/queues.json makes them all: the next one need not."""
    life = a_life(tmp_path)
    fill(life, 3)
    life.storage.unlink(PROGRESS_FILE)
    life.kill(Role.HOUSEKEEPER)
    life.run_for(1000)
    progress = read_progress(life.storage)
    assert progress is not None
    assert progress[0] >= 3 * SEGMENT
    life.stop()


def test_no_step_of_sealing_syncs_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others share its loop in some profiles, and the processor in all."""
    syncs: list[str] = []
    most: list[int] = []
    sync = PosixFile.sync

    def noted(file: PosixFile) -> None:
        syncs.append(file.name)
        sync(file)

    life = a_life(tmp_path)
    housekeeper = life.agents[Role.HOUSEKEEPER]
    do_work = housekeeper.do_work

    def watched(now_ns: int) -> int:
        before = len(syncs)
        monkeypatch.setattr(PosixFile, "sync", noted)
        work = do_work(now_ns)
        monkeypatch.setattr(PosixFile, "sync", sync)
        most.append(len(syncs) - before)
        return work

    housekeeper.do_work = watched  # type: ignore[method-assign]
    fill(life, 4)
    assert max(most) == 1
    assert {name.partition("/")[0] for name in syncs} == {"consumequeue", "gantry", "checkpoint"}
    life.stop()


def test_its_share_grows_with_what_is_left_to_do() -> None:
    """A small part of a processor while messages come, more far behind, most when none comes."""
    board = memory_board({})
    found = Pace(board)
    spent = 10 * MS
    rests = []
    for stride in (0, 1, 2, 3, 9):
        board.set_word(layout.BOARD_APPENDED, board.word(layout.BOARD_APPENDED) + 1)
        position = board.word(layout.BOARD_APPENDED) - stride * pace.STRIDE_BYTES
        rests.append(found.rest_ns(MS, spent, position))
    assert rests[0] == min(15 * spent, pace.REST_MAX_NS)
    assert rests[1:] == [7 * spent, 3 * spent, spent, spent]
    quiet = found.rest_ns(MS + pace.QUIET_NS, spent, board.word(layout.BOARD_APPENDED))
    assert quiet == spent // 3


def test_short_steps_add_up_to_a_rest() -> None:
    """Each costs two switches of a process; none is forgotten."""
    board = memory_board({})
    board.set_word(layout.BOARD_APPENDED, 1)
    found = Pace(board)
    step = pace.REST_MIN_NS // 40
    rests = np.array([found.rest_ns(MS, step, 1) for _ in range(30)])
    assert (rests == 0).sum() == 20
    assert rests.sum() == 30 * 15 * step
