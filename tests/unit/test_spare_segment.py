"""The spare segment is made beforehand, in pieces: who waits for a sync waits for one of them.

At a segment's end the writer waits for the one that the flusher is just making, if it grows.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.brokerd.commitlog import (
    BLOCK_BYTES,
    OF_FLUSHER,
    OF_WRITER,
    PIECES,
    SPARE,
    CommitLog,
    prepare_spare,
    room_for_segment,
)
from gantrymq.brokerd.config import load
from gantrymq.brokerd.flusher import NO_ROOM_NS, Flusher
from gantrymq.shm import layout, limits
from gantrymq.shm.codes import Role
from gantrymq.workers.agent import Bells
from tests.support.memory_sessions import MemorySessions, memory_board
from tests.support.parking import Life
from tests.support.simbell import SimBell
from tests.support.simclock import SimClock
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends
from tests.unit.test_reader_pace import Sender, write

SEGMENT = 1 << 20
#: More than half of a segment: it is time for the next one.
FILLED = SEGMENT * 5 // 8
CYCLES = 2 * PIECES
#: More is not made at a time.
PIECE = SEGMENT // 32


class Scene:
    """A flusher over a simulated disk whose log has one segment, more than half full."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.storage = SimStorage(self.disk)
        self.log = CommitLog(self.storage, SEGMENT, 0)
        self.board = memory_board({}, segment_bytes=SEGMENT)
        self.sessions = MemorySessions()
        self.clock = SimClock(0)
        self.flusher = self.begin()
        self.send(FILLED)

    def begin(self) -> Flusher:
        """Another flusher, as a successor is made."""
        settings = load(environment={}).settings
        bells = Bells.each(SimBell)
        return Flusher(self.storage, self.clock, self.board, self.sessions, bells, settings)

    def send(self, count: int = 100) -> None:
        """Somebody waits for so many bytes more."""
        end = self.board.word(layout.BOARD_APPENDED) + count
        self.board.set_word(layout.BOARD_APPENDED, end)
        self.board.set_word(layout.BOARD_DURABLE_WANTED, end)

    def step(self) -> int:
        """One cycle; how many bytes it has allocated."""
        known = len(self.disk.log)
        self.flusher.do_work(self.clock.monotonic_ns())
        calls = [line.split() for line in self.disk.log[known:]]
        return sum(int(words[-1]) - int(words[-2]) for words in calls if words[1] == "allocate")

    @property
    def is_durable(self) -> bool:
        """Whether all that somebody waits for is durable."""
        return self.board.word(layout.BOARD_DURABLE) == self.board.word(layout.BOARD_APPENDED)

    @property
    def files(self) -> list[str]:
        """What there is of spare segments."""
        return [name for name in self.storage.list("gantry") if name.startswith("spare")]


@mends("S241")
@pytest.mark.parametrize("between", [1, 7, CYCLES])
def test_a_sync_waits_for_one_piece_and_not_for_a_segment(between: int) -> None:
    """Whether others wait in each cycle, now and then, or not at all."""
    scene = Scene()
    scene.step()
    for number in range(CYCLES):
        if not number % between:
            scene.send()
        assert scene.step() <= PIECE
        assert scene.is_durable
    assert scene.files == ["spare"]
    assert scene.storage.size_of(SPARE) == SEGMENT
    scene.log.roll()
    assert scene.files == []
    scene.send(SEGMENT)
    assert [scene.step() for _ in range(CYCLES)].count(0) == CYCLES - PIECES
    assert scene.files == ["spare"]


@pytest.mark.parametrize("pieces", [1, PIECES // 2, PIECES])
def test_a_stop_leaves_no_part_of_it(pieces: int) -> None:
    """As it leaves no whole one."""
    scene = Scene()
    for _ in range(pieces):
        scene.step()
    scene.sessions.stop = True
    for _ in range(3):
        scene.step()
    assert scene.files == []


@pytest.mark.parametrize("pieces", [1, PIECES // 2, PIECES])
def test_a_successor_makes_it_anew(pieces: int) -> None:
    """What the dead one had made is not its, and goes."""
    scene = Scene()
    for _ in range(pieces):
        scene.step()
    scene.flusher = scene.begin()
    for _ in range(CYCLES):
        scene.step()
    assert scene.files == ["spare"]
    assert scene.storage.size_of(SPARE) == SEGMENT


def test_room_that_goes_meanwhile_is_not_taken_from_others() -> None:
    """F7: the part that is made goes, and it is made anew once there is room."""
    scene = Scene()
    for _ in range(PIECES // 2):
        scene.step()
    assert scene.files == ["spare.flusher"]
    scene.disk.capacity = scene.disk.used()
    scene.step()
    assert scene.files == []
    for _ in range(CYCLES):
        assert scene.step() == 0
    scene.disk.capacity = scene.disk.used() + room_for_segment(SEGMENT)
    scene.clock.advance(NO_ROOM_NS)
    for _ in range(CYCLES):
        scene.step()
    assert scene.files == ["spare"]


def test_the_writer_takes_one_of_its_own_while_it_is_made() -> None:
    """And what the flusher has begun becomes the one behind that."""
    scene = Scene()
    scene.step()
    prepare_spare(scene.storage, SEGMENT, "spare.writer")
    scene.log.roll()
    scene.send(SEGMENT // 2)
    for _ in range(CYCLES):
        scene.step()
    assert scene.files == ["spare"]
    scene.log.roll()
    assert scene.log.base == 2 * SEGMENT


STILL_NS = 20_000_000


@mends("S306")
def test_the_writer_waits_for_a_segment_that_grows() -> None:
    """Until it is there, or stands still: the flusher may be dead, or wait for its disk."""
    scene = Scene()
    assert not scene.log.is_next_coming(scene.clock.monotonic_ns())
    for _ in range(PIECES - 1):
        scene.step()
        assert scene.log.is_next_coming(scene.clock.monotonic_ns())
        scene.clock.advance(STILL_NS - 1)
        assert scene.log.is_next_coming(scene.clock.monotonic_ns())
    scene.clock.advance(1)
    assert not scene.log.is_next_coming(scene.clock.monotonic_ns())
    while "spare" not in scene.files:
        scene.step()
    assert not scene.log.is_next_coming(scene.clock.monotonic_ns())


@mends("S312")
def test_the_writer_waits_for_each_segment_anew() -> None:
    """A new one is smaller than the last one was; one that shrinks has failed."""
    scene = Scene()
    now_ns = scene.clock.monotonic_ns()
    while "spare" not in scene.files:
        scene.step()
        scene.log.is_next_coming(now_ns)
    scene.log.roll()
    scene.clock.advance(STILL_NS)
    coming = scene.storage.create(f"gantry/{OF_FLUSHER}")
    assert scene.log.is_next_coming(scene.clock.monotonic_ns()), "it has just come"
    coming.allocate(BLOCK_BYTES)
    assert scene.log.is_next_coming(scene.clock.monotonic_ns())
    coming.cut(0)
    scene.clock.advance(STILL_NS)
    assert not scene.log.is_next_coming(scene.clock.monotonic_ns())


@mends("S312")
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ELOOP])
def test_a_name_that_cannot_be_looked_at_is_no_segment_that_comes(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer died of it, and its successor."""
    scene = Scene()

    def fail(name: str) -> int:
        raise OSError(number, "no look", name)

    monkeypatch.setattr(scene.storage, "size_of", fail)
    assert not scene.log.is_next_coming(scene.clock.monotonic_ns())


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path / "store", SimClock(), {"mapped_file_size_commit_log": 1 << 20})
    yield made
    for agent in made.agents.values():
        agent.close()


def at_its_end(life: Life) -> Sender:
    """A sender with more in its ring than the segment takes; the flusher has begun the next."""
    sender = Sender(life)
    life.settle()
    sender.begin()
    end = life.board.word(layout.BOARD_APPENDED) // SEGMENT * SEGMENT + SEGMENT
    while not is_begun(life):
        sender.fill()
        write(life)
        life.agents[Role.FLUSHER].do_work(life.clock.monotonic_ns())
    while life.board.word(layout.BOARD_APPENDED) < end:
        sender.fill()
        write(life)
    sender.fill()
    assert sender.waiting
    return sender


def is_begun(life: Life) -> bool:
    return life.storage.exists(f"gantry/{OF_FLUSHER}")


@mends("S306")
def test_nothing_is_appended_until_the_next_segment_is_there(life: Life) -> None:
    at_its_end(life)
    while is_begun(life):
        assert write(life) == 0
        assert life.agents[Role.WRITER].arm(life.clock.monotonic_ns()) == limits.FLOOD_NAP_NS
        assert not life.storage.exists(f"gantry/{OF_WRITER}")
        life.agents[Role.FLUSHER].do_work(life.clock.monotonic_ns())
        life.clock.advance(STILL_NS // 2)
    assert write(life) > 0


@mends("S306")
@pytest.mark.parametrize("over", ["stop", "end"])
def test_a_session_that_ends_and_a_stop_wait_for_no_segment(life: Life, over: str) -> None:
    """All that was published by then is appended."""
    sender = at_its_end(life)
    table = life.tables[Role.WRITER]
    if over == "stop":
        table.stop = True
    else:
        table.detach(sender.session.session)
    life.agents[Role.WRITER].do_work(life.clock.monotonic_ns())
    assert is_begun(life)
    sender.heard()
    assert bool(sender.waiting) == (over == "end")  # nobody is told any more
    assert life.board.word(layout.BOARD_APPENDED) % SEGMENT
