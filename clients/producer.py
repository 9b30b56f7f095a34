"""Producer: messages into the writer's ring, receipts out of it.

One object may be used by several threads. It survives a restart of the writer (its ring stays as
it is) and of the whole broker: it attaches again under the same identity and submits anew what may
not be in the log; the writer knows what is.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from clients import message as rules
from clients.fastcall import FastPut, is_available
from clients.lane import WriterLane
from clients.message import NO_PROPERTIES, Message, SendReceipt
from clients.receipts import Pages, ReceiptFuture, refusal
from clients.routes import Routes
from clients.session import Session
from shm import jit, layout, limits
from shm.codes import EntryFlag, Level, Status
from shm.errors import BrokerGone, Closed, GantryError, MessageIllegal, QueueFull, Timeout
from shm.identity import CLIENT_PACKAGES, require_siblings
from shm.kernels import frames, ring

RECEIPT: Final = int(EntryFlag.RECEIPT)
DURABLE: Final = int(EntryFlag.DURABLE)
URGENT: Final = int(EntryFlag.URGENT)
BATCH: Final = int(EntryFlag.BATCH)
LEVELS: Final = {"written": Level.WRITTEN, "durable": Level.DURABLE}
_HOST: Final = bytes([127, 0, 0, 1])
_NONE = np.frombuffer(b"", np.uint8)
_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


class Producer:
    """Sends messages to the broker of a home directory.

    `timeout` bounds every wait in seconds; `durability` is "written" or "durable" and defaults to
    each topic's own.
    """

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        *,
        durability: str | None = None,
        timeout: float = 10.0,
        producer_group: str | None = None,
    ) -> None:
        """Attach. Raises BrokerGone, NotPermitted, Incompatible."""
        require_siblings(CLIENT_PACKAGES)
        jit.warm()
        self._home = home
        self._level = None if durability is None else _level(durability)
        self._timeout = timeout
        self.producer_group = producer_group
        self._identity = os.urandom(10)
        self._lock = threading.RLock()
        self._pages = Pages()
        self._watched: list[ReceiptFuture] = []
        self._watcher: threading.Thread | None = None
        self._form = np.zeros(6, np.int64)
        self._refused: GantryError | None = None
        self._is_open = False
        self._up_bytes = 0
        self._routes = Routes()
        self._fast = FastPut(self._send_oneway, self._submit) if is_available() else None
        if self._fast is not None:
            # Shadows the method: the native function takes the common case, the method the rest.
            self.send_oneway = self._fast.oneway  # type: ignore[method-assign]
            self._put = self._fast.submit
        else:
            self._put = self._submit
        self._attach(Session(home, self._identity, up_bytes=self._up_bytes), 0, 0)
        self._is_open = True
        _producers.add(self)

    # ------------------------------------------------------------------------------------ sending

    def send(
        self,
        message: Message | str,
        body: Any = None,  # noqa: ANN401 - any buffer
        *,
        durability: str | None = None,
        timeout: float | None = None,
        **parts: Any,  # noqa: ANN401 - tag, keys, properties, queue_id
    ) -> SendReceipt:
        """Send and wait: `send("orders", b"...", tag="paid")` or `send(Message(...))`.

        Raises MessageIllegal, TopicNotFound, QueueFull, Timeout, BrokerGone, StoreFailed, DiskFull.
        """
        wished = _message(message, body, parts)
        future = self._send(wished, durability, URGENT, timeout)
        return future.result(self._timeout if timeout is None else timeout)

    def send_async(
        self,
        message: Message | str,
        body: Any = None,  # noqa: ANN401
        *,
        durability: str | None = None,
        timeout: float | None = None,
        **parts: Any,  # noqa: ANN401
    ) -> ReceiptFuture:
        """Send without waiting; the receipt is a future. Raises QueueFull when the ring stays full."""
        if durability is None and self._routes.is_written(message) and self._level is None:
            if not parts:
                return self._future(self._put(message, body), message)
            if len(parts) == 1 and "tag" in parts:
                return self._future(self._put(message, body, tag=parts["tag"]), message)
        return self._send(_message(message, body, parts), durability, 0, timeout)

    def send_oneway(
        self,
        message: Message | str,
        body: Any = None,  # noqa: ANN401
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = NO_PROPERTIES,
        queue_id: int | None = None,
    ) -> None:
        """Send without a receipt; a refusal is raised by a later `flush` or `send`."""
        self._send_oneway(
            message, body, tag=tag, keys=keys, properties=properties, queue_id=queue_id
        )

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        durability: str | None = None,
        timeout: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic into one queue: all are stored or none.

        Holds also when processes are killed; ADR 0006 says what a power cut may leave.
        """
        wished = list(messages)
        if not wished:
            return []
        topic = wished[0].topic
        if any(item.topic != topic or item.queue_id != wished[0].queue_id for item in wished):
            raise MessageIllegal("the messages of a batch have one topic and one queue id (RD-61)")
        level = self._level_of(topic, durability)
        flags = BATCH | RECEIPT | URGENT | (DURABLE if level == Level.DURABLE else 0)
        payload, lengths = self._lay_out(wished)
        with self._lock:
            deadline = self._deadline(timeout)
            self._fill_form(flags, 0, wished[0].queue_id)
            last = self._repeat(
                lambda: self._lane.put_batch(self._form, payload, lengths), deadline, len(payload)
            )
            first = last - len(wished) + 1
            futures = [
                ReceiptFuture(self, self._pages.page_of(seq), seq, (topic, level))
                for seq in range(first, last + 1)
            ]
        self._ring_if_wanted()
        wait = self._timeout if timeout is None else timeout
        return [future.result(wait) for future in futures]

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent is in the log. Raises what a oneway send was refused with."""
        deadline = self._deadline(timeout)
        end = self._lane.put_end
        self._wait(deadline, lambda: self._lane.taken(), lambda: self._taken(end))
        self.look()
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    # --------------------------------------------------------------------------------- the one way

    def _send(
        self, wished: Message, durability: str | None, flags: int, timeout: float | None
    ) -> ReceiptFuture:
        level = self._level_of(wished.topic, durability)
        flags |= RECEIPT | (DURABLE if level == Level.DURABLE else 0)
        seq = self._submit_message(wished, flags, timeout)
        return ReceiptFuture(self, self._pages.page_of(seq), seq, (wished.topic, level))

    def _future(self, seq: int, topic: str) -> ReceiptFuture:
        return ReceiptFuture(self, self._pages.page_of(seq), seq, (topic, Level.WRITTEN))

    def _submit(self, topic: str, body: Any, *, tag: str | None = None) -> int:  # noqa: ANN401
        """What the native put leaves to Python: new routes, a full ring, other bodies."""
        seq = self._submit_message(Message(topic, body, tag=tag), RECEIPT, None)
        self._teach(topic, tag)
        return seq

    def _send_oneway(self, message: Message | str, body: Any = None, **parts: Any) -> None:  # noqa: ANN401
        wished = _message(message, body, parts)
        self._submit_message(wished, 0, None)
        if type(message) is str and (not parts or parts.keys() == {"tag"}):
            self._teach(message, parts.get("tag"))

    def _teach(self, topic: str, tag: str | None) -> None:
        """Let the native put know a route, if it is one that it can use."""
        if self._fast is not None:
            with self._lock:
                route, block = self._routes.number(self._session, topic, tag)
                if not block:
                    self._fast.learn(topic, tag, route)

    def _submit_message(self, wished: Message, flags: int, timeout: float | None) -> int:
        body = np.frombuffer(rules.check_body(wished.body).toreadonly(), np.uint8)
        extra = rules.extra_block(wished.keys, wished.properties)
        with self._lock:
            self._require_open()
            deadline = self._deadline(timeout)
            route, block = self._routes.number(self._living(deadline), wished.topic, wished.tag)
            extra = block + extra
            rules.check_properties_bytes(0, len(extra))
            self._fill_form(flags, route, wished.queue_id)
            extra_array = np.frombuffer(extra, np.uint8) if extra else _NONE
            seq = self._repeat(
                lambda: self._lane.put(self._form, body, extra_array), deadline, len(body)
            )
        self._ring_if_wanted()
        return seq

    def _fill_form(self, flags: int, route: int, queue_id: int | None) -> None:
        self._form[:] = (
            flags, route, -1 if queue_id is None else queue_id, time.time_ns() // 1_000_000, 0, 0,
        )  # fmt: skip

    def _repeat(self, attempt: Any, deadline: int, size: int) -> int:  # noqa: ANN401
        """Put until the ring has room. Raises QueueFull, or BrokerGone and the like."""
        while True:
            seen = self._lane.taken()  # before the attempt: what it may miss must wake us
            result = int(attempt())
            if result > 0:
                return result
            if result == ring.TOO_LARGE:
                self._enlarge(size, deadline)
                continue
            self.look()
            moved = self._wait_once(deadline, lambda seen=seen: self._lane.taken() != seen)
            if not moved:
                raise QueueFull(
                    "the ring to the broker stayed full: it is slower than this producer,"
                    " or its receipts are not taken; wait longer (timeout=) or send less",
                    timeout=self._timeout,
                )

    # ------------------------------------------------------------------------------------- waiting

    def drive(self, receipt: ReceiptFuture, timeout: float | None) -> None:
        """Take completions until the receipt is decided."""
        deadline = self._deadline(timeout)
        while True:
            self.look()
            if receipt.settle():
                return
            if self._spin(receipt):
                return
            if not self._wait_receipt(receipt, deadline):
                raise Timeout(
                    "no receipt yet; the message may still be stored (ask the future again)",
                    seq=receipt._seq,
                )

    def _spin(self, receipt: ReceiptFuture) -> bool:
        """A short look-out before sleeping: a wake-up costs more than the broker's answer."""
        if receipt.wanted_end or not self._lane.spin_completed(limits.SPIN_ROUNDS):
            return False
        self.look()
        return receipt.settle()

    def _wait_receipt(self, receipt: ReceiptFuture, deadline: int) -> bool:
        wanted = receipt.wanted_end
        if wanted:
            at = layout.ARENA_DURABLE_WANTED

            def ready() -> bool:
                board = self._session.board
                ring.publish(self._session.arena, at, wanted)
                return bool(board.word(layout.BOARD_DURABLE) >= wanted)

            return self._sleep(deadline, ready)
        return self._sleep(deadline, lambda: not self._lane.arm_completed())

    def _wait_once(self, deadline: int, ready: Any) -> bool:  # noqa: ANN401
        def armed() -> bool:
            self._lane.arm_taken(self._lane.taken())
            return bool(ready())

        return self._sleep(deadline, armed)

    def _sleep(self, deadline: int, ready: Any) -> bool:  # noqa: ANN401
        """Session.wait, over restarts of the broker: attach again and submit what is open."""
        try:
            return self._session.wait(deadline, ready)
        except BrokerGone:
            with self._lock:
                self._attach_again(deadline)
            return True

    def _wait(self, deadline: int, seen: Any, ready: Any) -> None:  # noqa: ANN401
        while not ready():
            if not self._wait_once(deadline, ready):
                raise Timeout("not everything is in the log yet", seen=seen())

    def _taken(self, end: int) -> bool:
        return self._lane.taken() >= end or self._lane.put_end < end

    def look(self) -> None:
        """Take the completions that are there, without waiting."""
        with self._lock:
            while True:
                rows = self._lane.drain()
                if self._lane.wants_bell:
                    self._session.writer_bell.ring()
                if not len(rows):
                    return
                self._note_refusals(rows)
                self._pages.fill(rows)

    def _note_refusals(self, rows: NDArray[np.int64]) -> None:
        """Keep the first refusal that no receipt will tell: of a oneway send."""
        bad = rows[rows[:, frames.OUT_STATUS] > Status.DUPLICATE]
        for row in bad[bad[:, frames.OUT_STATUS] != Status.UNKNOWN_POSITION]:
            if not self._pages.has(int(row[frames.OUT_SEQ])):
                self._refused = refusal(Status(int(row[frames.OUT_STATUS])), "a topic")
                return

    def watch(self, receipt: ReceiptFuture) -> None:
        """Decide receipts that have callbacks in a thread of our own."""
        with self._lock:
            self._watched.append(receipt)
            if self._watcher is None:
                self._watcher = threading.Thread(
                    target=self._watch, name="gantrymq-receipts", daemon=True
                )
                self._watcher.start()

    def _watch(self) -> None:
        while True:
            with self._lock:
                if not self._watched:
                    self._watcher = None
                    return
                receipt = self._watched[0]
            try:
                self.drive(receipt, None)
            except GantryError as error:
                if receipt._state == "PENDING":
                    receipt.set_exception(error)
            with self._lock:
                self._watched.remove(receipt)

    def durable(self) -> int:
        """The board's durable position."""
        return self._session.board.word(layout.BOARD_DURABLE)

    @property
    def identity(self) -> tuple[str, bytes]:
        """First 20 digits of message ids, and the stored host."""
        return self._identity.hex().upper(), self._store_host

    # ------------------------------------------------------------------------------------- session

    def _attach(self, session: Session, seq: int, completed: int) -> None:
        self._session = session
        self._lane = WriterLane(session.arena, session.plan.writer, seq, completed)
        self._store_host = _HOST + BROKER_PORT.to_bytes(4, "big")
        self._routes.attach(session)
        if self._fast is not None:
            self._fast.attach(session.arena, self._lane.words, session.writer_bell.fileno())

    def _living(self, deadline: int) -> Session:
        try:
            self._session.check()
        except BrokerGone:
            self._attach_again(deadline)
        return self._session

    def _attach_again(self, deadline: int) -> None:
        """After the broker's end: a new session under the old identity. Raises BrokerGone."""
        self._require_open()
        self._replace_session(deadline, self._up_bytes)

    def _replace_session(self, deadline: int, up_bytes: int) -> None:
        old = self._lane
        if self._fast is not None:
            self._fast.detach()
        self.look()
        open_entries = old.unsettled()
        self._session.close()
        while True:
            try:
                session = Session(self._home, self._identity, up_bytes=up_bytes)
                break
            except BrokerGone:
                if time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= deadline:
                    raise
                threading.Event().wait(REATTACH_S)
        self._attach(session, old.seq, int(old.words[frames.COMPLETED]))
        if self._fast is not None:
            self._fast.detach()
        lane = self._lane
        session.wait(deadline, lambda: not lane.arm_taken(-1) and lane.adopted() or lane.adopted())
        for entry in open_entries:
            self._repeat(lambda entry=entry: lane.put_raw(entry), deadline, len(entry))
        self._ring_if_wanted()
        lane.words[frames.SEQ] = old.seq
        if self._fast is not None:
            self._fast.attach(session.arena, lane.words, session.writer_bell.fileno())

    def _enlarge(self, size: int, deadline: int) -> None:
        """A message larger than half the ring: attach again with a larger one."""
        wanted = limits.WRITER_UP_BYTES
        while wanted < 4 * (size + layout.ENTRY_BYTES + limits.PROPERTIES_BYTES_MAX):
            wanted *= 2
        if wanted <= self._up_bytes:
            raise MessageIllegal(f"{size} bytes do not fit into the ring to the broker")
        end = self._lane.put_end
        self._wait(deadline, lambda: self._lane.taken(), lambda: self._taken(end))
        self._up_bytes = wanted
        self._replace_session(deadline, wanted)

    def _ring_if_wanted(self) -> None:
        if self._lane.wants_bell:
            self._session.writer_bell.ring()

    def _level_of(self, topic: str, durability: str | None) -> Level:
        if durability is not None:
            return _level(durability)
        if self._level is not None:
            return self._level
        with self._lock:
            return self._routes.level_asked(self._living(self._deadline(None)), topic)

    def _lay_out(self, wished: list[Message]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        parts: list[Any] = []
        lengths: list[int] = []
        routes: list[int] = []
        with self._lock:
            session = self._living(self._deadline(None))
            for item in wished:
                body = rules.check_body(item.body)
                route, block = self._routes.number(session, item.topic, item.tag)
                extra = block + rules.extra_block(item.keys, item.properties)
                rules.check_properties_bytes(0, len(extra))
                parts += (body, extra)
                lengths += (body.nbytes, len(extra))
                routes.append(route)
        return np.frombuffer(b"".join(parts), np.uint8), np.array(lengths + routes, np.int64)

    def _deadline(self, timeout: float | None) -> int:
        seconds = self._timeout if timeout is None else timeout
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(seconds * 1e9)

    def _require_open(self) -> None:
        if not self._is_open:
            raise Closed("this producer is closed, or belongs to the parent of this process")

    # ----------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Flush and end the session. Safe to call twice."""
        if not self._is_open:
            return
        try:
            self.flush()
        finally:
            self._end()

    def _end(self) -> None:
        self._is_open = False
        if self._fast is not None:
            self._fast.detach()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._end()


REATTACH_S: Final = 0.02
BROKER_PORT: Final = 10911


def _message(message: Message | str, body: Any, parts: dict[str, Any]) -> Message:  # noqa: ANN401
    if isinstance(message, Message):
        if body is not None or parts:
            raise MessageIllegal("give a Message, or topic and body, not both")
        return message
    if body is None:
        raise MessageIllegal("a message needs a body: send(topic, body, ...)", topic=message)
    return Message(message, body, **parts)


def _level(durability: str) -> Level:
    try:
        return LEVELS[durability]
    except KeyError:
        raise MessageIllegal(f"durability {durability!r}: it is 'written' or 'durable'") from None


def _close_in_child() -> None:
    for producer in list(_producers):
        producer._is_open = False
        if producer._fast is not None:
            producer._fast.detach()
        producer._lock = threading.RLock()


os.register_at_fork(after_in_child=_close_in_child)
