"""A bank whose accounts are in SQLite and whose transfers are told in messages, under kills.

A transfer is a local transaction and a half message. Who answers a check marks a transfer that he
does not find, so that it can never be booked afterwards. Each number is tried once.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gantrymq import TransactionResolution
from gantrymq.clients.home import read_board_file
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.shm.board import attach_board
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import BrokerGone, GantryError
from tests.support.watchdog import poll_until

TOPIC: Final = "transfers"
GROUP: Final = "bank"
ACCOUNTS: Final = 20
DEPOSIT: Final = 1000
#: Where a worker dies, or kills somebody else.
BEGUN, SENT, BOOKED, ENDED = "begun", "sent", "booked", "ended"
MOMENTS: Final = (BEGUN, SENT, BOOKED, ENDED)
BROKER: Final = "broker"
AGENTS: Final = (Role.WRITER, Role.TXN_CHECKER, Role.READER)
#: number of a transfer -> when, and who: "worker", "broker", or an agent's name
Plan = dict[int, tuple[str, str]]


def plan_of(seed: int, transfers: int) -> Plan:
    """Each moment for a worker twice, each agent and the whole broker once, at chosen numbers."""
    dice = random.Random(seed)
    faults = [(moment, "worker") for moment in MOMENTS * 2]
    faults += [(dice.choice((SENT, BOOKED)), role.name) for role in AGENTS]
    faults.append((dice.choice((SENT, BOOKED)), BROKER))
    dice.shuffle(faults)
    numbers = sorted(dice.sample(range(transfers // 20, transfers * 9 // 10), len(faults)))
    return dict(zip(numbers, faults, strict=True))


class Overdrawn(Exception):
    """The local transaction does not take place."""


class Bank:
    """The database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mine = threading.local()  # a connection for each thread of each process

    def create(self) -> None:
        """Make it, with all accounts alike."""
        database = self._open()
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE account (number INTEGER PRIMARY KEY, balance INTEGER)")
        database.execute("CREATE TABLE transfer (id INTEGER PRIMARY KEY, booked INTEGER)")
        database.execute("CREATE TABLE counter (following INTEGER)")
        database.execute("INSERT INTO counter VALUES (0)")
        rows = [(number, DEPOSIT) for number in range(ACCOUNTS)]
        database.executemany("INSERT INTO account VALUES (?, ?)", rows)

    def _open(self) -> sqlite3.Connection:
        if getattr(self._mine, "pid", 0) != os.getpid():
            database = sqlite3.connect(self._path, timeout=30.0, isolation_level=None)
            database.execute("PRAGMA synchronous=OFF")  # no power cut is tried
            self._mine.pid, self._mine.database = os.getpid(), database
        found: sqlite3.Connection = self._mine.database
        return found

    def take_number(self) -> int:
        """The next transfer."""
        database = self._open()
        text = "UPDATE counter SET following = following + 1 RETURNING following - 1"
        return int(database.execute(text).fetchall()[0][0])

    def book(self, number: int) -> None:
        """Move money, or raise Overdrawn and change nothing."""
        source, target = number % ACCOUNTS, (number * 7 + 1) % ACCOUNTS
        database = self._open()
        database.execute("BEGIN IMMEDIATE")
        try:
            database.execute("INSERT INTO transfer VALUES (?, 1)", (number,))
            move = "UPDATE account SET balance = balance + ? WHERE number = ?"
            database.execute(move, (-number, source))
            database.execute(move, (number, target))
            if number % 10 == 3:
                raise Overdrawn(number)
        except sqlite3.IntegrityError as error:  # a check was faster
            database.execute("ROLLBACK")
            raise Overdrawn(number) from error
        except Overdrawn:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")

    def check(self, message: Message) -> TransactionResolution:
        """What became of a transfer; one that has not been booked never will be."""
        number = int(bytes(message.body))
        database = self._open()
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT OR IGNORE INTO transfer VALUES (?, 0)", (number,))
        query = "SELECT booked FROM transfer WHERE id = ?"
        ((booked,),) = database.execute(query, (number,)).fetchall()
        database.execute("COMMIT")
        return TransactionResolution.COMMIT if booked else TransactionResolution.ROLLBACK

    def booked(self) -> set[int]:
        """Transfers that took place."""
        database = self._open()
        return {row[0] for row in database.execute("SELECT id FROM transfer WHERE booked = 1")}

    def total(self) -> int:
        """All balances."""
        database = self._open()
        ((total,),) = database.execute("SELECT sum(balance) FROM account").fetchall()
        return int(total)


def office(home: Path, bank: Bank, plan: Plan, transfers: int) -> int:
    """Start a process that has transfers made by workers, a new one for each that was killed.

    Returns its pid. It ends with 0 when there are no more numbers.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        while True:
            worker = os.fork()
            if not worker:
                _work(home, bank, plan, transfers)
            _, status = os.waitpid(worker, 0)
            code = os.waitstatus_to_exitcode(status)
            if code != -signal.SIGKILL:
                break
    finally:
        os._exit(code)


def _work(home: Path, bank: Bank, plan: Plan, transfers: int) -> None:
    code = 1
    try:
        with _producer(home, bank) as producer:
            while (number := bank.take_number()) < transfers:
                _transfer(producer, bank, number, _fault_of(home, plan.get(number)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _producer(home: Path, bank: Bank) -> Producer:
    """A producer; begun while the broker is being started again, it tries until one answers."""
    found: list[Producer] = []

    def opens() -> bool:
        try:
            found.append(Producer(home, producer_group=GROUP, transaction_checker=bank.check))
        except BrokerGone:
            return False
        return True

    poll_until(opens, "a broker answers", 60.0)
    return found[0]


def _transfer(producer: Producer, bank: Bank, number: int, fault: Callable[[str], None]) -> None:
    fault(BEGUN)
    try:
        with producer.transaction() as transaction:
            producer.send(TOPIC, b"%d" % number, transaction=transaction)
            fault(SENT)
            bank.book(number)
            fault(BOOKED)
    except (Overdrawn, GantryError):
        pass  # rolled back, or in doubt: then a check settles it
    fault(ENDED)


def _fault_of(home: Path, wanted: tuple[str, str] | None) -> Callable[[str], None]:
    def fault(moment: str) -> None:
        if wanted is None or moment != wanted[0]:
            return
        who = wanted[1]
        if who == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        board = attach_board(read_board_file(home)["board"])
        if who == BROKER:
            os.kill(int((home / "pid").read_text()), signal.SIGKILL)
        else:
            os.kill(board.process(Role[who])["pid"], signal.SIGKILL)

    return fault
