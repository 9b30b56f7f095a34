"""The ledger under any changes amid compactions: what a kill leaves is what was flushed (P5)."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from copy import deepcopy
from itertools import count

import pytest

from gantrymq.workers.groups import ledgersuccessor
from gantrymq.workers.groups.ledger import Ledger, open_ledger
from gantrymq.workers.groups.ledgerentries import NAME
from gantrymq.workers.groups.ledgersuccessor import UNFINISHED
from gantrymq.workers.groups.progress import QueueKey
from tests.support.faults import CHANGES, Fault, FaultPlan, KilledError, Moment
from tests.support.ledgers import told
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage

RUNS = 25
CHANGES_A_RUN = 160
OFFSETS = 40


class Play:
    """Random changes of one ledger, each with what makes its file."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = Disk()
        self.storage = SimStorage(self.disk)
        self.ledger = open_ledger(self.storage, 1)
        self.ledger.compact_bytes = self.dice.choice([0, 2_000, 6_000])
        self.flushed = deepcopy(told(self.ledger))
        self.durable_lease = 0
        self.replaced = 0
        self.disk.watch = self._watch

    def _watch(self, _process: str, kind: str, name: str) -> None:
        self.replaced += kind == "rename" and name == NAME

    def change(self) -> None:
        """Something that `groups` does."""
        dice = self.dice
        key = (f"t{dice.randrange(4)}", dice.randrange(3))
        dice.choice(CHANGES_OF_QUEUES)(self, f"g{dice.randrange(6)}", key, dice.randrange(OFFSETS))

    def clamp(self, group: str, key: QueueKey, low: int) -> None:
        """As at a start: of queues that are known."""
        if group in self.ledger.groups and key in self.ledger.groups[group].queues:
            self.ledger.clamp(group, key, low, low + 10)

    def finish(self, group: str, key: QueueKey, offset: int) -> None:
        """Two ranges at once."""
        self.ledger.finish_all(group, key, [(offset, offset + 2), (offset + 5, offset + 6)])

    def send(self, group: str, key: QueueKey, offset: int) -> None:
        """Two copies, or none after all."""
        attempts = {offset: 1, offset + 3: 2}
        self.ledger.sending_all(group, key, attempts, self.dice.randrange(-1, 9))

    def drop(self, group: str, key: QueueKey, _offset: int) -> None:
        """A topic is deleted, or a group."""
        ledger = self.ledger
        if self.dice.random() < 0.5:
            ledger.forget_topics({key[0]})
        elif group in ledger.groups and not ledger.groups[group].is_at_work():
            ledger.delete(group)

    def write(self) -> None:
        """What the agent's cycle does to files."""
        chance = self.dice.random()
        if chance < 0.3:
            self.ledger.flush()
        elif chance < 0.4:
            self.ledger.sync(self.dice.randrange(1000))
        elif chance < 0.9:
            self.ledger.step()
            return
        else:
            return
        self.flushed = deepcopy(told(self.ledger))
        if not self.ledger.unsynced:
            self.durable_lease = self.ledger.last_lease

    def reopen(self, epoch: int) -> None:
        """A successor of a killed `groups` reads what is there."""
        self.ledger.close()
        self.storage = SimStorage(self.disk)
        sizes = self.ledger.compact_bytes
        self.ledger = Ledger(self.storage)
        self.ledger.load()
        assert not self.storage.exists(UNFINISHED)
        self.ledger.compact_bytes = sizes
        if epoch != self.ledger.epoch:
            self.ledger.begin_epoch(epoch)


CHANGES_OF_QUEUES: list[Callable[[Play, str, QueueKey, int], object]] = [
    *2 * [lambda play, *at: play.ledger.commit(*at, play.dice.randrange(3))],
    *2 * [lambda play, *at: play.ledger.start(*at, 7)],
    *2 * [lambda play, g, q, n: play.ledger.grant(g, q, 1 + play.dice.randrange(3), n)],
    lambda play, group, key, _n: play.ledger.subscribe(group, key[0], 3),
    lambda play, group, key, n: play.ledger.end_lease(group, key, failed=n > OFFSETS // 3),
    lambda play, *at: play.ledger.fail(*at, play.dice.randrange(4)),
    lambda play, *at: play.ledger.reset(*at, play.dice.choice([0, 77])),
    lambda play, _group, _key, n: play.ledger.exported(n),
    lambda play, _group, _key, _n: play.ledger.limit_positions(play.dice.randrange(90)),
    Play.clamp, Play.finish, Play.send, Play.drop,
]  # fmt: skip


def ordered(what: tuple[object, ...]) -> tuple[object, ...]:
    """Without `copies_from`, which a file may tell of less: that is looked for again."""
    return what[:-1]


@pytest.mark.parametrize("run", range(RUNS))
def test_what_is_read_again_is_what_was_flushed(run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between any two calls, through compactions in steps of any size."""
    play = Play(run)
    monkeypatch.setattr(ledgersuccessor, "step_pieces", play.dice.choice([1, 2, 7, 30]))
    for at in range(CHANGES_A_RUN):
        for _ in range(play.dice.randrange(4)):
            play.change()
        play.write()
        if play.dice.random() < 0.05:
            again = Ledger(SimStorage(deepcopy(play.disk)))
            again.load()
            assert ordered(told(again)) == ordered(play.flushed), at
        if play.dice.random() < 0.01:
            play.reopen(play.ledger.epoch)
            assert ordered(told(play.ledger)) == ordered(play.flushed), at
            play.flushed = deepcopy(told(play.ledger))
    play.ledger.flush()
    while play.ledger.step():
        pass
    play.ledger.sync()
    play.reopen(play.ledger.epoch)
    again = Ledger(SimStorage(deepcopy(play.disk)))
    again.load()
    assert ordered(told(again)) == ordered(told(play.ledger))


def test_the_runs_get_to_replaced_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the others would show nothing."""
    monkeypatch.setattr(ledgersuccessor, "step_pieces", 7)
    replaced = 0
    for seed in range(10):
        play = Play(seed)
        for _ in range(CHANGES_A_RUN):
            play.change()
            play.write()
        replaced += play.replaced // 2  # told before and after
    assert replaced >= 10


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("full", [False, True])
def test_no_kill_or_power_cut_in_a_call_takes_what_was_promised(
    run: int, monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    """After a kill what was flushed, or what was being; after a power cut what was durable."""
    play = Play(run)
    monkeypatch.setattr(ledgersuccessor, "step_pieces", play.dice.choice([1, 5, 30]))
    moment = play.dice.choice([Moment.BEFORE, Moment.MIDDLE, Moment.AFTER])
    at = 1 + int(play.dice.expovariate(1 / 60))
    faults = [Fault(at, moment, kinds=CHANGES)]
    if full:
        kinds = ("create", "write", "sync")
        faults.append(
            Fault(at // 8 + 1, error=errno.ENOSPC, kinds=kinds, persistent=True, under=UNFINISHED)
        )
    play.storage.faults = FaultPlan(faults, play.dice)
    said: list[tuple[object, ...]] = []
    try:
        for _ in range(CHANGES_A_RUN):
            for _ in range(play.dice.randrange(4)):
                play.change()
            said = [play.flushed, deepcopy(told(play.ledger))]
            play.write()
    except KilledError:
        pass
    else:
        said = [play.flushed]
    cut = play.dice.random() < 0.5
    if cut:
        play.disk.power_cut(play.dice)
        play.reopen(2)  # which raises of damage
        assert play.ledger.last_lease >= play.durable_lease
        assert not play.ledger.holders()
        return
    torn = any(met.startswith(f"write {NAME}: middle") for met in play.storage.faults.met)
    play.reopen(1)
    assert torn or ordered(told(play.ledger)) in [ordered(one) for one in said]


def test_a_group_made_anew_amid_a_compaction_is_the_youngest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledgersuccessor, "step_pieces", 1)
    for steps in count():
        ledger = open_ledger(SimStorage(Disk()), 1)
        for number in range(4):
            ledger.commit(f"g{number}", ("orders", 0), number)
        ledger.begin_compaction()
        more = [ledger.step() for _ in range(steps)]
        ledger.delete("g1")
        ledger.commit("g1", ("orders", 0), 9)
        while ledger.step():
            pass
        ledger.sync()
        again = Ledger(ledger.storage)
        again.load()
        assert list(again.groups) == ["g0", "g2", "g3", "g1"]
        if more and not more[-1]:
            break
