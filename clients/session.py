"""A session with the broker: its memory, its bells, and waiting that notices when either side ends.

Loads numpy, never numba. An object belongs to the process that made it: in a forked child it is
closed from the start.
"""

from __future__ import annotations

import gc
import math
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from io import FileIO
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from gantrymq.clients.closing import Closing, OfOneProcess
from gantrymq.clients.control import ANSWER_S, ControlChannel, close_all, expect, gone
from gantrymq.clients.home import find_home, read_board_file, shortage
from gantrymq.clients.running import board_of
from gantrymq.shm import layout, wire
from gantrymq.shm.arena import check_header, map_arena, plan_arena
from gantrymq.shm.bell import EventBell
from gantrymq.shm.codes import BrokerState
from gantrymq.shm.errors import (
    BrokerGone,
    Closed,
    Evicted,
    GantryError,
    Incompatible,
    StoreFailed,
    Timeout,
    Unavailable,
    mend_of_failed,
    why_failed,
)
from gantrymq.shm.fromhandlers import Suppressed, require_ours

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The longest sleep without a look at the board, whose broker may hang with its sockets open.
_LOOK_NS: Final = 500_000_000
#: Who never waits looks at the socket so often.
_LOOK_AGAIN_NS: Final = 50_000_000
#: So long `close` waits for a thread that sleeps on the descriptors.
_SLEEPER_NS: Final = 1_000_000_000
#: A deadline that is never reached.
NEVER_NS: Final = 1 << 62
_CLOSED: Final = "this session is closed: open a new one (a forked child needs its own)"
_REPLACED: Final = "another session was to come in this one's place: the next call looks for it"
#: What an `acquire` that does not wait takes.
NOW: Final = (False,)
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
#: Replaced in a forked child: sessions of its parent have another.
_process = object()


def deadline_after(seconds: float) -> int:
    """When so many seconds are over, in nanoseconds as `now_ns`; math.inf: never."""
    return min(NEVER_NS, now_ns() + int(seconds * 1e9)) if seconds < math.inf else NEVER_NS


def seconds_until(deadline_ns: int) -> float:
    """What is left of a wait; 0 once it is over."""
    return max(0.0, (deadline_ns - now_ns()) / 1e9)


def _take(lock: threading.RLock, timeout_s: float) -> bool:
    """Whether the lock could be taken: a signal handler that raises comes before that, or later.

    That is in one step, and nothing comes between the return from here and the caller's `try`:
    behind a plain call of `acquire` the lock would stay held for ever.
    """
    (taken,) = map(lock.acquire, (timeout_s > 0,), (timeout_s or -1,))
    return taken


class Turn:
    """`with Turn(lock, deadline_ns, why)`: another thread's call is waited for until then only.

    For a lock that is held while somebody waits. Raises Timeout, which says why. In a forked child
    a thread that is not there may hold it: look who is open before.
    """

    __slots__ = ("__exit__", "_deadline_ns", "_lock", "_why")

    #: The lock's own, in C: Python's code would hear signals as it begins, the lock still held.
    __exit__: Callable[..., None]

    def __init__(self, lock: threading.RLock, deadline_ns: int, why: str) -> None:
        self._lock = lock
        self._deadline_ns = deadline_ns
        self._why = why
        self.__exit__ = lock.__exit__

    def __enter__(self) -> None:
        if _take(self._lock, 0) or _take(self._lock, seconds_until(self._deadline_ns)):
            return
        raise Timeout(f"{self._why}. Try again later")


class Replacing(NamedTuple):
    """The session whose place one of the same producer is to take, and the bytes of its ring."""

    before: Session
    up_bytes: int


class Session(Closing, OfOneProcess):
    """One attachment. It ends with `close`, with the broker, or by eviction; never comes back.

    `arena` and `plan` are its lanes, `board` the broker's numbers, `store` the store's root.
    `topics_seen` is how many changes of topics were counted when `open_topic`'s answers were true.
    """

    def __init__(  # noqa: PLR0913 - each is a wish of its own, by name
        self,
        home: str | os.PathLike[str] | None = None,
        secret: bytes = b"",
        groups: bool = False,
        scheduler: bool = False,
        transactions: bool = False,
        *,
        answer_by: int = NEVER_NS,
        replacing: Replacing | None = None,
    ) -> None:
        """Attach to the broker at `home`.

        A session that sends has a `secret` of its producer, 10 bytes at least; `groups`,
        `scheduler` and `transactions` open lanes with these agents. `answer_by` is a deadline for
        the supervisor's answers, which are waited for 30 s at most. What this is `replacing` is
        over once the broker may have heard of this.
        Raises BrokerGone, NotPermitted, Incompatible, Unavailable or Timeout.
        """
        self.home: Path = find_home(home)
        self.answer_by = answer_by
        self.is_open = False
        self.session = 0
        self._why_over: GantryError | None = None
        self._sends = bool(secret)
        self._topics: dict[str, wire.TopicOpened] = {}
        self._requests = threading.RLock()
        self._turn = threading.RLock()  # for a moment: whose turn it is to sleep
        self._beside: deque[SimpleQueue[None]] = deque()  # of threads that await a sleep's end
        self._poller = 0  # the thread that sleeps on the descriptors, or was broken off there
        self.look_due = 0
        self._turns = 0  # how many sleeps on the descriptors have ended
        hello = wire.Hello(
            os.getpid(), layout.FINGERPRINT, "client", secret, groups, scheduler,
            transactions, replacing.up_bytes if replacing else 0,
        )  # fmt: skip
        before = replacing.before if replacing else None
        try:
            self._connect(hello, before)
        except Unavailable as error:
            if error.__cause__ is None or shortage(error.__cause__) is None:
                raise
            gc.collect()  # until then clients that were closed may have their maps, and descriptors
            self._connect(hello, before)
        self._process = _process
        self.is_open = True
        _sessions.add(self)

    def _connect(self, hello: wire.Hello, before: Session | None) -> None:
        self._control = ControlChannel(self.home, _answer_s(self.answer_by))
        try:
            self._greet(hello, before)
        except BaseException as error:
            self._control.close()
            if (lack := shortage(error)) is not None:
                raise lack from error
            raise

    def _greet(self, hello: wire.Hello, before: Session | None) -> None:
        answer, files = self._say(hello, before)
        try:
            welcome = expect(answer, wire.Welcome)
            self.plan = plan_arena(*welcome.ring_bytes)
            self.arena = map_arena(files[0].fileno(), self.plan.size)
            check_header(self.arena)
            self.board = board_of(self.home, welcome.board)
            self.topics_seen = self.board.half(layout.BOARD_TOPIC_CHANGES)
            self._bells = [EventBell(file) for file in files[1:]]
        finally:
            close_all(files)
        self.bell, self.writer_bell, self.groups_bell, self.scheduler_bell = self._bells[:4]
        self.checker_bell = self._bells[4]
        self._sleeper = select.poll()
        self._sleeper.register(self.bell.fileno(), select.POLLIN)
        self._sleeper.register(self._control.channel.fileno(), select.POLLIN)
        self.session = welcome.session
        self.epoch = welcome.epoch
        self.store = welcome.store
        self.broker_name = welcome.broker_name
        self.timer_precision_ms = welcome.timer_precision_ms
        self.store_id = welcome.store_id

    def _say(self, hello: wire.Hello, before: Session | None) -> tuple[wire.AnyFrame, list[FileIO]]:
        """The answer to a hello, by which the session before is over, unless it is refused.

        The writer reads one ring of a producer, the latest, whether this process gets to know of it
        or not: it may be out of descriptors or memory, or broken off by a signal handler.
        """
        ends = before is not None and before._why_over is None
        if before is not None and ends:
            before._why_over = BrokerGone(_REPLACED)
        try:
            return self._ask(hello, self.answer_by)
        except GantryError:
            if before is not None and ends and self._control.was_refused:
                before._why_over = None
            raise

    def require_store(self, before: str) -> Self:
        """This session, if it is of the store that a session before was of ("": there was none).

        Else it is closed: positions, offsets and numbers of messages that are kept from there hold
        in no other store. Raises Incompatible.
        """
        if before in ("", self.store_id):
            return self
        self.close()
        raise Incompatible(
            f"the broker at {self.home} has store {self.store_id} now, and this client was of store"
            f" {before}: it was made anew, or put back from a back-up. Whether messages without a"
            " receipt are stored only the store before can tell, and none of them was sent into"
            " this one: open a new producer or consumer",
            before=before,
            now=self.store_id,
        )

    # -------------------------------------------------------------------------------------- asking

    def knows(self, topic: str) -> bool:
        """Whether `open_topic` has nothing to ask."""
        return topic in self._topics

    def open_topic(
        self,
        name: str,
        *,
        create: bool = True,
        of_member: bool = False,
        was_open: bool = False,
        answer_by: int | None = None,
    ) -> wire.TopicOpened:
        """A topic's number and queues; asked for once.

        `of_member` and `was_open` as wire.OpenTopic has them.
        Raises TopicNotFound, MessageIllegal, or as `request`.
        """
        known = self._topics.get(name)
        if known is None:
            name = str.__str__(name)  # of a subclass, numpy's for example, there is no encoding
            asked = wire.OpenTopic(name, create, of_member, was_open)
            known = expect(self.request(asked, answer_by), wire.TopicOpened)
            self._topics[name] = known
        return known

    def learn_topics(self) -> None:
        """Have `open_topic` answer as it would now, for topics that were asked for.

        The board has all of it: a topic keeps its slot while a session that opened it is attached.
        """
        for name, known in list(self._topics.items()):
            now = self.board.topic(known.slot)
            if now is not None and now.name == name:
                self._topics[name] = wire.TopicOpened(
                    now.slot, name, now.queue_base, now.queue_count, now.write_queues, now.level
                )

    def request(self, frame: wire.Frame, answer_by: int | None = None) -> wire.AnyFrame:
        """Ask the supervisor, until `answer_by` if that is not the session's own.

        Raises what it refuses with, Timeout, or what `check` raises.
        """
        self.check()
        until = self.answer_by if answer_by is None else answer_by
        why = f"the broker at {self.home} has not answered another thread in time: it is busy, or"
        with Turn(self._requests, deadline_after(_answer_s(until)), f"{why} stopped"):
            answer, files = self._ask(frame, until)
        close_all(files)
        return answer

    def _ask(self, frame: wire.Frame, until: int) -> tuple[wire.AnyFrame, list[FileIO]]:
        try:
            return self._control.ask(frame, _answer_s(until))
        except (BrokerGone, Evicted) as error:
            if self._why_over is None and self.session and not self.is_open:
                raise Closed(_CLOSED) from error
            raise self._over(error) from error.__cause__

    @contextmanager
    def answering_by(self, deadline_ns: int) -> Iterator[None]:
        """What is asked meanwhile is to be answered by then; afterwards there is no deadline."""
        self.answer_by = deadline_ns
        try:
            yield
        finally:
            self.answer_by = NEVER_NS

    # ------------------------------------------------------------------------------------- waiting

    def wait(self, deadline_ns: int, ready: Callable[[], bool]) -> bool:
        """Sleep until `ready()`; False when CLOCK_BOOTTIME has reached `deadline_ns` before.

        `ready` sets the caller's flag with a full fence and then looks, so that no ring is lost.
        Several threads may wait. Raises what `check` raises, but only after a last look: what
        was answered before the end counts.
        """
        while True:
            turns = self._turns
            if ready():
                return True
            try:
                self.check()
            except GantryError:
                if ready():
                    return True
                raise
            left_ns = deadline_ns - now_ns()
            if left_ns <= 0:
                return False
            self._sleep(min(left_ns, _LOOK_NS), turns)

    def _sleep(self, timeout_ns: int, turns: int) -> None:
        """One thread sleeps on the descriptors and wakes the others, which sleep on it.

        `turns` is `_turns` before the caller's last look: another's sleep that has ended since has
        taken the ring that may have been for what is there now.
        """
        me = threading.get_ident()
        try:
            with self._turn:
                told = self._tell_of_end()
                if told is None:
                    if self._turns != turns:
                        return
                    amid, self._poller = self._poller != 0, me
            if told is None:
                self._sleep_here(timeout_ns, amid)
            else:
                _await(told, timeout_ns)
        finally:
            if self._poller == me:
                self._turns += 1  # before: who finds nobody asleep finds this
                self._poller = 0
                self._tell()

    def _sleep_here(self, timeout_ns: int, amid: bool) -> None:
        """In this thread's turn. `amid`: maybe amid a sleep of its own, as a signal handler is."""
        rung = False
        try:
            for descriptor in self._readable(timeout_ns, amid=amid):
                if descriptor == self.bell.fileno():
                    rung = True
                    self.bell.clear()
                else:
                    self._hear()
        except (OSError, ValueError) as error:
            require_ours(error)
            if self.is_open:
                raise  # else a signal handler has closed it amid the sleep: `check` says so
        finally:
            if amid and rung:
                self.bell.ring()  # for the sleep of this thread that a signal handler cut short

    def _tell_of_end(self) -> SimpleQueue[None] | None:
        """With the lock: what another thread's sleep tells of its end; None if there is none.

        It is waited for without the lock, as no Condition does: a signal handler that raises where
        that has just let go of it would leave a `with` whose lock is not held.
        """
        if not self._another_polls:
            return None
        told: SimpleQueue[None] = SimpleQueue()
        self._beside.append(told)
        return told

    def _tell(self) -> None:
        with self._turn:
            for told in tuple(self._beside):
                told.put(None)
            self._beside.clear()

    @property
    def _another_polls(self) -> bool:
        # A signal may have broken off this thread's own turn where nothing could note its end.
        return self._poller not in (0, threading.get_ident())

    def _readable(self, timeout_ns: int, *, amid: bool = False) -> list[int]:
        """Which of bell and control socket can be read; only one thread at a time asks.

        `amid`: maybe while it waits here, as a signal handler does.
        """
        if timeout_ns >= 10_000_000 and not amid:
            with Suppressed(RuntimeError):  # a signal handler may have given a turn away amid ours
                return [descriptor for descriptor, _mask in self._sleeper.poll(timeout_ns / 1e6)]
        return _readable(self.bell.fileno(), self._control.channel.fileno(), timeout_ns)

    def sleep_by(
        self, sleep: Callable[[NDArray[np.int64], int], int], state: NDArray[np.int64], left_ns: int
    ) -> int:
        """Let a kernel sleep on both `descriptors`, no longer than until the next look is due.

        Only for a session that one thread waits on. Raises Closed.
        """
        self._poller = threading.get_ident()  # before the look: `close` sets its word first, too
        try:
            if not self.is_open:
                raise Closed(_CLOSED)
            return sleep(state, min(left_ns, _LOOK_NS))
        finally:
            self._poller = 0
            if not self.is_open:
                self._tell()

    @property
    def descriptors(self) -> tuple[int, int]:
        """The bell and the control socket."""
        return self.bell.fileno(), self._control.channel.fileno()

    @property
    def is_live(self) -> bool:
        """False once `check` would raise for what this object knows already."""
        return self.is_open and self._why_over is None

    def check(self) -> None:
        """Raise Closed, Evicted, StoreFailed or BrokerGone unless the session goes on.

        StoreFailed until the broker is started again: from then on it is one that has gone.
        """
        if self._process is not _process and self.is_open:
            self._leave_to_parent()  # a finalizer uses it again: the collector had forgotten it
        if self._why_over is not None:
            raise self._over(self._why_over)
        if not self.is_open:
            raise Closed(_CLOSED)
        if self.arena[layout.ARENA_EVICTED]:
            self._hear()
            raise self._over(Evicted("the broker ended this session; its log says why"))
        state = self.board.half(layout.BOARD_STATE)
        if state == BrokerState.FAILED:
            number = self.board.half(layout.BOARD_FAILED_ERRNO)
            raise self._over(
                StoreFailed(
                    f"the store of the broker at {self.home} failed: {why_failed(number)}. "
                    f"{mend_of_failed(number)}",
                    errno=number,
                )
            )
        if state == BrokerState.STOPPED:
            raise self._over(gone(self.home))

    def look(self) -> None:
        """Take notice of a connection that has ended; as `check`, at the cost of a system call."""
        self.check()
        self._hear()

    def look_at_times(self) -> bool:
        """As `look` if none was within 50 ms, for calls that never wait; whether it was.

        A broker that was killed can write nothing onto its board: its socket tells.
        """
        now = now_ns()
        if now < self.look_due:
            self.check()
            return False
        self.look_due = now + _LOOK_AGAIN_NS
        self.look()
        return True

    def _hear(self) -> None:
        """Look at the control socket outside of requests: an end, or an eviction."""
        if not _take(self._requests, 0):
            return  # an answer is on its way to somebody
        try:
            if self._control.is_asking:
                return  # to this thread, whose request a signal handler has come amid of
            if not _readable(self._control.channel.fileno(), self._control.channel.fileno(), 0):
                return
            heard = self._control.hear()
        except (OSError, ValueError, BrokerGone) as error:  # ValueError: it is closed meanwhile
            require_ours(error)
            if not self.is_open:
                raise Closed(_CLOSED) from error
            raise self._over(gone(self.home)) from error
        finally:
            self._requests.release()
        if not self.is_open:
            raise Closed(_CLOSED)
        if isinstance(heard, wire.Refused):
            raise self._over(heard.as_error())

    @property
    def store_failed(self) -> bool:
        """Whether this life of the broker ended by its store: the log may have lost its end."""
        return self.board.half(layout.BOARD_STATE) == BrokerState.FAILED

    def _has_successor(self) -> bool:
        """Whether the broker was started again; its board is named once its log is recovered."""
        with Suppressed(OSError):
            return read_board_file(self.home).get("epoch", "") not in ("", f"{self.epoch:x}")
        return False

    def _over(self, error: GantryError) -> GantryError:
        if self._why_over is None:
            self._why_over = self._with_advice(error)
        if isinstance(self._why_over, StoreFailed) and self._has_successor():
            self._why_over = gone(self.home)
        # A copy for each raise: tracebacks of several threads would pile up on one object.
        return copy(self._why_over)

    def _with_advice(self, error: GantryError) -> GantryError:
        """A producer does not attach again by itself: what its ring holds is not to be trusted."""
        if not self._sends or not isinstance(error, Evicted):
            return error
        return Evicted(
            f"{error.text}: this producer's memory is damaged, and it sends nothing any more. What"
            " has no receipt yet may be stored or not; close it and make another one",
            **error.fields,
        )

    # ---------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """End the session. Safe to call twice, and from any thread."""
        if not self.is_open:
            return
        self.is_open = False
        try:
            self.bell.ring()  # whoever sleeps looks, and finds it closed
            self._control.shut_down()
            self._await_sleeper(now_ns() + _SLEEPER_NS)
        finally:
            self._give_back()

    def _await_sleeper(self, deadline_ns: int) -> None:
        while (left_ns := deadline_ns - now_ns()) > 0:
            with self._turn:
                told = self._tell_of_end()
            if told is None:
                return
            _await(told, left_ns)

    def _give_back(self) -> None:
        self._control.close()
        for bell in self._bells:
            bell.close()

    def _leave_to_parent(self) -> None:
        """In a forked child: let go of the parent's descriptors, so that its end is noticed."""
        self.is_open = False
        self._requests = threading.RLock()
        self._turn = threading.RLock()
        self._beside = deque()
        self._why_over = Closed(
            "this session was opened by the parent of this forked process: open a new one"
        )
        self._give_back()


def _answer_s(until_ns: int) -> float:
    """How long an answer of the supervisor is waited for."""
    return min(ANSWER_S, seconds_until(until_ns))


def now_ns() -> int:
    """CLOCK_BOOTTIME, by which deadlines are counted: it goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _await(told: SimpleQueue[None], timeout_ns: int) -> None:
    with Suppressed(Empty):
        told.get(timeout=timeout_ns / 1e9)


def pause(seconds: float) -> None:
    """Wait where nobody could ring: there is no broker."""
    time.sleep(seconds)


def _readable(one: int, other: int, timeout_ns: int) -> list[int]:
    """Which of two descriptors can be read."""
    if timeout_ns < 10_000_000 and max(one, other) < 1024:
        return select.select({one, other}, [], [], timeout_ns / 1e9)[0]
    poll = select.poll()
    for descriptor in {one, other}:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _mask in poll.poll(timeout_ns / 1e6)]


def _close_in_child() -> None:
    global _process  # noqa: PLW0603 - one for each process
    _process = object()
    for session in list(_sessions):
        if session.is_open:
            session._leave_to_parent()


os.register_at_fork(after_in_child=_close_in_child)
