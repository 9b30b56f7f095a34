"""The demo's third story: a commit, a rollback, and a check that rescues a killed producer.

The producer dies between its own commit and that of its message. Another one of its group is asked,
looks into the books, and the message is delivered all the same.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.transactions.resolution import TransactionResolution

TOPIC: Final = "demo-payments"
GROUP: Final = "demo-bank"
PAID, REFUSED, RESCUED, LOST = "paid", "refused", "rescued", "lost"
PATIENCE_S: Final = 60.0


class Story(NamedTuple):
    """What happened."""

    delivered: list[str]
    asked: dict[str, str]  # of whom the checker was asked, and its answers
    killed: list[int]  # exit codes of producers that died
    rescued_s: float  # from the death to the delivery


class Books:
    """The producer's own database: a row for each payment that took place."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self) -> None:
        """Make it."""
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute("CREATE TABLE payment (id TEXT PRIMARY KEY)")

    def pay(self, payment: str) -> None:
        """Book a payment."""
        with closing(sqlite3.connect(self._path, timeout=PATIENCE_S)) as database, database:
            database.execute("INSERT INTO payment VALUES (?)", (payment,))

    def has(self, payment: str) -> bool:
        """Whether it was booked."""
        with closing(sqlite3.connect(self._path, timeout=PATIENCE_S)) as database:
            query = "SELECT count(*) FROM payment WHERE id = ?"
            ((count,),) = database.execute(query, (payment,)).fetchall()
            return bool(count)


def die(home: Path, path: Path, payment: str) -> None:
    """A producer's life: half message, payment (if it is RESCUED), SIGKILL before the commit."""
    producer = Producer(home, producer_group=GROUP, timeout=PATIENCE_S)
    transaction = producer.begin_transaction()
    producer.send(TOPIC, payment.encode(), transaction=transaction)
    if payment == RESCUED:
        Books(path).pay(payment)
    os.kill(os.getpid(), signal.SIGKILL)


def play(home: Path, path: Path) -> Story:
    """Let it happen. Raises TimeoutError if something that was promised does not come."""
    books, asked = Books(path), dict[str, str]()
    books.create()

    def check(message: Message) -> TransactionResolution:
        payment = bytes(message.body).decode()
        paid = books.has(payment)
        asked[payment] = "paid" if paid else "not paid"
        return TransactionResolution.COMMIT if paid else TransactionResolution.ROLLBACK

    killed = [_killed(home, path, payment) for payment in (RESCUED, LOST)]
    died_s = time.monotonic()
    with Producer(
        home, producer_group=GROUP, transaction_checker=check, timeout=PATIENCE_S
    ) as producer:
        with producer.transaction() as transaction:
            producer.send(TOPIC, PAID.encode(), transaction=transaction)
            books.pay(PAID)
        try:
            with producer.transaction() as transaction:
                producer.send(TOPIC, REFUSED.encode(), transaction=transaction)
                raise PermissionError("the account is closed")
        except PermissionError:
            pass
        delivered, rescued_s = _consume(home, died_s, lambda: len(asked) == len(killed))
    return Story(delivered, asked, killed, rescued_s)


def _killed(home: Path, path: Path, payment: str) -> int:
    words = [sys.executable, "-P", "-m", "scripts.demo_transactions", str(home), str(path), payment]
    return subprocess.run(words, check=False).returncode


def _consume(home: Path, died_s: float, over: Callable[[], bool]) -> tuple[list[str], float]:
    """Bodies until the rescued one is there and nobody is to be asked any more."""
    found: list[str] = []
    rescued_s = 0.0
    deadline = time.monotonic() + PATIENCE_S
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer("demo-audit", [TOPIC], home=home, consume_from=first) as consumer:
        while not (RESCUED in found and over()):
            found += [bytes(body).decode() for body in consumer.poll(timeout=0.5).bodies]
            if RESCUED in found and not rescued_s:
                rescued_s = time.monotonic() - died_s
            if time.monotonic() > deadline:
                raise TimeoutError(f"{RESCUED!r} did not come within {PATIENCE_S:.0f} s")
        found += [bytes(body).decode() for body in consumer.poll(timeout=0.5).bodies]
    return sorted(found), rescued_s


def problems(story: Story) -> list[str]:
    """What is not as promised."""
    wrong = []
    if story.delivered != sorted((PAID, RESCUED)):
        wrong.append(f"delivered: {story.delivered}")
    if story.asked != {RESCUED: "paid", LOST: "not paid"}:
        wrong.append(f"asked: {story.asked}")
    if story.killed != [-signal.SIGKILL] * 2:
        wrong.append(f"producers ended with {story.killed}")
    return wrong


def judge(home: Path, work: Path, say: Callable[[str], None]) -> bool:
    """The whole story at a running broker: told, and as promised."""
    try:
        story = play(home, work / "payments.db")
    except TimeoutError as error:
        say(f"DOES NOT HOLD: {error}")
        return False
    say(f"transactions: {PAID!r} committed, {REFUSED!r} rolled back by an exception")
    say(f"two producers were killed before their commit; asked instead: {story.asked}")
    say(
        f"{RESCUED!r} delivered {story.rescued_s:.1f} s after the death of its producer; in the"
        f" topic: {', '.join(story.delivered)}"
    )
    wrong = problems(story)
    say("transactions: " + ("; ".join(["DOES NOT HOLD", *wrong]) if wrong else "hold"))
    return not wrong


if __name__ == "__main__":
    die(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
