"""A store with messages that wait is handed over, and a RocketMQ goes on: legs of `make interop`.

Levels and times are short, so that the RocketMQ delivers them while it is watched. Afterwards its
log is read: everything that was due is in its real topic once and not before its time, what is not
due is not. In one leg the RocketMQ is killed in between and its store handed over once more, in one
it is adopted and handed over later by a broker of ours that ran meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from gantrymq import Broker, Message, Producer
from gantrymq.brokerd.dump import dump_objects
from gantrymq.shm.properties import SCHEDULE_TOPIC
from scripts.interop_checker import PATIENCE_S, Checker, Refused
from scripts.interop_table import Row

TOPIC: Final = "later"
PLAIN: Final = "orders"
TIMER_LOG_BYTES: Final = 2000
#: Waits in seconds; those of PAST are over when the RocketMQ starts, FAR is never seen to end.
SOON: Final = (12.0, 15.0, 18.0)
PAST: Final = (0.5, 1.0)
FAR: Final = (3600.0, 3 * 86_400.0)
LEVELS: Final = (1, 2, 3, 4, 5)  # 1 s 5 s 10 s 15 s, and one that is not seen to end
LEVEL_TEXT: Final = "1s 5s 10s 15s 1h"
OF_EACH: Final = 4
#: Until all that is to be seen is due, and RocketMQ's slots have been served (DT-58).
WATCH_S: Final = 20.0
_OPTIONS: Final = (
    *("-D", f"messageDelayLevel={LEVEL_TEXT}"),
    *("-D", f"mappedFileSizeTimerLog={TIMER_LOG_BYTES}"),
)


@dataclass
class Sent:
    """Bodies that wait, each with its time in Unix ms; level -> bodies where only the log knows."""

    due: dict[bytes, int] = field(default_factory=dict)
    never: set[bytes] = field(default_factory=set)


@dataclass(frozen=True)
class Leg:
    """What happens before the RocketMQ, and in the middle of it."""

    name: str
    did: str
    steps: Callable[[Broker, Checker, Path], None]

    @property
    def row(self) -> Row:
        """Its row of the table."""
        return Row(self.name, self.did)


def run(leg: Leg, checker: Checker, log: Path) -> str:
    """One leg; what was found in the end. Raises Refused, GantryError."""
    settings = {
        **checker.settings_of_ours(checker.version),
        "message_delay_level": LEVEL_TEXT,
    }
    with Broker.temporary(**settings) as broker:
        sent = _send(broker)
        leg.steps(broker, checker, log)
        return _judge(broker.home / "store", sent)


# -------------------------------------------------------------------------------------------- legs


def _stopped(broker: Broker, checker: Checker, log: Path) -> None:
    broker.stop()
    hand_over(broker)
    checker.go_on(broker.home / "store", (5, PLAIN), log, stay=WATCH_S, options=_OPTIONS)


def _killed(broker: Broker, checker: Checker, log: Path) -> None:
    broker.process.kill()
    broker.process.wait()
    hand_over(broker)
    checker.go_on(broker.home / "store", (5, PLAIN), log, stay=WATCH_S, options=_OPTIONS)


def _twice(broker: Broker, checker: Checker, log: Path) -> None:
    """RocketMQ is killed amid its deliveries, and what it leaves is handed over again."""
    store = broker.home / "store"
    broker.stop()
    hand_over(broker)
    first = log.with_suffix(".first.log")
    checker.go_on(store, (5, PLAIN), first, killed=True, stay=1.0, options=_OPTIONS)
    hand_over(broker)
    checker.go_on(store, (5, PLAIN), log, stay=WATCH_S, options=_OPTIONS)


LEGS: Final = (
    Leg("delayed, handed over", "delivers each once, none early", _stopped),
    Leg("delayed, killed, handed over", "delivers each once, none early", _killed),
    Leg("delayed, handed over twice", "is killed amid them, goes on: each once", _twice),
)


# ------------------------------------------------------------------------------------------- steps


def _send(broker: Broker) -> Sent:
    """Messages for every kind of waiting, between plain ones; the bodies are all different."""
    sent = Sent()
    with Producer(broker.home, timeout=PATIENCE_S) as producer:
        for number in range(OF_EACH):
            producer.send(PLAIN, b"plain %d" % number)
            for level in LEVELS:
                body = b"level %d %d" % (level, number)
                producer.send(Message(TOPIC, body, delay_level=level, tag="paid"))
                _note(sent, body, 0, far=level == LEVELS[-1])
            for wait in (*PAST, *SOON, *FAR):
                for kind in ("at", "after"):
                    body = b"%s %d %d" % (kind.encode(), int(1000 * wait), number)
                    due = time.time_ns() // 1_000_000 + int(1000 * wait)
                    when: dict[str, Any] = (
                        {"delivery_timestamp": due}
                        if kind == "at"
                        else {"delay": timedelta(seconds=wait)}
                    )
                    producer.send(Message(TOPIC, body, tag=kind, **when))
                    _note(sent, body, due, far=wait in FAR)
    return sent


def _note(sent: Sent, body: bytes, due: int, *, far: bool) -> None:
    if far:
        sent.never.add(body)
    else:
        sent.due[body] = due


def end_and_hand_over(broker: Broker, *, killed: bool) -> None:
    """Stop or kill a broker of ours, then `hand_over`. Raises Refused."""
    if killed:
        broker.process.kill()
        broker.process.wait()
    else:
        broker.stop()
    hand_over(broker)


def hand_over(broker: Broker) -> dict[str, Any]:
    """A stopped or killed store is made ready for a RocketMQ, by the command; what that says.

    Raises Refused.
    """
    command = [sys.executable, "-m", "gantrymq", "handover", "--home", str(broker.home), "--json"]
    command += ["--timer-log-bytes", str(TIMER_LOG_BYTES)]
    return _command(command)


def adopt(broker: Broker) -> None:
    """What a RocketMQ has left is taken over, by the command. Raises Refused."""
    store = str(broker.home / "store")
    _command([sys.executable, "-m", "gantrymq", "adopt", store, "--json"])


def _command(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"{command[3]}: {done.stderr}")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def _judge(store: Path, sent: Sent) -> str:
    """What came of each body, by the log. Raises Refused."""
    delivered: Counter[bytes] = Counter()
    early = served = 0
    parked: dict[bytes, int] = {}
    for line in dump_objects(store):
        if line["kind"] != "record" or "bodyHex" not in line:
            continue
        body = bytes.fromhex(line["bodyHex"])
        if line["topic"] == TOPIC:
            delivered[body] += 1
            early += line["storeTimestamp"] < max(sent.due.get(body, 0), parked.get(body, 0))
        elif line["topic"] == SCHEDULE_TOPIC:
            parked[body] = line["storeTimestamp"] + _delay_ms(int(line["properties"]["DELAY"]))
        elif body.startswith(b"sent by serve"):
            served += 1
    if not served:
        raise Refused("what was sent to the RocketMQ is not in its log")
    missing = sent.due.keys() - delivered.keys()
    doubled = [body for body, count in delivered.items() if count > 1]
    strange = delivered.keys() & sent.never
    if missing or doubled or strange or early:
        raise Refused(
            f"{len(missing)} of {len(sent.due)} missing {sorted(missing)[:3]}, {len(doubled)} twice"
            f" {doubled[:3]}, {len(strange)} that were not due, {early} early"
        )
    return f"{len(delivered)} delivered once, {len(sent.never)} wait"


def _delay_ms(level: int) -> int:
    word = LEVEL_TEXT.split()[level - 1]
    return int(word[:-1]) * {"s": 1000, "h": 3_600_000}[word[-1]]
