"""Chunks between the fetching thread and listeners, one step at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gantrymq.clients.assigned import Assigned
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.push.chunks import CHUNK_NS, CHUNK_ROWS, Chunk, Failure, Pace, Run
from gantrymq.clients.push.handoff import Handoff
from gantrymq.clients.push.watch import RELIEF_NS, Limits, Watch
from gantrymq.clients.push.window import Window

NO_BATCH = cast("Any", SimpleNamespace())


class Queue:
    """A window with rows that cover it without gaps."""

    def __init__(self, handoff: Handoff, queue_id: int = 0, rows: int = 100) -> None:
        self.handoff = handoff
        self.evicted = [0]
        assigned = Assigned(queue_id, MessageQueue("t", queue_id), 1, 0)
        self.window = Window(assigned, evicted=self.evicted)
        start = self.window.cover(rows - 1)
        self.run = Run(NO_BATCH, list(range(rows)), self.window, 0, start)

    def put(self, *rows: int, **kind: bool) -> Chunk:
        chunk = Chunk(self.run, rows, **kind)
        if self.handoff.orderly:
            self.handoff.put_in_order(chunk)
        else:
            self.handoff.put(chunk)
        return chunk


def take(handoff: Handoff) -> Chunk:
    chunk = handoff.take()
    assert chunk is not None
    return chunk


def work(handoff: Handoff, chunk: Chunk) -> None:
    """Finish all rows of a chunk that was taken."""
    while chunk.rows:
        chunk.current = chunk.rows.popleft()
    handoff.finish(chunk, chunk.current + 1)


def nothing_is_ready(handoff: Handoff) -> bool:
    return handoff._ready.empty()


def test_one_that_runs_alone_waits_for_all_before_it_and_holds_back_all_behind() -> None:
    handoff = Handoff(4)
    queue = Queue(handoff)
    before = [queue.put(0), queue.put(1)]
    alone = queue.put(2, alone=True)
    behind = queue.put(3)
    first, second = take(handoff), take(handoff)
    assert [first, second] == before
    assert nothing_is_ready(handoff)
    work(handoff, second)
    assert nothing_is_ready(handoff)
    work(handoff, first)
    assert take(handoff) is alone
    assert nothing_is_ready(handoff)
    work(handoff, alone)
    assert take(handoff) is behind


def test_what_ends_after_the_broker_has_ended_the_session_is_refused() -> None:
    """Listener and fetching thread may both have stood still: the one need not see it first."""
    handoff = Handoff(1)
    queue = Queue(handoff)
    queue.put(0)
    queue.put(1)
    work(handoff, take(handoff))
    late = take(handoff)
    queue.evicted[0] = 1
    work(handoff, late)
    assert (queue.window.committed, handoff.refused) == (1, 1)


def test_rows_of_a_slow_chunk_go_to_idle_threads_and_its_done_ones_are_acknowledged() -> None:
    handoff = Handoff(3)
    queue = Queue(handoff)
    queue.put(*range(10))
    chunk = take(handoff)
    for _ in range(4):
        chunk.current = chunk.rows.popleft()
    watch = Watch(handoff, Limits(17, 1 << 60, True))
    watch.look(0)
    assert list(chunk.rows) == [4, 5, 6, 7, 8, 9]
    watch.look(RELIEF_NS)
    assert queue.window.committed == 3
    assert not chunk.rows
    others = [take(handoff), take(handoff)]
    assert [list(other.rows) for other in others] == [[4, 5, 6], [7, 8, 9]]
    work(handoff, others[1])
    handoff.finish(chunk, 4)
    assert queue.window.committed == 4
    assert queue.window.done() == [(7, 10)]
    work(handoff, others[0])
    assert queue.window.committed == 10


def test_what_takes_too_long_is_given_away_once() -> None:
    """RD-43; what its listener says in the end counts for nothing."""
    handoff = Handoff(1)
    queue = Queue(handoff)
    queue.put(0)
    chunk = take(handoff)
    chunk.current = chunk.rows.popleft()
    watch = Watch(handoff, Limits(17, 1000, True))
    for now in (0, 1000, 2000):
        watch.look(now)
    (failure,) = handoff.failures
    assert (failure.offset, failure.delay) == (0, 0)
    chunk.untold.append((0, failure))
    handoff.finish(chunk, 1)
    assert len(handoff.failures) == 1
    assert queue.window.committed == 0
    assert not queue.window.is_idle


def test_what_has_failed_amid_a_chunk_that_takes_long_is_told_before_its_end() -> None:
    handoff = Handoff(1)
    queue = Queue(handoff)
    queue.put(0, 1)
    chunk = take(handoff)
    run = chunk.run
    failure = Failure(run.window, run.low(0), run.offsets[0], 0, "why", chunk, False)
    chunk.untold.append((chunk.rows.popleft(), failure))
    chunk.current = chunk.rows.popleft()
    watch = Watch(handoff, Limits(17, 10**12, True))
    for now in (0, RELIEF_NS):
        watch.look(now)
    assert list(handoff.failures) == [failure]
    handoff.finish(chunk, 2)
    assert len(handoff.failures) == 1
    assert queue.window.done() == [(1, 2)]


def test_ordered_one_chunk_of_a_queue_is_out_and_a_failed_one_comes_first_again() -> None:
    handoff = Handoff(4, orderly=True)
    one, other = Queue(handoff, 0), Queue(handoff, 1)
    first = one.put(0, 1, 2)
    one.put(3)
    beside = other.put(0)
    assert [take(handoff), take(handoff)] == [first, beside]
    assert nothing_is_ready(handoff)
    first.current = first.rows.popleft()
    first.current = first.rows.popleft()
    first.rows.appendleft(1)
    failure = Failure(one.window, 1, 1, 0, "why", first, True)
    handoff.finish(first, 1, failure)
    assert list(handoff.failures) == [failure]
    assert one.window.committed == 1
    assert nothing_is_ready(handoff)
    one.window.suspended = False
    handoff.go_on(first)
    assert take(handoff) is first
    assert list(first.rows) == [1, 2]


def test_a_halted_windows_chunks_are_dropped_and_late_results_refused() -> None:
    handoff = Handoff(2)
    queue = Queue(handoff)
    queue.put(0)
    queue.put(1)
    chunk = take(handoff)
    chunk.current = chunk.rows.popleft()
    queue.window.halted = True
    behind = Queue(handoff, 1).put(0)
    assert take(handoff) is behind
    queue.window.held = False
    handoff.finish(chunk, 1)
    assert handoff.refused == 1
    assert queue.window.committed == 0


def test_chunks_are_about_a_millisecond() -> None:
    pace = Pace()
    assert pace.rows == 1
    pace.note(1, CHUNK_NS // 10)
    assert pace.rows == 10
    pace.note(10, 100)
    assert pace.rows == CHUNK_ROWS
    for _ in range(200):
        pace.note(1, 5 * CHUNK_NS)
    assert pace.rows == 1
