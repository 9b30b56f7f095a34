"""Starts a broker on what a power cut has left, lets applications go on, and holds what was told
before the cut against what there is.

P1 durable sends are in the log, once. P4, P10 a group skips nothing that it has not had, and has a
queue in its order. P7 half messages as decided. P8 timers once, and never early; not if recalled.
P9 failed messages come again or are dead letters, once. P13, P14 `store verify` is clean. Topics
are there if they were made, and not if they were deleted.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gantrymq.brokerd.verify import verify
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.home import store_of
from gantrymq.clients.message import Message
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.clients.recalloutcome import RecallOutcome
from gantrymq.shm.errors import GantryError
from tests.powercut.settings import (
    AUDIT,
    BILLING,
    CASHIER,
    MAX_ATTEMPTS,
    READ_BY,
    SAFE,
    settings_of,
)
from tests.powercut.work import cashed, fate, heard
from tests.support.brokers import ServingBroker
from tests.support.stores import Stored, read_log

PATIENCE_S = 60.0
#: Who has had all that is owed waits so long for what is not.
QUIET_S = 1.0
#: What has not come for so long does not come: longer than any wait of a message.
SILENT_S = 15.0
LONGEST_DELAY_S = 1.5
_SHOWN = {topic for topics in READ_BY.values() for topic in topics}


@dataclass
class Known:
    """What applications had been told before the cut."""

    intents: dict[str, tuple[str, int]] = field(default_factory=dict)  # body -> kind, due ms
    topics: dict[str, str] = field(default_factory=dict)  # body -> topic
    durable: set[str] = field(default_factory=set)
    deciding: dict[str, str] = field(default_factory=dict)
    decided: dict[str, str] = field(default_factory=dict)
    recalling: set[str] = field(default_factory=set)
    recalled: dict[str, str] = field(default_factory=dict)  # body -> outcome
    made: set[str] = field(default_factory=set)  # topics
    unmaking: set[str] = field(default_factory=set)
    unmade: set[str] = field(default_factory=set)
    got: dict[str, set[str]] = field(default_factory=lambda: {group: set() for group in READ_BY})

    @classmethod
    def of(cls, lines: Iterable[str]) -> Known:
        """Read the lines that were written before the cut."""
        known = cls()
        for line in lines:
            known._take(*json.loads(line))
        return known

    def _take(self, event: str, *rest: str | int) -> None:
        match event, rest:
            case "intent", (str(kind), str(body), int(due_ms), str(topic)):
                self.intents[body], self.topics[body] = (kind, due_ms), topic
            case (("deciding" | "decided" | "recalled"), (str(body), str(end))):
                getattr(self, event)[body] = end
            case "got", (str(group), str(body)):
                self.got[group].add(body)
            case (("durable" | "recalling" | "made" | "unmaking" | "unmade"), (str(name),)):
                getattr(self, event).add(name)

    def owed(self, group: str) -> set[str]:
        """Durable messages that a group has to have, and has not said to have had."""
        mine = {body for body in self.durable if self.topics[body] in READ_BY[group]}
        return {body for body in mine - self.got[group] if self.is_due(body)}

    def waits(self, body: str) -> bool:
        """Whether a message has to stay where it waits: for a far time, or for a decision."""
        kind, _due = self.intents[body]
        return kind == "far" or (kind == "half" and body not in self.deciding)

    def is_due(self, body: str) -> bool:
        """Whether a message has to come to its topic in the end."""
        kind, _due = self.intents[body]
        if kind == "half":
            return self.decided.get(body) == "commit"
        if body in self.recalling:
            return self.recalled.get(body) == RecallOutcome.ALREADY_DELIVERED
        return kind != "far"


class Broken(AssertionError):
    """A promise that a crash state breaks."""


def require(missing: Iterable[object], promise: str) -> None:
    """Raise Broken if anything is there."""
    found = list(missing)
    if found:
        raise Broken(f"{promise}: {len(found)}, such as {found[:3]}")


class _Broker(ServingBroker):
    forked = True


class _Life:
    """A broker on the state, and the members of its groups."""

    def __init__(self, broker: ServingBroker) -> None:
        self.broker, self.home = broker, broker.home
        self.got: dict[str, set[str]] = {group: set() for group in READ_BY}
        self.cashed: dict[int, list[int]] = defaultdict(list)  # queue -> offsets as they came
        self.news = self._began = time.monotonic()

    def start(self) -> None:
        """Wait until it serves."""
        try:
            self.broker.wait_until_ready()
        except AssertionError as error:
            raise Broken(f"the broker does not start: {str(error)[-1500:]}") from None

    def consume(self, known: Known) -> None:
        """Let both groups go on until they have what they are owed, or nothing comes any more."""
        first = ConsumeFrom.FIRST_OFFSET
        over = threading.Event()
        failures: list[BaseException] = []

        def pull() -> None:
            try:
                topics = [*READ_BY[AUDIT]]
                with PullConsumer(AUDIT, topics, home=self.home, consume_from=first) as it:
                    while not over.is_set():
                        for body in it.poll(timeout=0.1).bodies:
                            self._have(AUDIT, bytes(body).decode())
            except GantryError as error:
                failures.append(error)

        thread = threading.Thread(target=pull)
        thread.start()
        consumer = PushConsumer(
            BILLING, [*READ_BY[BILLING]], self._listen, home=self.home,
            max_attempts=MAX_ATTEMPTS, consume_from=first, concurrency=4,
        )  # fmt: skip
        orderly = PushConsumer(
            CASHIER, [*READ_BY[CASHIER]], self._cash, home=self.home,
            orderly=True, consume_from=first, concurrency=2,
        )  # fmt: skip
        try:
            with consumer, orderly:
                while not failures and not self._is_over(known):
                    time.sleep(0.05)
        finally:
            over.set()
            thread.join()
        require(failures, "a consumer fails")

    def _is_over(self, known: Known) -> bool:
        lasts_s, silent_s = time.monotonic() - self._began, time.monotonic() - self.news
        if all(_can_have(known, group) <= got for group, got in self.got.items()):
            return min(silent_s, lasts_s - LONGEST_DELAY_S) > QUIET_S
        return silent_s > SILENT_S or lasts_s > PATIENCE_S

    def _listen(self, message: Message) -> ConsumeResult:
        self.news = time.monotonic()  # what fails will be back, or a dead letter, soon
        return heard(message, self._told)

    def _cash(self, message: Message) -> ConsumeResult:
        self.news = time.monotonic()
        self.cashed[message.queue_id or 0].append(message.queue_offset or 0)
        return cashed(message, self._told)

    def _told(self, _event: str, group: str, body: str) -> None:
        self._have(group, body)

    def _have(self, group: str, body: str) -> None:
        self.got[group].add(body)
        self.news = time.monotonic()

    def stop(self) -> None:
        """Stop cleanly."""
        code, lines = self.broker.stop()
        if code:
            raise Broken(f"a clean stop ends with {code}: {lines[-10:]}")


def _can_have(known: Known, group: str) -> set[str]:
    """What a group is owed, but for what fails for ever."""
    owed = known.owed(group)
    if group != BILLING:
        return owed
    return {body for body in owed if fate(body, MAX_ATTEMPTS) == "succeeds"}


def judge(home: Path, profile: str, known: Known) -> None:
    """Judge one state. Raises Broken."""
    with _Broker(home, **settings_of(profile)) as broker:
        life = _Life(broker)
        life.start()
        life.consume(known)
        life.stop()
    report = verify(store_of(home))
    require(map(str, report.findings), "P13, P14: store verify")
    log = read_log(store_of(home))
    _check_log(known, log)
    _check_groups(known, life.got, log)
    back = [queue for queue, offsets in life.cashed.items() if offsets != sorted(offsets)]
    require(back, "P4: an orderly group's queue goes back")
    _check_topics(known, store_of(home))


def _check_topics(known: Known, store: Path) -> None:
    """Each that was made is there, and none that was deleted."""
    table = json.loads((store / "config/topics.json").read_bytes())["topicConfigTable"]
    require(known.made - known.unmaking - table.keys(), "topics that were made are gone")
    require(known.unmade & table.keys(), "topics that were deleted are there again")


def _check_log(known: Known, log: list[Stored]) -> None:
    shown: Counter[str] = Counter()
    letters: Counter[str] = Counter()
    early = []
    for item in log:
        body = item.record.body.decode(errors="replace")
        topic = item.record.topic
        if topic == f"%DLQ%{BILLING}":
            letters[body] += 1
        elif topic in _SHOWN:
            shown[body] += 1
            kind, due_ms = known.intents.get(body, ("", 0))
            if kind == "later" and item.record.store_timestamp < due_ms:
                early.append((body, due_ms - item.record.store_timestamp))
    require(early, "P8: timers came early by")
    require([b for b, n in shown.items() if n > 1], "P1, P7, P8: messages are there twice")
    require([b for b, n in letters.items() if n > 1], "P9: dead letters are there twice")
    rolled = [b for b, end in known.decided.items() if end == "rollback" and shown[b]]
    require(rolled, "P7: rolled back, and delivered")
    require([b for b in shown if known.intents.get(b, ("", 0))[0] == "far"], "P8: far too early")
    gone = [b for b, how in known.recalled.items() if how == RecallOutcome.CANCELLED and shown[b]]
    require(gone, "P8: recalled, and delivered")
    there = {item.record.body.decode(errors="replace") for item in log}
    require([b for b in known.durable - there if known.waits(b)], "P7, P8, P10: waits no more")


def _check_groups(known: Known, got: dict[str, set[str]], log: list[Stored]) -> None:
    bodies: dict[str, set[str]] = defaultdict(set)
    for item in log:
        bodies[item.record.topic].add(item.record.body.decode(errors="replace"))
    letters = bodies[f"%DLQ%{BILLING}"]
    require(known.owed(AUDIT) - got[AUDIT], "P1, P7, P8, P10: the pull group never had")
    require(known.owed(CASHIER) - got[CASHIER], "P1, P10: the orderly group never had")
    # What fails for ever leaves nothing but its letter, which goes with old segments.
    owed = known.owed(BILLING) - got[BILLING] - letters
    gone = {b for b in owed - bodies[SAFE] if fate(b, MAX_ATTEMPTS) == "fails"}
    require(owed - gone, "P9, P10: the push group never had")
    require([b for b in letters if fate(b, 1) == "succeeds"], "P9: dead letters that never failed")
