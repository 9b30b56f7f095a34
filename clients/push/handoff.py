"""What the fetching thread and the listener threads of a push consumer share.

One lock, taken once or twice per chunk. Nothing here fetches, calls a listener or knows `groups`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from queue import SimpleQueue
from typing import Final

from gantrymq.clients.push.chunks import Chunk, Failure, Pace
from gantrymq.clients.push.window import Window
from gantrymq.clients.session import Session
from gantrymq.shm.fromhandlers import require_ours

#: More is fetched while fewer rows than this wait for a thread.
LOW_ROWS: Final = 512
#: `groups` is told of failures no more often than this: each time costs it, and both processes'
#: bells, more than dozens of messages do. A window lasts for longer.
GATHER_NS: Final = 8_000_000


_handoffs: weakref.WeakSet[Handoff] = weakref.WeakSet()


class Handoff:
    """Chunks on their way to listener threads, and what comes back from them."""

    def __init__(self, concurrency: int, *, orderly: bool = False) -> None:
        self.lock = threading.Lock()
        self.concurrency = concurrency
        self.orderly = orderly
        self.pace = Pace()
        self.failures: deque[Failure] = deque()
        self.running: set[Chunk] = set()
        self.crashed: BaseException | None = None  # a listener thread, by a fault of ours
        self.stopping = False  # True: no thread begins a message
        self.refused = 0  # acknowledgements that came after the lease was over
        self._ready: SimpleQueue[Chunk | None] = SimpleQueue()
        self._waiting = 0  # rows in `_ready`
        self._backlog: deque[Chunk] = deque()  # behind, or with, one that runs alone
        self._backlog_rows = 0
        self._lonely: Chunk | None = None  # such a one, on its way
        self._stuck: set[Chunk] = set()  # of `running`: others wait for them no longer
        #: Ordered: of `running`, those of leases that are over, and who has the queue by now.
        self._heirs: dict[Chunk, Window] = {}
        self._session: Session | None = None
        self._resting = False
        self._rung = False  # for a failure, since it began to rest
        self._gather_ns = 0  # until then failures wait for others
        _handoffs.add(self)

    # ------------------------------------------------------------------------- fetching thread

    def put(self, chunk: Chunk) -> None:
        """Hand a chunk over. With the lock."""
        if self._lonely is not None or self._backlog or chunk.alone:
            self._backlog.append(chunk)
            self._backlog_rows += len(chunk.rows)
            self._release()
        else:
            self._give(chunk)

    def welcome(self, window: Window) -> None:
        """A lease begins. With the lock.

        Ordered: if a call of one before still runs, this one's turn comes after it, and is not
        given away before.
        """
        for chunk in self.running if self.orderly else ():
            if chunk.run.window.queue == window.queue:
                self._heirs[chunk] = window
                window.busy = True
                window.running += 1

    def put_in_order(self, chunk: Chunk) -> None:
        """Hand a chunk over behind those of its queue. With the lock."""
        chunk.run.window.pending.append(chunk)
        self.go_on(chunk.run.window)

    def go_on(self, window: Window) -> None:
        """Ordered: let the next chunk of a queue be worked on. With the lock."""
        if window.pending and not window.busy and not window.suspended:
            window.busy = True
            self.put(window.pending.popleft())

    @property
    def wants_more(self) -> bool:
        """Whether there is too little for the listener threads."""
        return self._waiting + self._backlog_rows < LOW_ROWS

    def relieve(self) -> None:
        """Take from chunks that take long what is not begun, if a thread has nothing to do.

        What they have done is acknowledged without waiting for their end.
        """
        with self.lock:
            idle = self.concurrency - len(self.running)
            for chunk in list(self.running):
                current = chunk.current  # before: what fails below it is told of already
                self.collect(chunk)
                self.refused += chunk.settle(current)
                if idle > 0 and not self._waiting and not self.orderly:
                    self._take_over(chunk, idle)

    def pass_over(self, chunk: Chunk, *, sent_back: bool) -> None:
        """Let all go on but for the call that a chunk is at, which takes too long. With the lock.

        Its thread finds nothing more in the chunk, lest it goes on beside who has to run alone.
        What was sent back is no business of ours any more: its queue may go to another member.
        """
        self._stuck.add(chunk)
        window, rows = chunk.run.window, _rest_of(chunk)
        if rows and self.orderly:
            window.pending.appendleft(Chunk(chunk.run, rows))
        elif rows:
            self.put(Chunk(chunk.run, rows))
        if sent_back:
            chunk.sent_back = True
            window.running -= 1
        if self._lonely is chunk:
            self._lonely = None
        self._release()

    @property
    def is_at_work(self) -> bool:
        """Whether calls are under way that are worth waiting for."""
        return not all(chunk.sent_back for chunk in list(self.running))

    def _take_over(self, chunk: Chunk, idle: int) -> None:
        rows = _rest_of(chunk)
        size = max(1, len(rows) // idle)
        while rows:
            part = [rows.popleft() for _ in range(min(size, len(rows)))]
            self.put(Chunk(chunk.run, part))

    def open(self, session: Session) -> None:
        """From now on this session's bell wakes the fetching thread."""
        with self.lock:
            self._session = session

    def close(self) -> None:
        """The session is about to end: nobody rings its bell any more."""
        with self.lock:
            self._session = None

    def start_resting(self) -> None:
        """The fetching thread looks once more, and then sleeps until it is rung for."""
        self._rung = False
        self._resting = True

    def stop_resting(self) -> None:
        """It is awake."""
        self._resting = False

    @property
    def gathering_ns(self) -> int:
        """How long what has failed waits for others; nobody is woken for it until then."""
        return max(0, self._gather_ns - time.monotonic_ns())

    def gather(self) -> None:
        """`groups` is told now: what fails from now on waits for others."""
        self._gather_ns = time.monotonic_ns() + GATHER_NS

    def wake(self) -> None:
        """Ring for the fetching thread if it sleeps."""
        if self._resting:
            with self.lock:
                if self._session is not None:
                    self._session.bell.ring()

    def forget(self) -> None:
        """Drop what no thread has begun; the windows are halted. Any thread."""
        with self.lock:
            self._backlog.clear()
            self._backlog_rows = 0
            self.failures.clear()

    def dismiss(self) -> None:
        """Let all listener threads end."""
        for _ in range(self.concurrency):
            self._ready.put(None)

    # ------------------------------------------------------------------------- listener threads

    def take(self) -> Chunk | None:
        """The next chunk, begun; None at the end. Waits."""
        while True:
            chunk = self._ready.get()
            if chunk is None:
                return None
            with self.lock:
                self._waiting -= len(chunk.rows)
                begun = not self.stopping and chunk.begin()
                if begun:
                    self.running.add(chunk)
                    chunk.run.window.running += 1
                else:
                    self._drop(chunk)
            if self._resting and self.wants_more:
                self.wake()
            if begun:
                chunk.begun_ns, chunk.stuck = time.monotonic_ns(), -1
                return chunk

    def _drop(self, chunk: Chunk) -> None:
        chunk.run.window.busy = False
        self._after(chunk)

    def finish(self, chunk: Chunk, end: int, failure: Failure | None = None) -> None:
        """Rows of a chunk below `end` are done with or failed; the others were not begun.

        Ordered: the first of these has failed if there is a `failure`.
        """
        elapsed_ns = time.monotonic_ns() - chunk.begun_ns
        window = chunk.run.window
        with self.lock:
            self.pace.note(end - chunk.settled, elapsed_ns)
            failed = self.collect(chunk)
            self.refused += chunk.settle(end)
            self.running.discard(chunk)
            self._stuck.discard(chunk)
            if not chunk.sent_back:
                window.running -= 1
            if failure is not None:
                window.suspended = True
                self.note(failure)
            if self.orderly:
                window.busy = False
                if chunk.rows:
                    window.pending.appendleft(chunk)
                self.go_on(window)
                self._hand_down(chunk)
            self._after(chunk)
            urgent = failure is not None or window.halted or window.has_room
        if urgent:
            self.wake()
        elif failed and self._resting and not self._rung and not self.gathering_ns:
            self._rung = True
            self.wake()

    # -------------------------------------------------------------------------------- both kinds

    def collect(self, chunk: Chunk) -> bool:
        """Take over what has failed in a chunk so far; False if nothing has. With the lock."""
        told = chunk.tell()
        for failure in told:
            self.note(failure)
        return bool(told)

    def note(self, failure: Failure) -> None:
        """`groups` is to hear of a failure. With the lock."""
        failure.window.owed += 1
        self.failures.append(failure)

    # --------------------------------------------------------------------------------- insides

    def _hand_down(self, chunk: Chunk) -> None:
        heir = self._heirs.pop(chunk, None)
        if heir is not None:
            heir.busy = False
            heir.running -= 1
            self.go_on(heir)

    def _give(self, chunk: Chunk) -> None:
        self._waiting += len(chunk.rows)
        self._ready.put(chunk)

    def _after(self, chunk: Chunk) -> None:
        if self._lonely is chunk:
            self._lonely = None
        if self._backlog:
            self._release()

    def _release(self) -> None:
        """Hand out what waits, up to a chunk that has to run alone, and that when all has ended."""
        while self._backlog and self._lonely is None:
            alone = self._backlog[0].alone
            if alone and (len(self.running) > len(self._stuck) or self._waiting):
                return
            chunk = self._backlog.popleft()
            self._backlog_rows -= len(chunk.rows)
            self._lonely = chunk if alone else None
            self._give(chunk)

    def _leave_to_parent(self) -> None:
        """In a forked child: its one thread, if it is a listener's, goes no further than its call.

        What is acknowledged in the arena would count as the parent's work.
        """
        self.lock = threading.Lock()
        self._session = None
        for chunk in self.running:
            chunk.run.window.halted = True
            chunk.run.window.held = False
        self._ready = SimpleQueue()
        self.dismiss()


def _rest_of(chunk: Chunk) -> deque[int]:
    """Take what is not begun."""
    rows: deque[int] = deque()
    while True:
        try:
            rows.appendleft(chunk.rows.pop())
        except IndexError as error:
            require_ours(error)
            return rows


def _close_in_child() -> None:
    for handoff in list(_handoffs):
        handoff._leave_to_parent()


os.register_at_fork(after_in_child=_close_in_child)
