"""An application of transactions in the simulator, with the public API.

What its work came to is in a database that outlives it (txnoracle.Transaction.local).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantrymq.clients.message import ReceivedMessage, SendReceipt
from gantrymq.clients.producer import Producer
from gantrymq.clients.transactions.resolution import TransactionResolution
from gantrymq.shm.codes import ParkMode
from gantrymq.shm.errors import (
    Closed,
    DiskFull,
    GantryError,
    StoreFailed,
)
from gantrymq.shm.messageid import parse_offset_message_id
from gantrymq.shm.transactionwire import COMMITTED, ROLLED_BACK
from tests.support import simthreads
from tests.support.simapps import Application, fate_of
from tests.support.simbooks import Books
from tests.support.txnoracle import Transaction as Known

if TYPE_CHECKING:
    from gantrymq.clients.transactions.transaction import Transaction
    from tests.support.simdoor import DoorMachine

GROUP: Final = "pay"
HALVES_MAX: Final = 3
_HALF: Final = (int(ParkMode.HALF), 0)


class Payer(Application):
    """One producer with transactions, and answers to checks."""

    def __init__(self, name: str, machine: DoorMachine, books: Books, count: int) -> None:
        self.left = count
        self.topics = list(machine.topics)
        self._busy = False
        super().__init__(name, machine, books)

    @property
    def done(self) -> bool:
        """All begun and ended, as far as it can."""
        return self.left <= 0 and not self._busy

    def send_more(self, count: int) -> None:
        """More transactions."""
        self.left += (count + 3) // 4

    def main(self) -> None:
        """Transactions one after the other; again with another producer if the store fails."""
        while not self.stopping:
            producer = self.patiently(self._make)
            if producer is None:
                return
            self._serve(producer)
            try:
                producer.close()
            except GantryError as error:
                self.books.tally[f"payers end by {type(error).__name__}"] += 1

    def _make(self) -> Producer:
        made = Producer(
            self.machine.home, timeout=2.0, producer_group=GROUP, transaction_checker=self.check
        )
        self.books.transactions.served.add(GROUP)
        return made

    def _serve(self, producer: Producer) -> None:
        while True:
            simthreads.wait(lambda: self.left > 0 or self.stopping)
            if self.left <= 0:
                return
            self.left -= 1
            self._busy = True
            try:
                self._pay(producer)
            except StoreFailed as error:
                if not isinstance(error, DiskFull):
                    return
            finally:
                self._busy = False
            self.rest(0.005)

    def _pay(self, producer: Producer) -> None:
        transaction = producer.transaction()
        tx = transaction.transaction_id
        process = self.process
        known = Known(tx, GROUP, "", lambda: process.is_alive)
        self.books.transactions.all[tx] = known
        try:
            for _ in range(self.dice.randint(1, HALVES_MAX)):
                self._send(producer, transaction, known)
            self.rest(0.3)
            self._end(producer, transaction, known)
        except GantryError as error:
            self.books.tally[f"payments end by {type(error).__name__}"] += 1
            known.wavers = True  # part of it may be there, and goes as checks say
            if known.local is None:
                known.local = False
            if isinstance(error, StoreFailed):
                raise

    def _send(self, producer: Producer, transaction: Transaction, known: Known) -> None:
        topic, body = self._begin(known)
        wished = self.books.stamp(body)
        self._book(
            body, known, lambda: producer.send(topic, body, transaction=transaction, **wished)
        )

    def _begin(self, known: Known) -> tuple[str, bytes]:
        topic, size = self.dice.choice(self.topics), self.dice.choice([0, 200])
        body = self.books.begin(self.name, topic, size, _HALF)
        self.books.transactions_of[body] = known
        return topic, body

    def _book(self, body: bytes, known: Known, send: Callable[[], SendReceipt]) -> None:
        try:
            receipt = send()
        except GantryError as error:
            self.books.ended(body, fate_of(error), error)
            raise
        self.books.acknowledged(body, receipt)
        if receipt.durability == "durable" and receipt.offset_msg_id:
            known.safe.add(parse_offset_message_id(receipt.offset_msg_id)[1])

    def _end(self, producer: Producer, transaction: Transaction, known: Known) -> None:
        if self.dice.random() < 0.15:
            known.local = self.dice.random() < 0.5
            known.wavers = True  # a close rolls back what no check has asked for before
            return  # left to checks
        known.local = self.dice.random() < 0.75
        if self.dice.random() < 0.3:
            self._end_later(producer, transaction, known)
            return
        (transaction.commit if known.local else transaction.rollback)()
        self._told(known)

    def _end_later(self, producer: Producer, transaction: Transaction, known: Known) -> None:
        if known.local:
            future = transaction.commit_async()
            self._refuse(producer, transaction)
            future.result()
        else:
            self._roll_back_on_its_way(producer, transaction, known)
        self._told(known)

    def _refuse(self, producer: Producer, transaction: Transaction) -> None:
        """What comes behind the end is taken by nobody."""
        try:
            producer.send_async(self.topics[0], b"late", transaction=transaction)
        except Closed:
            self.books.tally["late halves refused"] += 1
            return
        raise AssertionError("a message is taken behind its transaction's end")

    def _roll_back_on_its_way(
        self, producer: Producer, transaction: Transaction, known: Known
    ) -> None:
        """A message that nobody has waited for goes with the others."""
        topic, body = self._begin(known)
        try:
            half = producer.send_async(topic, body, transaction=transaction)
        except GantryError as error:
            self.books.ended(body, fate_of(error), error)
            raise
        try:
            transaction.rollback()
        finally:
            self._book(body, known, half.result)
        self.books.tally["halves rolled back on their way"] += 1

    def _told(self, known: Known) -> None:
        self.books.tally["payments"] += 1
        for position in self.books.places_of(known):
            known.told.setdefault(position, COMMITTED if known.local else ROLLED_BACK)

    def check(self, message: ReceivedMessage) -> TransactionResolution:
        """What the database says; of a process that is gone and has not done its work: nothing."""
        known = self.books.transactions_of.get(bytes(message.body))
        assert known is not None, f"a check of {message}, which nobody has sent"
        self.books.tally["checks answered"] += 1
        if known.local is None:
            if known.lives():
                return TransactionResolution.UNKNOWN
            known.local = False
        return TransactionResolution.COMMIT if known.local else TransactionResolution.ROLLBACK
