"""Seeded runs of the txn-checker under deaths, late and repeated ENDs, and a clock that is set.

The oracle: the first answer about a transaction stands; a half's message is in its topic exactly
once if that is a commit and never otherwise (P7); what was answered outlives every death (P10).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gantrymq.shm import transactionwire as wire
from gantrymq.shm.codes import Role
from gantrymq.shm.transactionwire import COMMITTED, GIVEN_UP, ROLLED_BACK
from gantrymq.workers.transactions import progress as transactionprogress
from gantrymq.workers.transactions.halves import Halves
from tests.support.simclock import SimClock
from tests.support.transacting import CHECKER, GROUP, Peer, TxnLife

VICTIMS = (CHECKER, CHECKER, Role.WRITER, Role.READER, Role.FLUSHER)
QUICK: dict[str, object] = {
    "transaction_timeout_s": 1, "transaction_check_interval_s": 1, "transaction_check_max": 3,
}  # fmt: skip
STEPS = 60
DECIDED = (COMMITTED, ROLLED_BACK, GIVEN_UP)


class Run:
    """One seed: what was asked, what was answered."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.clock = SimClock()
        self.life = TxnLife(directory, self.clock, QUICK)
        self.peers = [Peer(self.life, GROUP), Peer(self.life)]
        self.transactions: list[list[wire.Check]] = []
        self.asked: dict[tuple[int, int], int] = {}  # (peer, serial) -> transaction
        self.told: dict[int, str] = {}  # transaction -> what was answered first

    def go(self) -> None:
        """All steps, then until nothing waits for a decision."""
        actions = (self.half, self.end, self.end, self.turns, self.turns, self.kill, self.time)
        for _ in range(STEPS):
            self.dice.choice(actions)()
            self.hear()
        for number, halves in enumerate(self.transactions):
            self.ask(number, halves, commit=self.dice.random() < 0.5)
        self.life.run_for(3000)
        self.hear()

    def half(self) -> None:
        """A transaction of one to three messages."""
        tx = f"{self.dice.getrandbits(128):032x}"
        count = self.dice.randint(1, 3)
        self.transactions.append(
            [self.life.half(tx, n, tx.encode() + bytes([n])) for n in range(1, count + 1)]
        )

    def end(self) -> None:
        """An END of any transaction, decided or not; now and then the other way."""
        if self.transactions:
            number = self.dice.randrange(len(self.transactions))
            commit = (number % 3 > 0) ^ (self.dice.random() < 0.15)
            self.ask(number, self.transactions[number], commit=commit)

    def ask(self, number: int, halves: list[wire.Check], *, commit: bool) -> None:
        """Put an END."""
        at = self.dice.randrange(2)
        self.asked[at, self.peers[at].end(halves, commit=commit)] = number

    def turns(self) -> None:
        """Some agents, in any order, each up to a few times."""
        for _ in range(self.dice.randint(1, 8)):
            role = self.dice.choice([CHECKER, CHECKER, *VICTIMS])
            self.life.agents[role].do_work(self.clock.monotonic_ns())
        if self.dice.random() < 0.3:
            self.life.settle()

    def kill(self) -> None:
        """One agent or all are replaced."""
        if self.dice.random() < 0.2:
            self.life.kill_all()
        elif self.dice.random() < 0.5:
            self.life.kill(self.dice.choice(VICTIMS))
        self.peers[0].enlist(GROUP)

    def time(self) -> None:
        """A moment passes, or the wall clock is set."""
        if self.dice.random() < 0.3:
            self.clock.step_wall(self.dice.choice([-3_600_000, -2000, 2000, 3_600_000]))
        self.life.run_for(self.dice.choice([1, 20, 300]))

    def hear(self) -> None:
        """Answers: all of one transaction say the same."""
        for at, peer in enumerate(self.peers):
            peer.hear()
            for serial, answer in peer.heard.items():
                number = self.asked.get((at, serial))
                if number is not None and isinstance(answer, wire.Ended):
                    self.note(number, answer)

    def note(self, number: int, answer: wire.Ended) -> None:
        """The first decision stands, for everybody."""
        assert answer.error in ("", wire.DECIDED), answer
        assert answer.outcome in DECIDED, answer
        assert self.told.setdefault(number, answer.outcome) == answer.outcome, answer

    def require_right(self) -> None:
        """The log holds what was answered."""
        copies = self.life.committed()
        parked = {-1 - record.prepared_transaction_offset for record in self.life.parked()}
        assert len(parked) == len(self.life.parked())
        for number, halves in enumerate(self.transactions):
            counts = [copies[half.position] for half in halves]
            outcome = self.told[number]
            assert counts == [int(outcome == COMMITTED)] * len(halves), (number, outcome)
            assert all((half.position in parked) == (outcome == GIVEN_UP) for half in halves)
        named = sorted(int(word) for body in self.life.ops() for word in body.split(",") if word)
        assert named == list(range(sum(map(len, self.transactions))))


@pytest.fixture(autouse=True)
def quick_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactionprogress, "interval_ns", 300_000_000)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_decides_each_transaction_once(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path / "store", seed)
    run.go()
    run.require_right()


def test_the_oracle_sees_a_decision_that_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary: without a memory of what is decided, an END that comes again is carried out."""
    monkeypatch.setattr(Halves, "outcome_at", lambda *_: None)
    monkeypatch.setattr(Halves, "is_open", lambda *_: True)

    def run_all() -> None:
        for seed in range(8):
            run = Run(tmp_path / f"store-{seed}", seed)
            run.go()
            run.require_right()

    with pytest.raises(AssertionError):
        run_all()
