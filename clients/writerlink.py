"""A producer's link to the writer: a session and its lane, which outlive neither broker nor ring.

Entries go in, completions come out into pages, and whoever waits does it here. After the broker's
end, and for a message that is larger than the ring, the link attaches anew under the same identity
and submits again what may not be in the log; the writer knows what is.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from operator import call
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gantrymq.clients.backlog import Backlog, Put
from gantrymq.clients.fastcall import FastPut
from gantrymq.clients.lane import COUNT, DRAIN_ROWS, Drained, WriterLane
from gantrymq.clients.message import check_topic
from gantrymq.clients.receipts import PAGE_BITS, PAGE_ROWS, Page, Pages, Pending, refusal
from gantrymq.clients.routes import Routes
from gantrymq.clients.session import Replacing, Session, Turn, deadline_after, now_ns, pause
from gantrymq.clients.watched import Watched
from gantrymq.shm import layout, limits, wire
from gantrymq.shm.codes import EntryFlag, Status
from gantrymq.shm.errors import (
    BrokerGone,
    Closed,
    GantryError,
    MessageIllegal,
    QueueFull,
    StoreFailed,
    Timeout,
)
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.kernels import frames, ring
from gantrymq.shm.kernels.ring import take_completions
from gantrymq.shm.kernels.words import spin
from gantrymq.shm.lookout import Lookout

F = TypeVar("F", bound="Pending[Any]")
T = TypeVar("T")
RECEIPT: Final = int(EntryFlag.RECEIPT)
#: Receipts asked for between two looks at the completions.
LOOK_MASK: Final = 1023
REATTACH_S: Final = 0.02
_ROW_WORDS: Final = frames.COMPLETION_WORDS
BROKER_PORT: Final = 10911
_SECRET_BYTES: Final = 16
#: So long the interpreter's end waits for a broker that is away, if it has something to hand over.
_END_S: Final = 2.0
#: So many different refusals of one-way sends are told at a time.
_REFUSALS_TOLD: Final = 5
_A_TOPIC: Final = "it was sent to"
_CLOSED_AWAY: Final = "this producer was closed, the broker away: the message may not be stored"
_CLOSED_EARLY: Final = "this producer was closed before the message was answered: it may be stored"
_HOST: Final = bytes([127, 0, 0, 1])
_links: weakref.WeakSet[WriterLink] = weakref.WeakSet()
log = logging.getLogger("gantrymq")


class WriterLink:
    """What a producer and its receipts share; `lock` guards the lane and everything about it.

    Deadlines are nanoseconds of CLOCK_BOOTTIME. `fast` is the native put over the same lane.
    `identity` is what receipts are made of: first 20 digits of message ids, and the stored host.
    """

    def __init__(self, home: str | os.PathLike[str] | None, timeout: float) -> None:
        self.timeout = timeout
        self.lock = threading.RLock()
        self.pages = Pages(self)
        self._is_claiming = False  # a page is asked for
        self.routes = Routes()
        self.fast: FastPut | None = None
        self.is_open = False
        self._home = home
        self._secret = os.urandom(_SECRET_BYTES)
        number = wire.producer_number(self._secret)
        self.identity = (number.hex().upper(), _HOST + BROKER_PORT.to_bytes(4, "big"))
        #: Status, route and queue id of refusals that no receipt tells of.
        self._refused: Counter[tuple[int, int, int]] = Counter()
        self._given_up = 0  # last seq that a failure of the store has decided
        self._sleepers = 0
        self._looking = 0  # looks of this thread that have begun and not ended
        self._drained = Drained()
        #: Puts and looks so far: what the lane says of one may be of another by now.
        self._turns = 0
        self._replacer = 0  # the thread that attaches again
        self.is_away = False  # since it was looked for the last time
        self._impatient: set[int] = set()  # threads that do not wait for it
        self.backlog = Backlog(self)
        self._unsent: Counter[tuple[type[GantryError], str]] = Counter()
        self._watched = Watched(self)
        self._why_closed = ""  # as futures without an answer say

    def open(self) -> None:
        """Attach for the first time. Raises BrokerGone, NotPermitted, Incompatible."""
        answer_by = deadline_after(self.timeout)
        session = Session(self._home, self._secret, answer_by=answer_by)
        self._attach(session, WriterLane(session.arena, session.plan.writer, 0, 0))
        self.is_open = True

    @property
    def broker(self) -> tuple[str, int]:
        """The broker's name, and its timer_precision_ms."""
        return self.session.broker_name, self.session.timer_precision_ms

    def raise_refusal(self) -> None:
        """Raise what one-way sends were refused with since the last call, if any were.

        The error is the most frequent refusal's, and tells of all.
        """
        error = self._untold()
        if error is not None:
            raise error

    def _untold(self) -> GantryError | None:
        """What one-way sends came to nothing by; if that is not all, the next call has the rest."""
        unsent, self._unsent = self._unsent, Counter()
        if unsent:
            whys = [f"{why} ({n} of them)" for (_, why), n in unsent.most_common(_REFUSALS_TOLD)]
            kind = next(iter(unsent))[0]
            return kind(f"{unsent.total()} messages sent one-way are not stored: {'; '.join(whys)}")
        refused, self._refused = self._refused, Counter()
        if not refused:
            return None
        errors = [
            (refusal(Status(status), self.routes.topic_of(route) or _A_TOPIC, queue_id), count)
            for (status, route, queue_id), count in refused.most_common(_REFUSALS_TOLD)
        ]
        whys = [f"{error} ({count} of them)" for error, count in errors]
        more = len(refused) - len(errors)
        whys += [f"and {more} other reasons"] if more else []
        worst = errors[0][0]
        text = f"{refused.total()} messages sent one-way are not stored: {'; '.join(whys)}"
        return type(worst)(text, **worst.fields)

    def soon(
        self, put: Put, keep: Callable[[], tuple[Put, str, int]], late: type[F] | None,
        timeout: float | None,
    ) -> F | None:  # fmt: skip
        """Hand over at once; while the broker is away, later, by a thread.

        `keep` gives what is handed over then, its topic and bytes; `late` is the class of what the
        caller gets then. Waits for room in the ring only. Raises QueueFull, or as both do.
        """
        deadline = self.deadline(timeout)
        with suppress(BrokerGone):
            return cast(
                "F | None", self.at_once(lambda: put(max(0.0, (deadline - now_ns()) / 1e9)))
            )
        return self.later(keep, late, deadline)

    def at_once(self, put: Callable[[], T]) -> T:
        """Hand over without waiting for a broker that is away: raises BrokerGone then."""
        self.backlog.give_way()
        if self.backlog or self.is_away:
            raise BrokerGone("the broker is away, or earlier sends are handed over first")
        me = threading.get_ident()
        if me in self._impatient:  # a signal handler's, amid another such call of this thread
            return put()
        try:
            self._impatient.add(me)
            return put()
        finally:
            self._impatient.discard(me)

    def later(
        self, keep: Callable[[], tuple[Put, str, int]], late: type[F] | None, deadline: int
    ) -> F | None:
        """Have a thread hand over what `keep` gives. Raises QueueFull, Closed."""
        self.require_open()
        kept, topic, size = keep()
        future = None if late is None else late()
        if future is not None:
            future._page, future._seq, future._topic = self._nowhere, 1, topic
        self.backlog.add(kept, future, topic, size, deadline)
        return future

    @cached_property
    def _nowhere(self) -> Page:
        """Stands for the page of messages that are not handed over yet."""
        return Page(self)

    def note_unsent(self, topic: str, error: BaseException) -> None:
        """A one-way send came to nothing: `raise_refusal` tells."""
        kind = type(error) if isinstance(error, GantryError) else GantryError
        self._unsent[kind, f"to {topic}: {error}"] += 1

    def put_until_room(
        self, attempt: Callable[[], int], deadline: int, size: Callable[[], int]
    ) -> int:
        """Put until the ring has room, and ring. Raises QueueFull, or BrokerGone and the like.

        `size` tells the bytes of what was too large for the ring. The lock is held.
        """
        while True:
            seen = self.lane.taken()  # before the attempt: what it may miss must wake us
            turn = self._turns = self._turns + 1
            result = int(attempt())
            if result > 0:
                self.ring_if_wanted(turn)
                return result
            if result == ring.TOO_LARGE:
                self._enlarge(size(), deadline)
                continue
            self.look()
            changed = partial(self._is_taken_beyond, seen)
            if not self._unlocked(partial(self._wait_once, deadline, changed)):
                raise QueueFull(
                    "the ring to the broker stayed full: it is slower than this producer,"
                    " or its receipts are not taken; wait longer (timeout=) or send less",
                    timeout=self.timeout,
                )

    def claim(self, put: Callable[[], int], count: int, pages: list[Page]) -> int:
        """Put `count` entries and have their pages, if they were put; the lock is held.

        No page is forgotten in between, whatever a signal handler sends and takes there.
        """
        before = self._is_claiming
        try:
            self._is_claiming = True
            last = put()
            if last > 0:
                pages[:] = self.pages.of_batch(last, count)
            return last
        finally:
            self._is_claiming = before

    def _is_taken_beyond(self, seen: int) -> bool:
        return self.lane.taken() != seen

    def drive(self, receipt: Pending[Any], timeout: float | None) -> None:
        """Take completions until the receipt is decided; a failure of the store decides it."""
        try:
            if not self._spin(receipt):
                self._drive(receipt, self.deadline(timeout))
        except StoreFailed as error:
            if not receipt.settle():
                receipt.set_exception(error)
        except Closed as error:
            raise self.as_closed(error) from error.__cause__

    def _drive(self, receipt: Pending[Any], deadline: int) -> None:
        while True:
            self.look()
            if receipt.settle():
                return
            if not self._wait_receipt(receipt, deadline):
                raise Timeout(
                    "no receipt yet; the message may still be stored (ask the future again)",
                    seq=receipt._seq,
                )
            if receipt.settle() or self._spin(receipt):
                return

    def await_news(
        self,
        ready: Callable[[], bool],
        wanted: int,
        *,
        completions: Callable[[], bool],
        deadline: int,
    ) -> None:
        """Sleep until `ready`; woken if the log is durable up to `wanted`, and for completions.

        For those only where `completions` says so at a look: another thread may send meanwhile, and
        rings. `wanted` 0: no position is waited for. Raises what a session raises.
        """

        def has_news() -> bool:
            if wanted:
                ring.publish(self.session.arena, layout.ARENA_DURABLE_WANTED, wanted)
            return ready() or (completions() and not self.lane.arm_completed())

        if not (completions() and self.lane.spin_completed(limits.SPIN_ROUNDS)):
            self._sleep_armed(deadline, has_news)

    def _spin(self, receipt: Pending[Any]) -> bool:
        """A short look-out before sleeping: a wake-up costs more than the broker's answer."""
        wanted = receipt.wanted_end
        if wanted:
            durable = self.durable()
            if durable < wanted:
                at = layout.BOARD_DURABLE
                spin(self._board_bytes, at, durable, limits.SPIN_DURABLE_ROUNDS)
            return receipt.settle()
        if not self.lane.spin_completed(limits.SPIN_ROUNDS):
            return False
        self.look()
        return receipt.settle()

    def _wait_receipt(self, receipt: Pending[Any], deadline: int) -> bool:
        wanted = receipt.wanted_end
        if wanted:
            at = layout.ARENA_DURABLE_WANTED

            def ready() -> bool:
                board = self.session.board
                ring.publish(self.session.arena, at, wanted)
                return bool(board.word(layout.BOARD_DURABLE) >= wanted)

            return self._sleep(deadline, ready)

        def come() -> bool:
            # Another thread may take our completion while we sleep: then there is news, too, even
            # if its level is not reached, for which another word has to be waited for.
            return receipt.settle() or bool(receipt.wanted_end) or not self.lane.arm_completed()

        return self._sleep_armed(deadline, come)

    def _sleep_armed(self, deadline: int, ready: Any) -> bool:  # noqa: ANN401
        """`_sleep` with the lane's flag up; the last of our threads to wake takes it down."""
        self._sleepers += 1
        try:
            return self._sleep(deadline, ready)
        finally:
            self._sleepers -= 1
            if not self._sleepers:
                self.lane.disarm()

    def _wait_once(self, deadline: int, ready: Any) -> bool:  # noqa: ANN401
        def armed() -> bool:
            self.lane.arm_taken(self.lane.taken())
            return bool(ready())

        return self._sleep_armed(deadline, armed)

    def _sleep(self, deadline: int, ready: Any) -> bool:  # noqa: ANN401
        """Session.wait, over restarts of the broker: attach again and submit what is open."""
        session = self.session
        try:
            return session.wait(deadline, ready)
        except (BrokerGone, Closed, StoreFailed) as error:
            with self.lock:
                # Another thread may have replaced it meanwhile; then there is news to look at.
                if self.session is session:
                    if not isinstance(error, BrokerGone):
                        self._give_up_open()
                        raise
                    self._attach_again(deadline, ready)
            return True

    def _give_up_open(self) -> None:
        """If the store has failed: nothing that it has not acknowledged will be; the lock is held.

        Nothing is submitted again: whoever was told of the failure may have sent it anew, and what
        lies behind the durable position may be other messages after a start.
        """
        if not self.session.store_failed:
            return
        if self.fast is not None:
            self.fast.detach()
        self.look()
        rows = self.lane.unanswered(Status.STORE_FAILED)
        rows = rows[rows[:, frames.OUT_SEQ] > self._given_up]
        if len(rows):
            self._given_up = int(rows[-1, frames.OUT_SEQ])
            self._note_refusals(rows)
            self.pages.fill(rows, forget=False)
        self.pages.give_up_beyond(self.durable())

    def wait_taken(self, deadline: int) -> None:
        """Until all that is put by now is in the log; a new session's ring has it once more."""
        lane, end = self.lane, self.lane.put_end

        def settled() -> bool:
            nonlocal lane, end
            self.look()  # a ring full of answers that nobody takes would hold the writer up
            if self.lane is not lane:  # another thread may have attached again meanwhile
                lane, end = self.lane, self.lane.put_end
            return lane.taken() >= end

        while not settled():
            if not self._wait_once(deadline, settled):
                raise Timeout("not everything is in the log yet", seen=lane.taken())

    def watch_completions(self, lookout: Lookout) -> None:
        """Look out for completions, among other things."""
        self.lane.watch(lookout)

    def look(self) -> None:
        """Take the completions that are there, without waiting.

        A signal handler may do so amid a look of its thread: it leaves that one's rows, and the
        pages that they belong into, alone. What another handler's error has broken off, amid the
        former's look or this one, is dealt with by the next look.
        """
        with self.lock:
            depth, self._looking = self._looking, self._looking + 1
            turn = self._turns = self._turns + 1
            try:
                places, taken = self._drained.places, 0
                if len(places) != depth + 1 or places[depth].words[COUNT]:
                    for left in self._drained.broken_off(depth):
                        self._looking = left + 1  # a handler that looks now leaves these alone
                        taken += self._take_completions(turn, left, again=True)
                    self._looking = depth + 1
                count = DRAIN_ROWS
                while count == DRAIN_ROWS:
                    count = self._take_completions(turn, depth)
                    taken += count
            finally:
                self._looking = depth
        if taken and self._sleepers:
            # One may have looked between the ring and the page, and found its row in neither.
            self.session.bell.ring()

    def _take_completions(self, turn: int, depth: int, *, again: bool = False) -> int:
        (rows, words), lane = self._drained.places[depth], self.lane
        if not words[COUNT]:
            take_completions(lane.arena, lane.words, rows)
        cut_short = again or turn != self._turns
        if cut_short or lane.wants_bell:
            self.session.writer_bell.ring()
        count: int = words[COUNT]
        if count:
            table = rows[: count * _ROW_WORDS].reshape(-1, _ROW_WORDS)
            if cut_short or lane.words[frames.BAD]:
                self._note_refusals(table)
            self.pages.fill(table, forget=not (again or depth or self._is_claiming))
            words[COUNT] = 0
        return count

    def look_now_and_then(self, last: int, count: int) -> None:
        """After `count` puts the Python way up to a seq: completions must not pile up."""
        if self.fast is not None and self.fast.is_beyond_page(last):
            self._turn_page(self.fast, last)
        elif last & LOOK_MASK < count:
            self.look()

    def _turn_page(self, fast: FastPut, seq: int) -> None:
        """Give the native put a seq's page; completions must not pile up while nobody asks."""
        self.look()
        with self.lock:
            if fast.is_beyond_page(seq):  # nobody has turned to it, or to a newer one, meanwhile
                page = self.pages.page_of(seq)
                fast.turn_page(page, (seq >> PAGE_BITS << PAGE_BITS) + PAGE_ROWS - 1)

    def _note_refusals(self, rows: NDArray[np.int64]) -> None:
        """Keep refusals that no receipt will tell: of one-way sends."""
        bad = rows[rows[:, frames.OUT_STATUS] > Status.DUPLICATE]
        for row in bad[bad[:, frames.OUT_STATUS] != Status.UNKNOWN_POSITION]:
            if not row[frames.OUT_FLAGS] & RECEIPT:
                of = (frames.OUT_STATUS, frames.OUT_MS, frames.OUT_QUEUE)
                self._refused[tuple(row[list(of)].tolist())] += 1

    def watch(self, receipt: Pending[Any]) -> None:
        """Decide receipts that have callbacks in a thread of our own, each as soon as it can be."""
        self._watched.watch(receipt)

    def durable(self) -> int:
        """The board's durable position."""
        return self.session.board.word(layout.BOARD_DURABLE)

    def _attach(self, session: Session, lane: WriterLane) -> None:
        _links.add(self)  # also one that the collector has taken out, and a finalizer uses again
        self.session = session
        self.lane = lane
        self.is_away = False
        self._board_bytes = session.board.array()
        if self.fast is not None:
            self.fast.attach(
                session.arena, self.lane.words, session.writer_bell.owned,
                self._board_bytes, session.topics_seen,
            )  # fmt: skip

    def living(self, deadline: int) -> Session:
        """The session with the broker that is there: the socket tells what a killed one cannot."""
        try:
            has_looked = self.session.look_at_times()
        except BrokerGone:
            self._attach_again(deadline)
            has_looked = True
        except StoreFailed:
            self._give_up_open()
            raise
        if has_looked and self.fast is not None:
            self.fast.note_look()
        self.session.answer_by = deadline
        self.follow_topics()
        return self.session

    def follow_topics(self) -> None:
        """Know topics as they are: one may have been made again, with other queues and level."""
        session = self.session
        if session.board.half(layout.BOARD_TOPIC_CHANGES) == session.topics_seen:
            return
        with self.lock:
            session = self.session
            changes = session.board.half(layout.BOARD_TOPIC_CHANGES)
            session.learn_topics()
            self.routes.follow(session)
            if self.fast is not None:
                self.fast.forget_routes(changes)
            session.topics_seen = changes  # last: a signal handler that raises has it done again

    def hand_over_rest(self, deadline: int) -> None:
        """Nobody will send or ask any more: what a broker that is gone has left, the next one gets.

        Raises what a session raises.
        """
        self.backlog.wait(deadline)
        with Turn(self.lock, deadline, "another thread is amid a call"):
            if self.is_open and self.lane.taken() < self.lane.put_end:
                with suppress(BrokerGone):
                    self.session.look()
                self.living(deadline)

    def know(self, topic: str, deadline: int) -> None:
        """Have a topic opened before the lock is taken: the supervisor may take its time.

        Raises MessageIllegal, TopicNotFound, or what a session raises.
        """
        if isinstance(topic, str) and self.session.knows(topic):
            return
        check_topic(topic)
        is_known = False
        while not is_known:
            with self.lock:
                self.require_open()
                session = self.living(deadline)
            try:
                session.open_topic(topic, answer_by=deadline)
                is_known = True
            except BrokerGone:  # asked of one that nobody had missed yet: now `living` does
                if now_ns() >= deadline:
                    raise
            except Closed:  # maybe another thread has attached again meanwhile
                if session is self.session:
                    raise

    def _attach_again(self, deadline: int, is_done: Callable[[], bool] = lambda: False) -> None:
        """After the broker's end: a new session under the old identity. Raises BrokerGone.

        Not for longer than until `is_done`.
        """
        self.require_open()
        if threading.get_ident() in self._impatient:
            raise BrokerGone("the broker is away")
        self._replace_session(deadline, self.lane.plan.up_bytes, is_done)

    def _replace_session(
        self, deadline: int, up_bytes: int, is_done: Callable[[], bool] = lambda: False
    ) -> None:
        """Go on with a new session and what may not be in the log.

        If that fails, the next call goes on as before, or with a new one if the broker may have
        heard of this. One thread at a time does so, the others wait for it; the lock is held.
        """
        if self.fast is not None:
            self.fast.detach()
        before = self.session
        while self.session is before:
            if self._replacer == threading.get_ident():
                raise BrokerGone("the session is being replaced: a signal handler came between")
            why = self._try_to_replace(deadline, up_bytes)
            if why is None or is_done():
                return
            if now_ns() >= deadline:
                raise why
            self._unlocked(partial(pause, REATTACH_S))
            self.require_open()  # whoever closes it ends the waits of others

    def _try_to_replace(self, deadline: int, up_bytes: int) -> BrokerGone | None:
        """Why it cannot be done yet, or None."""
        if self._replacer:
            return BrokerGone("the broker is away, and another thread waits for it")
        try:
            self._replace(deadline, up_bytes)
        except BrokerGone as error:
            self.is_away = True
            return error
        return None

    def _unlocked(self, act: Callable[[], T]) -> T:
        """Let others have the lock meanwhile: their calls wait no longer than they wish to.

        However that ends, the lock is held again: it is let go of and noted in one step, and taken
        in one. A signal handler that raises comes before or behind, and as no context manager of
        Python's is here, not where one begins or ends either.
        """
        lock: Any = self.lock
        held: list[Any] = []
        try:
            held.extend(map(call, (lock._release_save,)))
            return act()
        finally:
            for state in held:
                lock._acquire_restore(state)

    def _replace(self, deadline: int, up_bytes: int) -> None:
        self._replacer = threading.get_ident()
        try:
            session, known = self._unlocked(partial(self._open_session, up_bytes, deadline))
            try:
                self.require_open()
                self._wait_for_handover(session, deadline)
                self.routes.attach(session, known)
            except BaseException:
                session.close()
                raise
            self._go_on_with(session)
        finally:
            self._replacer = 0

    def _go_on_with(self, session: Session) -> None:
        # Only now will nothing more be taken from the old ring. What was taken is answered, in
        # the ring or from the log: so first the entries that were left, then the answers. A writer
        # that died may have answered some that it left: what was refused is not sent again.
        self._give_up_open()
        left = [] if self.session.store_failed else self.lane.unsettled()
        self.look()
        completed = int(self.lane.words[frames.COMPLETED])
        lane = WriterLane(session.arena, session.plan.writer, self.lane.seq, completed)
        lane.refill(b"".join(entry for seq, entry in left if seq > completed))
        session.writer_bell.ring()  # before: who finds the session finds its entries on their way
        old = self.session
        self._attach(session, lane)
        old.close()

    def _wait_for_handover(self, session: Session, deadline: int) -> None:
        """Until a living writer has let go of the old ring: it does so when it takes the new one.

        Another life of the broker has another writer, and the old one is dead.
        """
        if session.epoch == self.session.epoch and self.lane.taken() != self.lane.put_end:
            lane = WriterLane(session.arena, session.plan.writer, 0, 0)
            if not session.wait(deadline, lane.adopted):
                raise Timeout("the broker's writer has not taken the new session over yet")

    def _open_session(self, up_bytes: int, deadline: int) -> tuple[Session, int]:
        """A session under the old identity, and how many routes it knows. Raises Incompatible."""
        replacing = Replacing(self.session, up_bytes)
        session = Session(self._home, self._secret, replacing=replacing, answer_by=deadline)
        session.require_store(self.session.store_id)
        try:
            known = self.routes.attach(session)
            self._wait_for_handover(session, deadline)
        except BaseException:
            session.close()
            raise
        return session, known

    def _enlarge(self, size: int, deadline: int) -> None:
        """A message larger than half the ring: attach again with a larger one."""
        wanted = limits.WRITER_UP_BYTES
        while wanted < 4 * (size + layout.ENTRY_BYTES + limits.PROPERTIES_BYTES_MAX):
            wanted *= 2
        if wanted > limits.WRITER_UP_BYTES_MAX:
            raise MessageIllegal(
                f"{size} bytes at once do not fit into the ring to the broker, which has"
                f" {limits.WRITER_UP_BYTES_MAX >> 20} MiB at most, and a batch a quarter of that:"
                " send it as several batches"
            )
        self._unlocked(partial(self.wait_taken, deadline))
        self._replace_session(deadline, wanted)

    def ring_if_wanted(self, turn: int) -> None:
        """As the lane says, unless others have put or looked since this turn; the lock is held."""
        if turn != self._turns or self.lane.wants_bell:
            self.session.writer_bell.ring()

    def deadline(self, timeout: float | None) -> int:
        return deadline_after(self.timeout if timeout is None else timeout)

    def require_open(self) -> None:
        if not self.is_open:
            raise Closed("this producer is closed, or belongs to the parent of this process")

    def require_taken(self) -> None:
        """After a put: raise Closed if a signal handler has closed this before it could count."""
        if not self.is_open and self.lane.taken() < self.lane.put_end:
            self.require_open()

    def as_closed(self, error: GantryError) -> GantryError:
        """What a future without an answer says where an error says that something is closed."""
        return Closed(self._why_closed) if isinstance(error, Closed) and self._why_closed else error

    def end(self) -> None:
        """Close it; what is lost by that, or may be, and what nobody was told of is logged."""
        self.is_open = False
        try:
            if self.fast is not None:
                self.fast.detach()
            self._tell_left()
        finally:  # whatever a callback or a signal handler raises
            self.session.close()
            try:
                self.backlog.end()
            finally:
                self._tell_untold()

    def _tell_left(self) -> None:
        """What was put and not taken: a broker that is there takes it, one that has gone cannot."""
        self._why_closed = _CLOSED_EARLY
        lane = self.lane
        if lane.taken() >= lane.put_end:
            return
        try:
            self.session.look()
        except GantryError as error:
            self._why_closed = _CLOSED_AWAY
            log.warning(
                "the producer is closed with %d messages on their way: they may not be stored (%s)",
                len(lane.unsettled()), error,
            )  # fmt: skip

    def _tell_untold(self) -> None:
        while (error := self._untold()) is not None:
            log.warning("the producer is closed, and %s", error)


def _close_in_child() -> None:
    for link in list(_links):
        link.is_open = False
        if link.fast is not None:
            link.fast.detach()
        link.lock = threading.RLock()
        link.backlog = Backlog(link)
        link._watched = Watched(link)


def _hand_over_rest() -> None:
    """At the interpreter's end: producers that nobody has closed lose nothing to a restart."""
    deadline = deadline_after(_END_S)
    for link in list(_links):
        if not link.is_open:
            continue
        try:
            link.hand_over_rest(deadline)
        except (GantryError, OSError) as error:
            require_ours(error)
            log.warning("not all that was sent is with the broker at this process's end: %s", error)


os.register_at_fork(after_in_child=_close_in_child)
atexit.register(_hand_over_rest)
