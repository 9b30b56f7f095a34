"""Starts a broker on what a power cut has left, lets applications go on, and holds what was told
before the cut against what there is.

P1 durable sends are in the log, once. P4, P10 a group skips nothing that it has not had. P7 half
messages as decided. P8 timers once, and never early. P9 failed messages come again or are dead
letters, once. P13, P14 `store verify` is clean.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gantrymq.brokerd.verify import verify
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.home import store_of
from gantrymq.clients.message import Message
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.shm.errors import GantryError
from tests.powercut.settings import AUDIT, BILLING, MAX_ATTEMPTS, PLAIN, SAFE, settings_of
from tests.powercut.waiting import wait_until_ready
from tests.powercut.work import fate, heard
from tests.support.stores import Stored, read_log

PATIENCE_S = 60.0
#: Who has had all that is owed waits so long for what is not.
QUIET_S = 1.0
#: What has not come for so long does not come: longer than any wait of a message.
SILENT_S = 15.0
LONGEST_DELAY_S = 1.5


@dataclass
class Known:
    """What applications had been told before the cut."""

    intents: dict[str, tuple[str, int]] = field(default_factory=dict)  # body -> kind, due ms
    plain: set[str] = field(default_factory=set)  # bodies of the topic PLAIN
    durable: set[str] = field(default_factory=set)
    deciding: dict[str, str] = field(default_factory=dict)
    decided: dict[str, str] = field(default_factory=dict)
    got: dict[str, set[str]] = field(default_factory=lambda: {BILLING: set(), AUDIT: set()})

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
                self.intents[body] = (kind, due_ms)
                if topic == PLAIN:
                    self.plain.add(body)
            case "durable", (str(body),):
                self.durable.add(body)
            case "deciding", (str(body), str(end)):
                self.deciding[body] = end
            case "decided", (str(body), str(end)):
                self.decided[body] = end
            case "got", (str(group), str(body)):
                self.got[group].add(body)

    def owed(self, group: str) -> set[str]:
        """Durable messages that a group has to have, and has not said to have had."""
        due = {body for body in self.durable if self.is_due(body)} - self.got[group]
        return due if group == AUDIT else due - self.plain

    def waits(self, body: str) -> bool:
        """Whether a message has to stay where it waits: for a far time, or for a decision."""
        kind, _due = self.intents[body]
        return kind == "far" or (kind == "half" and body not in self.deciding)

    def is_due(self, body: str) -> bool:
        """Whether a message has to come to its topic in the end."""
        kind, _due = self.intents[body]
        if kind == "half":
            return self.decided.get(body) == "commit"
        return kind != "far"


class Broken(AssertionError):
    """A promise that a crash state breaks."""


def require(missing: Iterable[object], promise: str) -> None:
    """Raise Broken if anything is there."""
    found = list(missing)
    if found:
        raise Broken(f"{promise}: {len(found)}, such as {found[:3]}")


class _Life:
    """A broker on the state, and the members of its groups."""

    def __init__(self, home: Path, profile: str, start: Callable[[list[str], Path], Any]) -> None:
        self.home = home
        self.got: dict[str, set[str]] = {BILLING: set(), AUDIT: set()}
        self.news = self._began = time.monotonic()
        arguments = ["--home", str(home)]
        for name, value in settings_of(profile).items():
            arguments += ["--set", f"{name}={value}"]
        self.process = start(arguments, home / "broker.log")
        try:
            wait_until_ready(home, lambda: self.process.poll() is None)
        except RuntimeError as error:
            said = (home / "broker.log").read_text(errors="replace")[-1500:]
            self.kill()
            raise Broken(f"the broker does not start: {error}\n{said}") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def consume(self, known: Known) -> None:
        """Let both groups go on until they have what they are owed, or nothing comes any more."""
        first = ConsumeFrom.FIRST_OFFSET
        over = threading.Event()
        failures: list[BaseException] = []

        def pull() -> None:
            try:
                with PullConsumer(AUDIT, [SAFE, PLAIN], home=self.home, consume_from=first) as it:
                    while not over.is_set():
                        for body in it.poll(timeout=0.1).bodies:
                            self._have(AUDIT, bytes(body).decode())
            except GantryError as error:
                failures.append(error)

        thread = threading.Thread(target=pull)
        thread.start()
        consumer = PushConsumer(
            BILLING, [SAFE], self._listen, home=self.home,
            max_attempts=MAX_ATTEMPTS, consume_from=first, concurrency=4,
        )  # fmt: skip
        try:
            with consumer:
                while not failures and not self._is_over(known):
                    time.sleep(0.05)
        finally:
            over.set()
            thread.join()
        require(failures, "a consumer fails")

    def _is_over(self, known: Known) -> bool:
        lasts_s, silent_s = time.monotonic() - self._began, time.monotonic() - self.news
        fine = {body for body in known.owed(BILLING) if fate(body, MAX_ATTEMPTS) == "succeeds"}
        if known.owed(AUDIT) <= self.got[AUDIT] and fine <= self.got[BILLING]:
            return min(silent_s, lasts_s - LONGEST_DELAY_S) > QUIET_S
        return silent_s > SILENT_S or lasts_s > PATIENCE_S

    def _listen(self, message: Message) -> ConsumeResult:
        self.news = time.monotonic()  # what fails will be back, or a dead letter, soon
        return heard(message, self._told)

    def _told(self, _event: str, group: str, body: str) -> None:
        self._have(group, body)

    def _have(self, group: str, body: str) -> None:
        self.got[group].add(body)
        self.news = time.monotonic()

    def stop(self) -> None:
        """Stop cleanly."""
        self.process.terminate()
        code = self.process.wait(PATIENCE_S)
        if code:
            said = (self.home / "broker.log").read_text(errors="replace")[-1500:]
            raise Broken(f"a clean stop ends with {code}\n{said}")


def judge(home: Path, profile: str, known: Known, start: Callable[[list[str], Path], Any]) -> None:
    """Judge one state. Raises Broken."""
    life = _Life(home, profile, start)
    try:
        life.consume(known)
        life.stop()
    finally:
        if life.process.poll() is None:
            life.kill()
    report = verify(store_of(home))
    require(map(str, report.findings), "P13, P14: store verify")
    log = read_log(store_of(home))
    _check_log(known, log)
    _check_groups(known, life.got, log)


def _check_log(known: Known, log: list[Stored]) -> None:
    shown: Counter[str] = Counter()
    letters: Counter[str] = Counter()
    early = []
    for item in log:
        body = item.record.body.decode(errors="replace")
        topic = item.record.topic
        if topic == f"%DLQ%{BILLING}":
            letters[body] += 1
        elif topic in (SAFE, PLAIN):
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
    there = {item.record.body.decode(errors="replace") for item in log}
    require([b for b in known.durable - there if known.waits(b)], "P7, P8, P10: waits no more")


def _check_groups(known: Known, got: dict[str, set[str]], log: list[Stored]) -> None:
    bodies: dict[str, set[str]] = defaultdict(set)
    for item in log:
        bodies[item.record.topic].add(item.record.body.decode(errors="replace"))
    letters = bodies[f"%DLQ%{BILLING}"]
    require(known.owed(AUDIT) - got[AUDIT], "P1, P7, P8, P10: the pull group never had")
    # What fails for ever leaves nothing but its letter, which goes with old segments.
    owed = known.owed(BILLING) - got[BILLING] - letters
    gone = {b for b in owed - bodies[SAFE] if fate(b, MAX_ATTEMPTS) == "fails"}
    require(owed - gone, "P9, P10: the push group never had")
    require([b for b in letters if fate(b, 1) == "succeeds"], "P9: dead letters that never failed")
