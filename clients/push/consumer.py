"""`PushConsumer`: messages are given to a listener, in threads of the consumer's own."""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from types import TracebackType
from typing import Self, Unpack

from gantrymq.clients.arguments import TIMEOUT_S, judged, require_known
from gantrymq.clients.attachment import Attachment
from gantrymq.clients.closing import OfOneProcess
from gantrymq.clients.member import Terms
from gantrymq.clients.message import MessageQueue
from gantrymq.clients.push.broadcast import BroadcastMember, OffsetFile
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.clients.push.dispatcher import Dispatcher
from gantrymq.clients.push.handoff import Handoff
from gantrymq.clients.push.listener import Listener, ListenerThread, Rules
from gantrymq.clients.push.member import PushMember, Resumed
from gantrymq.clients.push.messagemodel import MessageModel
from gantrymq.clients.push.options import Options, PushOptions
from gantrymq.clients.push.telling import FaultLog
from gantrymq.clients.push.watch import Limits
from gantrymq.clients.session import NEVER_NS, Session, Turn, deadline_after
from gantrymq.clients.shortwaits import join, start, take
from gantrymq.clients.signals import heard
from gantrymq.clients.subscription import Subscription, describe, digest
from gantrymq.shm.errors import Closed, GroupIllegal, Timeout
from gantrymq.shm.filter import EVERYTHING, parse_tags
from gantrymq.shm.properties import RETRY_PREFIX
from gantrymq.shm.queuenames import has_members
from gantrymq.shm.storage import PosixStorage

__all__ = ["ConsumeResult", "Listener", "MessageModel", "PushConsumer"]


class PushConsumer(OfOneProcess):
    """A member of a group whose messages are given to `listener`.

    It returns None or SUCCESS; FAILURE, or raising, has the message delivered again later, on
    RocketMQ's ladder or after `message.retry_after(seconds)`, until it was delivered `max_attempts`
    times in all: then, and with DEAD_LETTER, it goes to `%DLQ%group`. A message whose consumers die
    counts as failed each time. Delivery is at least once.

    With `orderly`, messages of a queue come one at a time in their order; one that fails blocks its
    queue only, comes again after a pause of 1 s (or `retry_after`), and in the end goes to the
    dead-letter queue. BROADCASTING: every member gets all messages, nothing is tried again, and
    offsets are in a file of the user's (see `instance`).

    `run`, `start`, `stop` and `close` may be called from any thread; the listener is called by
    `concurrency` threads at a time.
    """

    def __init__(
        self,
        group: str,
        subscription: Subscription,
        listener: Listener,
        *,
        home: str | os.PathLike[str] | None = None,
        **options: Unpack[PushOptions],
    ) -> None:
        """Nothing is attached before `start`, `run` or `with`.

        Options, by keyword: `concurrency`, how many threads call the listener (8); `orderly`, one
        message of a queue at a time, in order (False); `model`, MessageModel.CLUSTERING (one member
        gets a message) or BROADCASTING (each); `max_attempts`, deliveries in all before a message
        is a dead letter (17); `consume_from`, where a group begins that has no offset yet
        (ConsumeFrom.LAST_OFFSET), TIMESTAMP with `consume_timestamp`, a datetime;
        `consume_timeout`, seconds after which a message that a listener still has is given to
        another member (900); `instance`, a name that tells broadcasting consumers of one group and
        user apart ("default"); `assignment`, how queues are spread over members: "sticky" moves
        few (the default), "average" does as RocketMQ.

        `subscription` lists topics, or maps them to tags ("a || b", "*"). Raises GroupIllegal,
        MessageIllegal, FilterSyntaxError; TypeError for an option that does not exist.
        """
        self.group, self._filters, self._listener, home = judged(
            "PushConsumer", group, subscription, listener, home
        )
        require_known("PushConsumer", PushOptions.__annotations__, options)
        self.options = Options(**options)
        self._home = home
        self._pid = 0
        self._handoff = self._new_handoff()
        self._dispatcher: Dispatcher | None = None
        self._store_id = ""
        self._threads: list[ListenerThread] = []
        self._is_stopped = False
        self._offsets: OffsetFile | None = None
        self._events: SimpleQueue[None] = SimpleQueue()  # safe in signal handlers
        self._starting = threading.RLock()
        self._starter: threading.Thread | None = None

    # ----------------------------------------------------------------------------------- lifetime

    def start(self) -> None:
        """Attach, join, and begin to call the listener. Returns at once.

        Raises BrokerGone, TopicNotFound, NotPermitted, GroupIllegal (another member of the group
        subscribes differently), Timeout if the broker has not answered in 10 seconds, Closed if it
        was started before.
        """
        self._require_own()
        begun = False
        try:
            with self._starting:
                if self._is_half_started:
                    self._undo_start()
                if self._pid or self._is_stopped:
                    raise Closed("this consumer was started before: make another one")
                begun = True
                self._start()
        except BaseException:
            if begun:  # by this call; its threads would keep what nobody has got
                with self._starting:
                    self._undo_start()
            raise

    def _start(self) -> None:
        try:
            self._starter = threading.current_thread()
            self._pid = os.getpid()
            self._dispatcher = self._begin()
            if self._is_stopped:  # meanwhile: it ends as soon as it runs
                self._dispatcher.stop()
            self._start_threads(self._dispatcher)
        finally:
            self._starter = None

    def _start_threads(self, dispatcher: Dispatcher) -> None:
        options = self.options
        faults = FaultLog()
        rules = Rules(options.max_attempts, options.orderly, options.is_broadcast)
        for number in range(options.concurrency):
            name = f"gantrymq-listener-{self.group}-{number}"
            thread = ListenerThread(name, self._listener, self._handoff, rules, faults)
            start(thread)
            self._threads.append(thread)
        start(dispatcher)

    @property
    def _is_half_started(self) -> bool:
        """Whether a start has failed, and what undoes it was broken off. `_starting` is held."""
        dispatcher = self._dispatcher
        begun = bool(self._pid) and self._starter is None
        return begun and (dispatcher is None or dispatcher.ident is None)

    def _undo_start(self) -> None:
        """A start that failed leaves nothing, and may be tried again. So may this."""
        dispatcher = self._dispatcher
        if dispatcher is not None:
            dispatcher.stop()
            if dispatcher.ident is None:
                dispatcher.give_up()
            else:
                join(dispatcher)
        self._handoff.dismiss()
        for thread in self._threads:
            join(thread)
        self._threads.clear()
        self._handoff = self._new_handoff()
        self._close_offsets()
        self._store_id = ""
        self._dispatcher = None
        self._pid = 0

    def _new_handoff(self) -> Handoff:
        return Handoff(self.options.concurrency, orderly=self.options.orderly)

    def _begin(self) -> Dispatcher:
        options = self.options
        if options.is_broadcast:
            self._offsets = OffsetFile(self._home, self.group, options.instance)
        limits = Limits(
            options.max_attempts,
            int(options.consume_timeout * 1e9),
            not options.orderly and not options.is_broadcast,
        )
        name = f"gantrymq-push-{self.group}"
        return Dispatcher(name, self._attach, self._handoff, limits, lambda: self._events.put(None))

    def run(self) -> None:
        """Consume until SIGTERM, SIGINT or `stop`; starts if that has not been done.

        Signals are heard in the main thread only; handlers there were are put back at the end.
        Raises what ended it otherwise: StoreFailed, GroupIllegal, Incompatible, ConsumerFailed, ...
        """
        if not self._pid:
            self.start()
        elif self._is_stopped:
            raise Closed("this consumer is stopped: make another one")
        self._require_own()
        with Turn(self._starting, NEVER_NS, ""):  # another thread may be amid it, and fail
            if self._dispatcher is None:
                raise Closed("this consumer is not started")
        with heard(lambda: self._events.put(None)):
            take(self._events)
        self.stop()

    def stop(self, timeout: float | None = None) -> None:
        """Begin no more messages, finish those begun, acknowledge them, leave the group.

        Waits for running listener calls, `timeout` seconds at most: raises Timeout then, and they
        go on. None, a push consumer's default, and math.inf wait until they are done. From within
        the listener it returns at once, as in a signal handler amid `start`, which ends what it has
        started. Raises what has ended the consumer before. Safe to call twice.
        """
        (timeout,) = judged("PushConsumer.stop", timeout)
        timeout = None if timeout is None or timeout > threading.TIMEOUT_MAX else timeout
        if not self._pid:
            return
        self._require_own()
        self._is_stopped = True
        self._events.put(None)
        if (dispatcher := self._dispatcher) is not None:
            dispatcher.stop()
        if threading.current_thread() in (dispatcher, self._starter, *self._threads):
            return
        deadline_ns = NEVER_NS if timeout is None else deadline_after(timeout)
        with Turn(self._starting, deadline_ns, "the consumer is still being started"):
            if self._is_half_started:
                self._undo_start()
            dispatcher = self._dispatcher
        if dispatcher is not None:
            self._await_end(dispatcher, deadline_ns, timeout)

    def _await_end(self, dispatcher: Dispatcher, deadline_ns: int, timeout: float | None) -> None:
        for thread in (dispatcher, *self._threads):
            join(thread, deadline_ns)
            if dispatcher.is_alive() or (thread.is_alive() and dispatcher.error is None):
                raise Timeout(f"listeners are still at work after {timeout} s; they go on")
        self._close_offsets()
        error, dispatcher.error = dispatcher.error, None
        if error is not None:
            raise error

    close = stop

    def __repr__(self) -> str:
        state = "running" if self.is_running else "ended" if self._pid else "not started"
        return f"<PushConsumer {self.group!r}, {describe(self._filters)}, {state}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pid == os.getpid():  # a forked child's end is none of its parent's consumer
            self.stop()

    # -------------------------------------------------------------------------------------- state

    def assignment(self) -> list[MessageQueue]:
        """Queues that this member owns at present, those of its retry topic included.

        Raises what has ended the consumer by itself.
        """
        dispatcher = self._running()
        return sorted(assigned.queue for assigned in list(dispatcher.member.assigned.values()))

    @property
    def lost_acks(self) -> int:
        """Messages finished after their queue's lease was over: they are delivered again."""
        return self._handoff.refused

    @property
    def is_running(self) -> bool:
        """False before `start`, and once it has ended, by itself too."""
        return self._dispatcher is not None and self._dispatcher.is_alive()

    def _running(self) -> Dispatcher:
        self._require_own()
        dispatcher = self._dispatcher
        if dispatcher is None:
            raise Closed("this consumer is not started")
        if dispatcher.error is not None:
            raise dispatcher.error
        if self._is_stopped:
            raise Closed("this consumer is stopped: make another one")
        return dispatcher

    def _require_own(self) -> None:
        if self._pid and self._pid != os.getpid():
            raise Closed(
                "this consumer was started by the parent of this forked process: make a new one"
            )

    # -------------------------------------------------------------------------------- the session

    def _attach(self, places: dict[MessageQueue, Resumed]) -> tuple[Attachment, PushMember]:
        filters = dict(self._filters)
        if not self.options.is_broadcast:
            filters[RETRY_PREFIX + self.group] = parse_tags(EVERYTHING)  # RD-1
        make, store = self._make_member, self._store_id
        answer_by = deadline_after(TIMEOUT_S)
        attachment = Attachment(self._home, self.group, filters, make, store, answer_by)
        self._store_id = attachment.session.store_id
        if not self.options.is_broadcast:
            self._require_retriable(attachment)
        attachment.join(self.options.consume_from, self.options.consume_ms, places)
        member = attachment.member
        assert isinstance(member, PushMember)
        return attachment, member

    def _require_retriable(self, attachment: Attachment) -> None:
        """Raise GroupIllegal for a topic of which one message cannot be tried again alone."""
        storage = PosixStorage(attachment.session.store)
        for topic in self._filters:
            if has_members(storage, topic):
                attachment.session.close()
                raise GroupIllegal(
                    f"topic {topic} is of queue.type=BatchCQ: its messages may lie in one record,"
                    " and cannot be tried again one by one. Use a PullConsumer, or BROADCASTING,"
                    " which tries nothing again",
                    topic=topic,
                )

    def _make_member(
        self,
        session: Session,
        group: str,
        names: dict[int, str],
        places: dict[MessageQueue, Resumed],
    ) -> PushMember:
        handoff, options, filters = self._handoff, self.options, self._filters
        if self._offsets is not None:
            return BroadcastMember(session, group, names, handoff, self._offsets)
        orderly, most = options.orderly, options.max_attempts
        shown = describe(filters, orderly=orderly, max_attempts=most)
        terms = Terms(most, digest(filters), orderly, shown, options.assignment)
        return PushMember(session, group, names, places, terms, handoff)

    def _close_offsets(self) -> None:
        if self._offsets is not None:
            self._offsets.close()
