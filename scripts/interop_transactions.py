"""A store with open, decided and given-up transactions, and two brokers: legs of `make interop`.

Ours is handed over, after a clean stop or a kill; a live producer that the RocketMQ can ask commits
what is open. In one leg there is none: the RocketMQ puts its halves back at each pass, is killed,
and what it leaves is adopted and finished by a broker of ours, whose outcome RocketMQ accepts. In
the end the log has every committed message once and nothing else, and nobody was asked about what
had been decided.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gantrymq import Broker, Message, Producer, TransactionResolution
from gantrymq.brokerd.dump import dump_objects
from gantrymq.cli.tx_show import look
from gantrymq.clients.home import read_board_file
from gantrymq.shm import layout
from gantrymq.shm.board import attach_board
from scripts.interop_checker import PATIENCE_S, Checker, Refused, wait_until
from scripts.interop_producer import LiveProducer
from scripts.interop_stores import CHECK, require_sound
from scripts.interop_table import Row

TOPIC: Final = "paid"
PLAIN: Final = "orders"
GROUP: Final = "bank"
SILENT: Final = "silent"
OF_EACH: Final = 4
#: Until all is asked, and for two passes more, in which nothing may be asked again.
WATCH_S: Final = 20.0
_PASS_MS: Final = 3000
_OPTIONS: Final = (
    *("-D", f"transactionCheckInterval={_PASS_MS}"),
    *("-D", "transactionTimeOut=1000"),
    *("-D", "transactionOpBatchInterval=300"),
    *("-D", "transactionCheckMax=1000"),
)
_SETTINGS: Final[dict[str, object]] = {
    "transaction_timeout_s": 1,
    "transaction_check_interval_s": 1,
    "transaction_check_max": 1,
}
_DYING: Final = """
import os, sys
from gantrymq import Producer
producer = Producer(sys.argv[1], producer_group=sys.argv[2])
for body in sys.argv[3:]:
    producer.send("paid", body.encode(), transaction=producer.begin_transaction(), keys=[body])
os._exit(0)
"""


@dataclass
class Sent:
    """Bodies by what became of them."""

    committed: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Leg:
    """What happens after the transactions have begun."""

    name: str
    did: str
    steps: Callable[[Broker, Checker, Path, Sent], None]

    @property
    def row(self) -> Row:
        """Its row of the table."""
        return Row(self.name, self.did)


def run(leg: Leg, checker: Checker, log: Path) -> str:
    """One leg; what was found in the end. Raises Refused, GantryError."""
    settings = {**checker.settings_of_ours(checker.version), **_SETTINGS}
    with Broker.temporary(**settings) as broker:
        sent = _send(broker)
        leg.steps(broker, checker, log, sent)
        return _judge(broker.home / "store", sent)


# -------------------------------------------------------------------------------------------- legs


def _stopped(broker: Broker, checker: Checker, log: Path, sent: Sent) -> None:
    broker.stop()
    _hand_over(broker, sent)
    _finish_there(broker, checker, log, sent)


def _killed(broker: Broker, checker: Checker, log: Path, sent: Sent) -> None:
    broker.process.kill()
    broker.process.wait()
    _hand_over(broker, sent)
    _finish_there(broker, checker, log, sent)


def _returned(broker: Broker, checker: Checker, log: Path, sent: Sent) -> None:
    """Put back by a RocketMQ that nobody answers, killed, adopted, finished by us."""
    store = broker.home / "store"
    broker.stop()
    _hand_over(broker, sent)
    first = log.with_suffix(".first.log")
    checker.go_on(store, (5, PLAIN), first, killed=True, stay=2 * _PASS_MS / 1000, options=_OPTIONS)
    told = json.loads(_command("adopt", str(store), "--json"))
    if (told["open_halves"], told["given_up"]) != (len(sent.opened), len(sent.given_up)):
        raise Refused(f"adopt found {told}")
    broker.start()
    asked: Counter[str] = Counter()

    def commit(message: Message) -> TransactionResolution:
        asked[bytes(message.body).decode()] += 1
        return TransactionResolution.COMMIT

    with Producer(broker.home, producer_group=GROUP, transaction_checker=commit):
        wait_until(lambda: len(asked) >= len(sent.opened))
        wait_until(lambda: all(doubt.state != "open" for doubt in look(broker.home).read()))
    if set(asked) != sent.opened:
        raise Refused(f"asked about {sorted(asked)}")
    broker.stop()
    require_sound(store)
    CHECK.run(checker, store, log)


LEGS: Final = (
    Leg("transactions, handed over", "asks once about each open one, delivers it once", _stopped),
    Leg("transactions, killed, handed over", "asks once, delivers once", _killed),
    Leg("transactions, its killed, ours", "puts them back; we finish; accepts that", _returned),
)


# ------------------------------------------------------------------------------------------- steps


def _send(broker: Broker) -> Sent:
    """Transactions of each kind, between plain messages."""
    logging.getLogger("gantrymq").setLevel(logging.ERROR)  # it warns of what is given up
    sent = Sent()
    names = {kind: [f"{kind}{n}" for n in range(OF_EACH)] for kind in ("open", "done", "back")}
    given_up = [f"silent{n}" for n in range(OF_EACH)]
    command = [sys.executable, "-c", _DYING, str(broker.home), GROUP, *names["open"]]
    subprocess.run(command, check=True)
    with Producer(
        broker.home, producer_group=SILENT, timeout=PATIENCE_S, transaction_checker=_unknown
    ) as producer:
        for body in given_up:
            producer.send(TOPIC, body.encode(), transaction=producer.begin_transaction())
        for done, back in zip(names["done"], names["back"], strict=True):
            producer.send(PLAIN, b"plain " + done.encode())
            for body, commit in ((back, False), (done, True)):
                transaction = producer.begin_transaction()
                producer.send(TOPIC, body.encode(), transaction=transaction)
                transaction.commit() if commit else transaction.rollback()
        wait_until(lambda: _word(broker, layout.BOARD_GIVEN_UP) == OF_EACH)
    sent.opened, sent.given_up = set(names["open"]), set(given_up)
    sent.committed, sent.rolled_back = set(names["done"]), set(names["back"])
    return sent


def _unknown(_message: Message) -> TransactionResolution:
    return TransactionResolution.UNKNOWN


def _word(broker: Broker, at: int) -> int:
    return attach_board(read_board_file(broker.home)["board"]).word(at)


def _hand_over(broker: Broker, sent: Sent) -> None:
    told = json.loads(_command("handover", "--home", str(broker.home), "--json"))
    if (told["open_halves"], told["given_up"]) != (len(sent.opened), len(sent.given_up)):
        raise Refused(f"handover found {told}")


def _command(*words: str) -> str:
    command = [sys.executable, "-m", "gantrymq", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"{words[0]}: {done.stderr}")
    return done.stdout


def _finish_there(broker: Broker, checker: Checker, log: Path, sent: Sent) -> None:
    """A RocketMQ asks a live producer, which commits everything that it is asked about."""
    asked: Counter[str] = Counter()

    def meanwhile(port: int) -> None:
        ends = time.monotonic() + WATCH_S - 3.0
        with LiveProducer(port, [GROUP, SILENT], lambda _properties: True) as producer:
            while time.monotonic() < ends:
                time.sleep(0.2)
            asked.update(producer.bodies)

    checker.go_on_with(
        broker.home / "store", (5, PLAIN), log, meanwhile, stay=WATCH_S, options=_OPTIONS
    )
    if asked != Counter(sent.opened):
        raise Refused(f"asked about {dict(asked)}")


def _judge(store: Path, sent: Sent) -> str:
    """What came of each body, by the log. Raises Refused."""
    wanted = Counter(sent.committed | sent.opened)
    found: Counter[str] = Counter()
    for line in dump_objects(store):
        if line["kind"] == "record" and line["topic"] == TOPIC:
            found[bytes.fromhex(line["bodyHex"]).decode()] += 1
    if found != wanted:
        raise Refused(f"missing: {wanted - found}; too many: {found - wanted}")
    return (
        f"{found.total()} delivered once, of these {len(sent.opened)} were open;"
        f" {len(sent.rolled_back)} rolled back, {len(sent.given_up)} given up"
    )
