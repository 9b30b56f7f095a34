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
from tests.support.trials import mends

#: Messages are looked at for their names only.
BATCH = cast("Any", [SimpleNamespace(delivery_attempt=1, topic="t", message_id="")] * 100)


class Queue:
    """A window with rows that cover it without gaps."""

    def __init__(self, handoff: Handoff, queue_id: int = 0, rows: int = 100) -> None:
        self.handoff = handoff
        self.evicted = [0]
        assigned = Assigned(queue_id, MessageQueue("t", queue_id), 1, 0)
        self.window = Window(assigned, evicted=self.evicted)
        start = self.window.cover(rows - 1)
        self.run = Run(BATCH, list(range(rows)), self.window, 0, start)

    def put(self, *rows: int, **kind: bool) -> Chunk:
        chunk = Chunk(self.run, rows, **kind)
        if self.handoff.orderly:
            self.handoff.put_in_order(chunk)
        else:
            self.handoff.put(chunk)
        return chunk


def take(handoff: Handoff) -> Chunk:
    assert not nothing_is_ready(handoff), "a thread would wait"
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


def hang(handoff: Handoff, *, send_back: bool = True) -> Chunk:
    """A thread takes the next chunk; its first call takes too long."""
    chunk = take(handoff)
    chunk.current = chunk.rows.popleft()
    watch = Watch(handoff, Limits(17, 1000, send_back))
    for now in (0, 1000):
        watch.look(now)
    return chunk


@mends("S42")
def test_who_hangs_alone_holds_nobody_back_and_two_never_run_alone_at_once() -> None:
    handoff = Handoff(4)
    queue = Queue(handoff)
    for row in range(6):
        queue.put(row, alone=row in (0, 2))
    hangs = hang(handoff)
    assert [failure.offset for failure in handoff.failures] == [0]
    work(handoff, take(handoff))
    alone = take(handoff)
    assert (alone.rows[0], nothing_is_ready(handoff)) == (2, True)
    handoff.finish(hangs, 1)
    assert nothing_is_ready(handoff), "its end does not stand for the other's"
    work(handoff, alone)
    assert [take(handoff).rows[0] for _ in range(3)] == [3, 4, 5]
    assert queue.window.done() == [(1, 3)]


@mends("S42")
def test_who_runs_alone_waits_for_nobody_that_hangs() -> None:
    """Whenever that call ends, its thread has nothing to go on with beside who runs alone."""
    handoff = Handoff(1)
    queue = Queue(handoff)
    queue.put(0, 1)
    queue.put(2, alone=True)
    hangs = hang(handoff)
    alone = take(handoff)
    assert (alone.rows[0], nothing_is_ready(handoff)) == (2, True)
    assert not hangs.rows
    work(handoff, alone)
    assert take(handoff).rows[0] == 1
    assert queue.window.done() == [(2, 3)]


@mends("S42")
def test_a_queue_is_given_back_though_a_call_for_it_hangs_that_was_sent_back() -> None:
    handoff = Handoff(1)
    queue = Queue(handoff)
    queue.put(0)
    hangs = hang(handoff)
    assert not queue.window.is_idle, "`groups` has not answered"
    queue.window.owed -= 1
    assert queue.window.is_idle
    assert not handoff.is_at_work
    handoff.finish(hangs, 1)
    assert (queue.window.running, handoff.refused) == (0, 0)


@mends("S42")
def test_ordered_who_hangs_alone_holds_its_queue_back_and_no_other() -> None:
    handoff = Handoff(4, orderly=True)
    one, other = Queue(handoff, 0), Queue(handoff, 1)
    one.put(0, alone=True)
    one.put(1, 2)
    beside = other.put(0)
    hangs = hang(handoff, send_back=False)
    assert take(handoff) is beside
    assert nothing_is_ready(handoff)
    assert handoff.is_at_work
    work(handoff, beside)
    handoff.finish(hangs, 1)
    other.put(1, alone=True)
    hangs = hang(handoff, send_back=False)
    alone = take(handoff)
    assert alone.run is other.run
    handoff.finish(hangs, 2)
    assert nothing_is_ready(handoff), "what is behind it in its chunk waits as well"
    work(handoff, alone)
    assert list(take(handoff).rows) == [2]


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
    handoff.go_on(one.window)
    assert take(handoff) is first
    assert list(first.rows) == [1, 2]


@mends("S43")
def test_ordered_a_lease_waits_for_the_call_that_one_before_has_left_and_so_does_its_end() -> None:
    handoff = Handoff(4, orderly=True)
    before = Queue(handoff)
    before.put(0)
    left = take(handoff)
    left.current = left.rows.popleft()
    for _ in range(2):  # the second one is lost meanwhile, too
        before.window.held = False
        after = Queue(handoff)
        handoff.welcome(after.window)
        again = after.put(0)
        assert nothing_is_ready(handoff)
        assert not after.window.is_idle
        before = after
    handoff.finish(left, 1)
    assert take(handoff) is again
    work(handoff, again)
    assert (after.window.is_idle, after.window.committed) == (True, 1)


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
