"""Transfers: a row in a database and a message about it come together, or neither does.

Shows: a transaction around the local work; a checker that reads the database when nobody has told
the broker how it ended, as after a crash just behind the database's own commit.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from gantrymq import (
    Broker,
    ConsumeFrom,
    Message,
    Producer,
    PullConsumer,
    TransactionResolution,
)


def transfer(producer: Producer, bank: sqlite3.Connection, number: int, amount: int) -> None:
    """Book it and tell of it; an exception undoes both."""
    with producer.transaction() as tx, bank:
        producer.send("transfers", b"%d" % number, keys=[str(number)], transaction=tx)
        bank.execute("INSERT INTO transfer VALUES (?, ?)", (number, amount))


def crash(producer: Producer, bank: sqlite3.Connection, number: int) -> None:
    """As if the process died behind the database's commit: nobody ends the transaction."""
    tx = producer.begin_transaction()
    producer.send("transfers", b"%d" % number, keys=[str(number)], transaction=tx)
    with bank:
        bank.execute("INSERT INTO transfer VALUES (?, 1)", (number,))


with (
    tempfile.TemporaryDirectory() as folder,
    Broker.temporary(transaction_timeout_s=1) as broker,
    closing(sqlite3.connect(Path(folder) / "bank.db")) as bank,
):
    bank.execute("CREATE TABLE transfer (number INTEGER PRIMARY KEY, amount INTEGER CHECK(amount))")

    def checker(message: Message) -> TransactionResolution:
        """In a thread of its own, so with a connection of its own."""
        with closing(sqlite3.connect(Path(folder) / "bank.db")) as own:
            row = own.execute("SELECT 1 FROM transfer WHERE number = ?", message.keys).fetchone()
        return TransactionResolution.COMMIT if row else TransactionResolution.UNKNOWN

    with (
        Producer(broker.home, producer_group="bank", transaction_checker=checker) as producer,
        PullConsumer(
            "audit", ["transfers"], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as audit,
    ):
        for number, amount in enumerate((100, 0, 250)):
            try:
                transfer(producer, bank, number, amount)
            except sqlite3.IntegrityError:
                print(number, "was refused by the database: nobody hears of it")
        crash(producer, bank, 3)
        heard = sorted(int(message.body) for _, message in zip(range(3), audit, strict=False))
    print("heard of", *heard)
