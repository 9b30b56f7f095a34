"""Producer: messages into the writer's ring, receipts out of it.

One object may be used by several threads. It survives a restart of the writer (its ring stays as
it is) and of the whole broker (clients/writerlink.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, Unpack, overload

from gantrymq.clients.arguments import TIMEOUT_S, judged
from gantrymq.clients.backlog import Put
from gantrymq.clients.batches import BatchFuture
from gantrymq.clients.batchsends import BatchSends
from gantrymq.clients.closing import OfOneProcess
from gantrymq.clients.delays import DELAY_PARTS, NOW, due_of
from gantrymq.clients.fastcall import FastPut, is_available, make_native
from gantrymq.clients.home import find_home
from gantrymq.clients.message import (
    NO_PROPERTIES,
    BatchParts,
    Body,
    Durability,
    Message,
    MessageParts,
    ReceivedMessage,
    SendReceipt,
    message_of,
)
from gantrymq.clients.recalloutcome import RecallOutcome
from gantrymq.clients.recalls import Recaller
from gantrymq.clients.receipts import ReceiptFuture
from gantrymq.clients.sends import DURABLE, RECEIPT, URGENT, Sends
from gantrymq.clients.transactions.desk import Transactions, require_group
from gantrymq.clients.transactions.halves import HalfSends
from gantrymq.clients.transactions.resolution import TransactionResolution
from gantrymq.clients.transactions.transaction import HalfReceipt, Transaction
from gantrymq.shm import jit
from gantrymq.shm.codes import Level
from gantrymq.shm.errors import MessageIllegal
from gantrymq.shm.jit import HoldsState
from gantrymq.shm.kernels import fastbatch, fastput

_TAG: Final = {"tag"}
#: What the native put takes by name.
_NATIVE: Final = _TAG | DELAY_PARTS


class Producer(HoldsState, OfOneProcess):
    """Sends messages to the broker of a home directory.

    `timeout` bounds every wait, in seconds: 10 by default (None), for ever with math.inf; a call's
    own `timeout=` goes before. `durability` is "written" or "durable" and defaults to each topic's.
    """

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
        producer_group: str | None = None,
        transaction_checker: Callable[[ReceivedMessage], TransactionResolution] | None = None,
    ) -> None:
        """Attach. Raises BrokerGone, NotPermitted, Incompatible, GroupIllegal.

        `transaction_checker` is asked, in a thread of its own, about transactions of the group that
        nobody has ended, until this is closed, or freed, which a checker that has it prevents. Each
        producer of the group has the same one.
        """
        home, durability, timeout, producer_group, transaction_checker = judged(
            "Producer", home, durability, timeout, producer_group, transaction_checker
        )
        timeout = TIMEOUT_S if timeout is None else timeout
        if transaction_checker is not None:
            require_group(producer_group)
        jit.warm()
        sends = self._sends = Sends(home, timeout, durability)
        self._link = sends.link
        self.producer_group = producer_group
        self._home = home
        self._recaller = Recaller(home)
        self._transactions: Transactions | None = None
        self._patience_s = timeout
        batches = self._batches = BatchSends(sends)
        self._halves = HalfSends(sends)
        self._put_batch_urgent: Callable[..., BatchFuture] = batches.urgent
        self._put_urgent: Callable[..., ReceiptFuture] = self._submit_urgent
        self._put_durable: Callable[..., ReceiptFuture] = self._submit_durable
        if is_available():
            fast = self._link.fast = FastPut(
                self._send_oneway,
                self._submit_urgent,
                self._submit_durable,
                self._send_async,
                self._halves.submit,
            )
            fast.make_receipts(ReceiptFuture, HalfReceipt)
            fast.know_messages(Message, NO_PROPERTIES)
            fast.make_batches(BatchFuture, batches.asynchronous, batches.urgent)
            fast.give_to(self)
            self._put_batch_urgent = fast.batch_urgent
            self._put_urgent = fast.urgent
            self._put_durable = fast.urgent_durable
            self._halves.put = fast.half
        self._link.open()
        try:
            if transaction_checker is not None:
                self._begun().answer_checks(transaction_checker)
        except BaseException:
            self._end(self._link.look)
            raise

    # ------------------------------------------------------------------------------------ sending

    @overload
    def send(
        self,
        message: Message,
        body: Transaction | None = None,
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
        transaction: Transaction | None = None,
    ) -> SendReceipt: ...
    @overload
    def send(
        self,
        message: str,
        body: Body,
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
        transaction: Transaction | None = None,
        **parts: Unpack[MessageParts],
    ) -> SendReceipt: ...
    def send(
        self,
        message: Message | str,
        body: Body | Transaction | None = None,
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
        transaction: Transaction | None = None,
        **parts: Unpack[MessageParts],
    ) -> SendReceipt:
        """Send and wait: `send("orders", b"...", tag="paid")` or `send(Message(...))`.

        With a `transaction` (also by place, `send(message, tx)`) it is delivered when that is
        committed, a delay counts from then, and any error makes the transaction fail.
        Raises MessageIllegal, TopicNotFound, QueueFull, Timeout, BrokerGone, StoreFailed, DiskFull.
        """
        if timeout is not None:
            durability, timeout = judged("Producer.send", durability, timeout)
        if transaction is not None or type(body) is Transaction:
            return self._halves.send_and_wait(
                transaction, message, body, (durability, timeout, RECEIPT | URGENT), parts
            )
        if timeout is None and isinstance(message, str) and (not parts or parts.keys() == _TAG):
            level = self._sends.known_level(message, durability)
            if level is not None:
                put = self._put_durable if level else self._put_urgent
                sent = put(message, body, tag=parts["tag"]) if parts else put(message, body)
                return sent.result()
        wished = message_of(message, body, parts)
        return self._send(wished, durability, URGENT, timeout).result(timeout)

    @overload
    def send_async(
        self,
        message: Message,
        body: Transaction | None = None,
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
        transaction: Transaction | None = None,
    ) -> ReceiptFuture: ...
    @overload
    def send_async(
        self,
        message: str,
        body: Body,
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
        transaction: Transaction | None = None,
        **parts: Unpack[MessageParts],
    ) -> ReceiptFuture: ...
    def send_async(
        self,
        message: Message | str,
        body: Body | Transaction | None = None,
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
        transaction: Transaction | None = None,
        **parts: Unpack[MessageParts],
    ) -> ReceiptFuture:
        """Send without waiting. Raises QueueFull when the ring to the broker stays full.

        A `transaction` waits for it when it is committed.
        """
        return self._send_async(
            message, body, durability=durability, timeout=timeout, transaction=transaction, **parts
        )

    @overload
    def send_oneway(self, message: Message) -> None: ...
    @overload
    def send_oneway(self, message: str, body: Body, **parts: Unpack[MessageParts]) -> None: ...
    def send_oneway(
        self,
        message: Message | str,
        body: Body | None = None,
        **parts: Unpack[MessageParts],
    ) -> None:
        """Send without a receipt; a refusal is raised by a later `flush`, or `close`."""
        self._send_oneway(message, body, **parts)

    @overload
    def send_batch(
        self,
        messages: Iterable[Message],
        bodies: None = None,
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
    ) -> Sequence[SendReceipt]: ...
    @overload
    def send_batch(
        self,
        messages: str,
        bodies: Iterable[Body],
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
        **parts: Unpack[BatchParts],
    ) -> Sequence[SendReceipt]: ...
    def send_batch(
        self,
        messages: Iterable[Message] | str,
        bodies: Iterable[Body] | None = None,
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
        **parts: Unpack[BatchParts],
    ) -> Sequence[SendReceipt]:
        """Send messages of one topic into one queue, and wait: all are stored or none.

        `send_batch([Message(...), ...])`, or `send_batch("orders", bodies, tag="paid")` where all
        have the same parts. Holds also when processes are killed; ADR 0006 says what a power cut
        may leave.
        """
        named: dict[str, Any] = {**parts}
        if timeout is not None:
            durability, timeout = judged("Producer.send", durability, timeout)
            named["timeout"] = timeout
        if durability is not None:
            named["durability"] = durability
        if bodies is None:
            future = self._put_batch_urgent(messages, **named)
        else:
            future = self._put_batch_urgent(messages, bodies, **named)
        return future.result(self._link.timeout if timeout is None else timeout)

    @overload
    def send_batch_async(
        self,
        messages: Iterable[Message],
        bodies: None = None,
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
    ) -> Future[Sequence[SendReceipt]]: ...
    @overload
    def send_batch_async(
        self,
        messages: str,
        bodies: Iterable[Body],
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
        **parts: Unpack[BatchParts],
    ) -> Future[Sequence[SendReceipt]]: ...
    def send_batch_async(
        self,
        messages: Iterable[Message] | str,
        bodies: Iterable[Body] | None = None,
        *,
        durability: Durability | None = None,
        timeout: float | None = None,
        **parts: Unpack[BatchParts],
    ) -> Future[Sequence[SendReceipt]]:
        """As `send_batch` without waiting: several batches are on their way at a time.

        `timeout` bounds the wait for room. Raises MessageIllegal, TopicNotFound, QueueFull; what
        the broker refuses is raised by the future.
        """
        return self._batches.asynchronous(
            messages, bodies, durability=durability, timeout=timeout, **parts
        )

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent is in the log. Raises what a oneway send was refused with."""
        (timeout,) = judged("Producer.flush", timeout)
        self._link.require_open()
        deadline = self._link.deadline(timeout)
        self._link.backlog.wait(deadline)
        self._link.wait_taken(deadline)
        self._link.look()
        self._link.raise_refusal()

    # --------------------------------------------------------------------------------- the one way

    def _send(
        self, wished: Message, durability: str | None, flags: int, timeout: float | None
    ) -> ReceiptFuture:
        due = due_of(wished)
        level = self._sends.level_of(wished.topic, durability, timeout)
        flags |= RECEIPT | (DURABLE if level == Level.DURABLE else 0)
        page, seq = self._sends.put(wished, flags, timeout, due)
        return ReceiptFuture.of(page, seq, wished.topic, level, due)

    def _send_async(
        self,
        message: Message | str,
        body: Any = None,  # noqa: ANN401
        *,
        durability: str | None = None,
        timeout: float | None = None,
        transaction: Transaction | None = None,
        **parts: Unpack[MessageParts],
    ) -> ReceiptFuture:
        """What the native put leaves to Python."""
        if timeout is not None:
            durability, timeout = judged("Producer.send", durability, timeout)
        if transaction is not None or type(body) is Transaction:
            wishes = (durability, timeout, RECEIPT)
            return self._halves.send(transaction, message, body, wishes, parts)
        wished = message_of(message, body, parts)
        due_of(wished)

        def put(seconds: float, wished: Message = wished) -> ReceiptFuture:
            return self._send(wished, durability, 0, seconds)

        def keep() -> tuple[Put, str, int]:
            kept, size = self._sends.kept(wished)
            return partial(put, wished=kept), kept.topic, size

        receipt = self._link.soon(put, keep, ReceiptFuture, timeout)
        assert receipt is not None, "it is not sent one-way"
        if self._link.backlog:
            return receipt
        self._link.look_now_and_then(receipt._seq, 1)
        if type(message) is str and parts.keys() <= _NATIVE:
            self._sends.teach(message, parts.get("tag"))
        return receipt

    def _submit_urgent(
        self,
        topic: str,
        body: Any,  # noqa: ANN401
        *,
        tag: str | None = None,
    ) -> ReceiptFuture:
        """What the native put leaves to Python, for a sender who waits."""
        return self._submit_waiting(Message(topic, body, tag=tag), Level.WRITTEN)

    def _submit_durable(
        self,
        topic: str,
        body: Any,  # noqa: ANN401
        *,
        tag: str | None = None,
    ) -> ReceiptFuture:
        """As `_submit_urgent`; the flusher is to sync at once."""
        return self._submit_waiting(Message(topic, body, tag=tag), Level.DURABLE)

    def _submit_waiting(self, wished: Message, level: Level) -> ReceiptFuture:
        flags = RECEIPT | URGENT | (DURABLE if level == Level.DURABLE else 0)
        page, seq = self._sends.put(wished, flags, None, NOW)
        self._link.look_now_and_then(seq, 1)
        self._sends.teach(wished.topic, wished.tag)
        return ReceiptFuture.of(page, seq, wished.topic, level)

    def _send_oneway(
        self,
        message: Message | str,
        body: Any = None,  # noqa: ANN401
        **parts: Unpack[MessageParts],
    ) -> None:
        if "transaction" in parts or type(body) is Transaction:
            raise MessageIllegal("a transaction needs to know what is stored: use send")
        wished = message_of(message, body, parts)
        due = due_of(wished)

        def put(seconds: float, wished: Message = wished) -> None:
            self._sends.submit(wished, 0, seconds, due)

        def keep() -> tuple[Put, str, int]:
            kept, size = self._sends.kept(wished)
            return partial(put, wished=kept), kept.topic, size

        self._link.soon(put, keep, None, None)
        if not self._link.backlog and type(message) is str and parts.keys() <= _NATIVE:
            self._sends.teach(message, parts.get("tag"))

    # -------------------------------------------------------------------------------- transactions

    def transaction(self) -> Transaction:
        """A transaction for `with`: committed at the end, rolled back on an exception.

        Raises GroupIllegal for a producer without producer_group.
        """
        transactions = self._transactions or self._begun()
        if not self._link.is_open:
            self._link.require_open()
        return Transaction(transactions)

    #: To be ended by its `commit` or `rollback`, as in the official client.
    begin_transaction = transaction

    def _begun(self) -> Transactions:
        """What there is of transactions, from the first one on."""
        with self._link.lock:
            if self._transactions is None:
                self._link.require_open()
                group = require_group(self.producer_group)
                self._transactions = Transactions(self._home, group, self._patience_s, self._link)
            return self._transactions

    def recall_message(
        self, topic: str, recall_handle: str, *, timeout: float | None = None
    ) -> RecallOutcome:
        """Cancel a delayed message; says whether that was in time.

        `recall_handle` is its receipt's. Levels have none. Raises MessageIllegal for what is no
        handle of the topic, Timeout when it is not known what became of it, DiskFull when nothing
        can be done for want of room.
        """
        topic, recall_handle, timeout = judged(
            "Producer.recall_message", topic, recall_handle, timeout
        )
        self._link.require_open()
        patience = self._patience_s if timeout is None else timeout
        return self._recaller.recall(topic, recall_handle, patience)

    # ----------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Flush, await commits, roll back transactions that were left open, end.

        Raises what `flush` raises, when all else is done. Safe to call twice.
        """
        self._end(self.flush)

    def _end(self, flush: Callable[[], None]) -> None:
        self._recaller.close()
        if not self._link.is_open:
            return
        try:
            try:
                flush()  # first: transactions wait for a broker that is away less long
            finally:
                if self._transactions is not None:
                    self._transactions.close()
        finally:
            self._link.end()

    def __repr__(self) -> str:
        group = f", group {self.producer_group!r}" if self.producer_group else ""
        state = "open" if self._link.is_open else "closed"
        return f"<Producer at {find_home(self._home)}{group}, {state}>"

    def __enter__(self) -> Self:
        self._link.require_open()
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
            self._end(self._link.look)  # waits for nothing; refusals that are there are told


if is_available():
    # Machine code takes the common case, the methods above the rest.
    make_native(
        Producer,
        send_oneway=fastput.oneway,
        send_async=fastput.asynchronous,
        send_batch_async=fastbatch.batch_asynchronous,
    )
