"""Sending a message of a transaction: its half is put, natively in the common form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gantrymq.clients.delays import HALF, due_of
from gantrymq.clients.message import Message, message_of
from gantrymq.clients.sends import DURABLE, URGENT
from gantrymq.clients.session import NOW, Turn
from gantrymq.clients.transactions.transaction import OTHERS, HalfReceipt, Transaction
from gantrymq.shm.codes import Level, ParkMode
from gantrymq.shm.errors import BrokerGone, MessageIllegal, Timeout, shown
from gantrymq.shm.fromhandlers import is_ours
from gantrymq.shm.properties import CHECK_IMMUNITY, GANTRY_TX_DELAY, encode_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.clients.delays import Due
    from gantrymq.clients.message import MessageParts, SendReceipt
    from gantrymq.clients.sends import Sends

_TAG: Final = {"tag"}
_DELAY_NAMES: Final = {ParkMode.LEVEL: "level", ParkMode.AT: "at", ParkMode.AFTER: "after"}


class HalfSends:
    """The halves of one producer. `put` is the native put once there is one."""

    def __init__(self, sends: Sends) -> None:
        self._sends = sends
        self._link = sends.link
        self.put: Callable[..., HalfReceipt] = self.submit

    def submit(
        self,
        topic: str,
        body: Any,  # noqa: ANN401 - any buffer
        block: bytes,
        flags: int,
        *,
        tag: str | None = None,
        durability: str | None = None,
    ) -> HalfReceipt:
        """What the native put leaves to Python; `block` is what the extras begin with.

        Raises BrokerGone at once for who does not wait.
        """
        wished = Message(topic, body, tag=tag)
        half = self._sent(wished, block, (durability, None, flags))
        self._link.look_now_and_then(half._seq, 1)
        self._sends.teach(topic, tag)
        return half

    def _sent(
        self, wished: Message, half: bytes, wishes: tuple[str | None, float | None, int]
    ) -> HalfReceipt:
        """Put; who does not wait for the receipt does not wait for the broker."""
        durability, timeout, flags = wishes

        def put() -> HalfReceipt:
            level = self._sends.level_of(wished.topic, durability, timeout)
            # Who neither waits nor wishes so is content with the sync of the commit.
            is_wanted = level == Level.DURABLE and (durability is not None or flags & URGENT)
            more = DURABLE if is_wanted else 0
            page, seq = self._sends.put(wished, flags | more, timeout, HALF, half)
            return HalfReceipt.of(page, seq, wished.topic, level)

        return put() if flags & URGENT else self._link.at_once(put)

    def send(
        self,
        transaction: Transaction | None,
        message: Message | str,
        body: Any,  # noqa: ANN401
        wishes: tuple[str | None, float | None, int],
        parts: MessageParts,
    ) -> HalfReceipt:
        """Put a half; the transaction fails if that does. `wishes`: durability, timeout, flags."""
        if transaction is None:
            transaction, body = body, None
        if type(transaction) is not Transaction:
            raise MessageIllegal(
                f"transaction is {shown(transaction)}: give one of producer.transaction()"
            )
        self._link.require_open()
        lock, taken = transaction.lock, False
        try:  # as `Turn` has it, without its calls: no signal is heard between taking and noting
            (taken,) = map(lock.acquire, NOW)
            if taken:
                return self._add(transaction, message, body, wishes, parts)
        finally:
            if taken:
                lock.release()
        transaction.require_taking()  # another thread's end of it is not waited for
        try:
            with Turn(lock, self._link.deadline(wishes[1]), OTHERS):
                return self._add(transaction, message, body, wishes, parts)
        except Timeout as error:
            transaction.fail(error)
            raise

    def _add(
        self,
        transaction: Transaction,
        message: Message | str,
        body: Any,  # noqa: ANN401
        wishes: tuple[str | None, float | None, int],
        parts: MessageParts,
    ) -> HalfReceipt:
        """Put a half, in the transaction's turn.

        What a signal handler raises may come from behind the put, whatever its type: then the half
        counts as begun, and the transaction has failed.
        """
        block = None
        transaction.adding += 1
        try:
            block = transaction.block(self._link)
            try:
                half = self._put(block, message, body, wishes, parts)
            except BrokerGone as error:
                if wishes[2] & URGENT or not is_ours(error):
                    raise
                half = self._keep(block, message_of(message, body, parts), wishes)
            transaction.add(half)
        except BaseException as error:
            ours = isinstance(error, Exception) and is_ours(error)
            if block is not None or not ours:  # else it is refused, and stays as it was
                transaction.fail(error)
            if block is not None and ours:
                transaction.take_back()
            raise
        finally:
            transaction.adding -= 1
        return half

    def _keep(
        self, block: bytes, wished: Message, wishes: tuple[str | None, float | None, int]
    ) -> HalfReceipt:
        """Have a half put later, while the broker is away, for who does not wait."""
        kept, size = self._sends.kept(wished)
        due_of(kept)

        def put(seconds: float) -> HalfReceipt:
            return self._put(block, kept, None, (wishes[0], seconds, wishes[2] | URGENT), {})

        late = self._link.later(
            lambda: (put, kept.topic, size), HalfReceipt, self._link.deadline(wishes[1])
        )
        assert late is not None, "its class was given"
        return late

    def send_and_wait(
        self,
        transaction: Transaction | None,
        message: Message | str,
        body: Any,  # noqa: ANN401
        wishes: tuple[str | None, float | None, int],
        parts: MessageParts,
    ) -> SendReceipt:
        """As `send`, until the half is stored at its topic's level."""
        half = self.send(transaction, message, body, wishes, parts)
        try:
            return half.result(wishes[1])
        except BaseException as error:
            (transaction or body).fail(error)
            raise

    def _put(
        self,
        block: bytes,
        message: Message | str,
        body: Any,  # noqa: ANN401
        wishes: tuple[str | None, float | None, int],
        parts: MessageParts,
    ) -> HalfReceipt:
        durability, timeout, flags = wishes
        if timeout is None and type(message) is str and (not parts or parts.keys() == _TAG):
            if durability is not None:
                return self.put(message, body, block, flags, durability=durability, **parts)
            if parts:
                return self.put(message, body, block, flags, tag=parts["tag"])
            return self.put(message, body, block, flags)
        wished = message_of(message, body, parts)
        extras, properties = half_extras(due_of(wished), wished.properties)
        if properties is not wished.properties:
            wished = _with_properties(wished, properties)
        return self._sent(wished, block + extras, wishes)


def _with_properties(message: Message, properties: Mapping[str, str]) -> Message:
    return msgspec.structs.replace(message, properties=properties)


def half_extras(due: Due, properties: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
    """What goes behind a transaction's own properties, and the user's without it.

    A delay counts from the commit (LW-47). Raises MessageIllegal for an immunity that is no number.
    """
    ours: dict[str, str] = {}
    if due.mode:
        ours[GANTRY_TX_DELAY] = f"{_DELAY_NAMES[due.mode]}:{due.value}"
    if isinstance(properties, Mapping) and CHECK_IMMUNITY in properties:
        properties = dict(properties)
        seconds = properties.pop(CHECK_IMMUNITY)
        if not (isinstance(seconds, str) and seconds.isdecimal() and len(seconds) < 10):
            raise MessageIllegal(f"{CHECK_IMMUNITY} is seconds in digits, not {seconds!r}")
        ours[CHECK_IMMUNITY] = seconds
    return encode_properties(ours), properties
