"""Whatever number or text a request, a frame or a word has: its agent lives and serves others."""

from __future__ import annotations

import itertools
import json
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from gantrymq.shm import groupwire, layout, schedulerwire, transactionwire, wire
from gantrymq.shm.arena import ArenaPlan, plan_arena
from gantrymq.shm.codes import Role, Status
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.jsonsum import with_sum, without_sum
from gantrymq.shm.limits import DELIVERIES_MAX
from gantrymq.shm.storage import replace_file
from gantrymq.workers.session import Session
from tests.support.door import Door, opened
from tests.support.extremes import NUMBERS, kinds_of, requests_of, sound_request
from tests.support.groups_rig import Rig, only
from tests.support.memory_sessions import memory_session
from tests.support.packed import NESTED
from tests.support.parking import Life, at_message, level_message
from tests.support.retry_rig import RetryRig
from tests.support.simclock import SimClock
from tests.support.simstorage import SimStorage
from tests.support.sweptfiles import changed
from tests.support.sweptwords import Form, forms, sound_words, words
from tests.support.transacting import CHECKER, GROUP, Peer, TxnLife, txn_life
from tests.support.trials import mends
from tests.unit.test_recalls import Asker, handle_of

MESSAGES = 280
TX = "0123456789abcdef" * 2


# ----------------------------------------------------------------------------------------- groups


class Members:
    """`groups` with real copies, an honest member, and another that says anything."""

    def __init__(self) -> None:
        self.rig = RetryRig()
        for number in range(MESSAGES):
            self.rig.send(b"m%d" % number, queue=int(number < 4))
            if number % 100 == 0:
                self.rig.settle()
        self.rig.settle()
        self.good = self.rig.attach()
        self.rig.settle()
        self.good.join("good")
        self.turn = self.offset = 0
        self.hand = self.rig.attach()
        self.begin()

    def begin(self) -> None:
        """A member that has begun all messages of both queues."""
        self.rig.settle()
        self.hand.join("g")
        self.hand.note(q0=(0, MESSAGES - 4), q1=(0, 4))
        self.rig.settle()

    def base(self, kind: type[msgspec.Struct]) -> dict[str, object]:
        """What makes a sound request of any type."""
        lease = self.hand.leases.get(0, 1)
        self.offset = self.offset % (MESSAGES - 5) + 1  # of another message each time
        base: dict[str, object] = {
            "serial": 9, "group": "g", "topics": [0], "queue": 0, "lease": lease, "offset": 1,
            "offsets": [self.offset], "delays": [0], "whys": ["no"], "max_attempts": 3,
            "leases": {0: lease}, "started": {0: 4}, "starts": {0: 0}, "done": [[1, 2]],
            "filters": [[0, "SQL92", "a > 1"]], "attempts": 0,
        }  # fmt: skip
        if kind in (groupwire.Commit, groupwire.Reset):
            base["offsets"], base["done"] = {0: 1}, {0: [[1, 2]]}
        return base

    def request(self, kind: type[msgspec.Struct], whole: bool) -> bytes:
        """A sound request, or one that names nothing but its group."""
        return sound_request(kind, self.base(kind) if whole else {"group": "g"})

    def hear(self, *bodies: bytes) -> None:
        """Put requests of one cycle; if the session was cut off for them another one follows."""
        room = self.hand.session.plan.groups.up_bytes // 2 - 16
        if not all(len(body) <= room and self.hand.lane.put(body) for body in bodies):
            return
        self.rig.settle()
        if any(session == self.hand.number for session, _why in self.rig.sessions.cut):
            self.rig.kill(self.hand)
            self.hand = self.rig.attach()
            self.begin()
        self.hand.listen()
        if 0 not in self.hand.leases or 0 in self.hand.revoked:
            self.hand.revoked.clear()
            self.begin()

    def require_calm(self) -> None:
        self.turn = (self.turn + 1) % 4
        assert self.good.commit(q1=self.turn).lost == {}
        assert all(table.failures == [] for table in self.rig.tables.values())


@mends("R3.1", "R3.3")
@pytest.mark.parametrize("kind", kinds_of(groupwire.AnyRequest), ids=lambda kind: kind.__name__)
def test_no_value_of_a_request_ends_groups(kind: type[msgspec.Struct]) -> None:
    members = Members()
    for body in requests_of(kind, lambda: members.base(kind)):
        members.hear(body)
        members.require_calm()


@mends("S37", "S60")
@pytest.mark.parametrize("kind", kinds_of(groupwire.AnyRequest), ids=lambda kind: kind.__name__)
def test_no_two_requests_of_a_cycle_end_groups(kind: type[msgspec.Struct]) -> None:
    """Each with each: of one session, as they are or of nothing. Nor is another's answer late."""
    members = Members()
    for other in kinds_of(groupwire.AnyRequest):
        for whole in itertools.product((True, False), repeat=2):
            members.hear(*map(members.request, (kind, other), whole))
            members.require_calm()


def test_a_value_out_of_its_range_is_refused_by_name_and_the_session_goes_on() -> None:
    members = Members()
    hand, lease = members.hand, members.hand.leases[0]
    heard = hand.say(groupwire.SendBack(5, 0, lease, 2**63, [1], [0], ["no"]))
    refused = only(heard, groupwire.Refused)
    assert (refused.serial, refused.error) == (5, "Rejected")
    assert "SendBack.max_attempts" in refused.text
    assert only(hand.say(groupwire.SendBack(6, 0, lease, 3, [1], [0], ["no"])), groupwire.SentBack)


@mends("R3.3")
def test_a_message_that_fails_for_ever_is_counted_as_far_as_can_be() -> None:
    """The ledger's field has 16 bits; it saturates, for a successor too."""
    rig = Rig(orders=1)
    rig.fill(0, 10)
    hand = rig.attach()
    hand.join()
    hand.start(q0=5)
    rig.agent.ledger.fail("g", ("orders", 0), 0, DELIVERIES_MAX - 1)
    for known in (DELIVERIES_MAX - 1, DELIVERIES_MAX, DELIVERIES_MAX):
        failed = groupwire.Failed(7, 0, hand.leases[0], 0, known)
        assert only(hand.say(failed), groupwire.Counted).attempts == DELIVERIES_MAX
    rig.replace_agent()
    assert rig.agent.ledger.group("g").queue(("orders", 0)).attempts_of(0) == DELIVERIES_MAX


# -------------------------------------------------------------------------------------- scheduler


@pytest.mark.parametrize("kind", kinds_of(schedulerwire.Recall), ids=lambda kind: kind.__name__)
def test_no_value_of_a_request_ends_the_scheduler(
    kind: type[msgspec.Struct], tmp_path: Path
) -> None:
    life = Life(tmp_path, SimClock())
    message = at_message(life.clock.wall_ms() + 90_000)
    life.park(message)
    life.settle()
    handle = handle_of(message)
    base = {"serial": 1, "topic": "later", "handle": handle}
    good, number = Asker(life), 50
    bad = Asker(life, number)
    for body in [
        *requests_of(kind, lambda: base),
        *_handles(),
    ]:
        if len(body) > 2000 or not bad.lane.put(body):
            continue
        life.turn()
        life.turn()
        while bad.lane.take() is not None:
            pass
        if any(session == number for session, _why in life.tables[Role.SCHEDULER].cut):
            life.tables[Role.SCHEDULER].detach(number)
            number += 1
            bad = Asker(life, number)
    assert good.recall("x") == schedulerwire.UNKNOWN_HANDLE
    life.stop()


def _handles() -> Iterator[bytes]:
    """Handles whose own number is extreme."""
    for number in NUMBERS:
        text = urlsafe_b64encode(f"v1 later broker {number} {'K' * 32}".encode()).decode()
        yield schedulerwire.encode(schedulerwire.Recall(3, "later", text))


# ------------------------------------------------------------------------------------ txn-checker


@pytest.fixture
def txn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TxnLife]:
    yield from txn_life(tmp_path / "store", monkeypatch)


@mends("R3.2")
@pytest.mark.parametrize(
    "kind", kinds_of(transactionwire.AnyRequest), ids=lambda kind: kind.__name__
)
def test_no_value_of_a_request_ends_the_txn_checker(
    kind: type[msgspec.Struct], txn: TxnLife
) -> None:
    half = txn.half(TX)
    good, bad = Peer(txn), Peer(txn)
    # As it is, and one that nobody knows yet.
    places = [{"halves": [[half.position, offset]]} for offset in (half.queue_offset, 1 << 20)]
    base: dict[str, object] = {
        "serial": 9, "group": GROUP, "tx": "f" * 32, "commit": True,
        "position": half.position, "action": "recheck", "who": "ops",
    }  # fmt: skip
    bases = [base | place for place in places]
    bodies = [body for one in bases for body in requests_of(kind, partial(dict, one))]
    for body in bodies:
        if len(body) > 2000 or not bad.lane.put(body):
            continue
        txn.turn()
        txn.turn()
        bad.lane.take()
        number = bad.session.session
        if any(session == number for session, _why in txn.tables[CHECKER].cut):
            txn.tables[CHECKER].detach(number)
            bad = Peer(txn)
    other = txn.half(TX, 2)
    assert good.ended([other], commit=True) == (transactionwire.COMMITTED, "")


def test_no_two_requests_of_a_cycle_end_the_txn_checker(txn: TxnLife) -> None:
    good, bad = Peer(txn), Peer(txn)
    kinds = kinds_of(transactionwire.AnyRequest)
    for number, (kind, other) in enumerate(itertools.product(kinds, repeat=2)):
        half = txn.half(f"{number:032x}")
        base: dict[str, object] = {
            "serial": 9, "group": GROUP, "tx": f"{number:032x}", "commit": True,
            "halves": [[half.position, half.queue_offset]],
            "position": half.position, "action": "recheck", "who": "ops",
        }  # fmt: skip
        for second in (base, {}):
            assert bad.lane.put(sound_request(kind, base))
            assert bad.lane.put(sound_request(other, second))
            txn.turn()
            txn.turn()
            while bad.lane.take() is not None:
                pass
        assert not txn.tables[CHECKER].cut
    last = txn.half(TX, 2)
    assert good.ended([last], commit=True) == (transactionwire.COMMITTED, "")


# --------------------------------------------------------------------------------- control frames


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with opened(tmp_path / "home", topics_max=64) as door:
        yield door


def _is_sound(body: bytes) -> bool:
    try:
        wire.decode(body)
    except msgspec.MsgspecError:
        return False
    return True


@pytest.mark.parametrize("kind", kinds_of(wire.AnyFrame), ids=lambda kind: kind.__name__)
def test_no_value_of_a_frame_ends_the_supervisor(kind: type[wire.Frame], door: Door) -> None:
    good = door.connect()
    door.attach(good)
    base = {
        "serial": 1, "pid": os.getpid(), "fingerprint": layout.FINGERPRINT, "kind": "look",
        "name": "orders", "queues": 1, "level": "written", "group": "g",
    }  # fmt: skip
    bodies = [body for body in requests_of(kind, lambda: base) if len(body) < wire.FRAME_BYTES_MAX]
    for body in bodies:
        if kind is wire.StopBroker and _is_sound(body):
            continue  # it would be carried out
        with door.connect() as channel:
            if kind is not wire.Hello:
                door.attach(channel, kind="look")
            channel.send(body)
            door.turn()
    assert isinstance(door.ask(good, wire.ShowMembers("g"))[0], wire.Members)  # type: ignore[index]
    assert not door.supervisor.finished
    good.close()


# ------------------------------------------------------------------------------- words of an arena


class Clients:
    """Sessions with one entry and a request in each other lane, of which a word is another one."""

    def __init__(self, life: TxnLife) -> None:
        self.life = life
        self.plan = plan_arena(4096, 4096, 4096, 4096)
        self.numbers = itertools.count(1_000_000)  # no peer of this process comes to these
        self.topic = life.slot("orders")

    def make(self, form: Form, at: int = 0, word: bytes = b"") -> Session:
        """One of them, which no agent knows yet."""
        number = next(self.numbers)
        made = memory_session(number, self.plan, producer=number.to_bytes(10, "big"))
        session = replace(made, scheduler=True, transactions=True)
        for place, data in (*sound_words(self.plan, form, self.topic), (at, word)):
            session.arena[place : place + len(data)].data[:] = data
        return session

    def serve(self, *sessions: Session) -> None:
        """Let all agents have some turns with them, and then without."""
        tables = self.life.tables.values()
        for table, session in itertools.product(tables, sessions):
            table.attach(session)
        self.life.turn()
        self.life.turn()
        for table, session in itertools.product(tables, sessions):
            table.detach(session.session)


def _joined(life: TxnLife, plan: ArenaPlan, number: int) -> bool:
    """Whether `groups` takes a member in."""
    session = memory_session(number, plan)
    lane = ControlLane(session.arena, plan.groups, End.CLIENT)
    assert lane.put(groupwire.encode(groupwire.Join(1, "g", [life.slot("orders")])))
    life.tables[Role.GROUPS].attach(session)
    life.settle()
    bodies = iter(lane.take, None)
    return any(isinstance(groupwire.decode_notice(body), groupwire.Joined) for body in bodies)


def test_no_word_of_an_arena_ends_an_agent(txn: TxnLife) -> None:
    """A fresh session for each: an entry, requests in all lanes, its words; one is extreme.

    All lanes of the plan, all kinds of entries, and all words of them that are a client's.
    """
    txn.start(Role.GROUPS)
    clients, good = Clients(txn), Peer(txn)
    every = words(clients.plan)
    while some := list(itertools.islice(every, 64)):
        clients.serve(*itertools.starmap(clients.make, some))
    txn.turn()
    assert good.ended([txn.half(TX)], commit=True) == (transactionwire.COMMITTED, "")
    assert Asker(txn).recall("x", "orders") == schedulerwire.UNKNOWN_HANDLE
    assert _joined(txn, clients.plan, next(clients.numbers))


def test_a_sound_entry_of_each_form_of_a_client_is_taken(txn: TxnLife) -> None:
    """Else the sweep would only see them refused."""
    clients = Clients(txn)
    for form in forms():
        if not form.is_clients:
            continue
        session = clients.make(form)
        clients.serve(session)
        answer = layout.COMPLETION.unpack(session.arena[clients.plan.writer.down :].tobytes())
        assert (answer["seq"], answer["status"]) == (1, Status.OK), form.name


# ---------------------------------------------------------------------------------- files of ours


@mends("S247")
@pytest.mark.parametrize(
    "path", ["gantry/schedule.json", "gantry/transactions.json", "config/delayOffset.json"]
)
def test_no_value_of_a_file_ends_its_agent(path: str, txn: TxnLife) -> None:
    """Its next process finds it: what it says is believed, or read anew from the log.

    All else of the two agents is as it was when the file was sound.
    """
    txn.half(TX)
    txn.park(at_message(txn.clock.wall_ms() + 3_000), level_message(3))
    txn.run_for(12_000)
    root = Path(txn.storage.root)
    kept = {name: (root / name).read_bytes() for name in _files_of_two_agents(root)}
    sound = re.sub(r"(\d+):", r'"\1":', kept[path].decode())  # RocketMQ's are no strict JSON
    content = without_sum(json.loads(sound))
    for value in changed(content):
        for name in _files_of_two_agents(root):
            (root / name).unlink()
        text = json.dumps(value)
        said = (with_sum(text) if "gantry" in path else text).encode()
        for name, data in (kept | {path: said}).items():
            replace_file(txn.storage, name, data)
        txn.kill(Role.SCHEDULER)
        txn.kill(CHECKER)
        for _ in range(6):
            txn.turn()
    peer = Peer(txn)
    replace_file(txn.storage, path, kept[path])
    txn.kill_all()
    # Another transaction: what a file said may have been the end of the first one, for all of it.
    assert peer.ended([txn.half("e" * 32)], commit=True) == (transactionwire.COMMITTED, "")


def _files_of_two_agents(root: Path) -> list[str]:
    """What the scheduler and the txn-checker know apart from the log."""
    found = ("gantry/schedule.json", "gantry/transactions.json", "config/delayOffset.json")
    buckets = (str(path.relative_to(root)) for path in (root / "gantry/timers").rglob("*"))
    return [name for name in (*found, *buckets) if (root / name).is_file()]


def test_no_value_of_consumer_offsets_ends_groups() -> None:
    """Another broker, or an editor, may have written the file."""
    content = {"offsetTable": {"orders@g": {"0": 1, "1": 2}, "other@g": {"7": 3}}}
    ids = [{"offsetTable": {"orders@g": {str(number): 1}}} for number in NUMBERS]
    for value in (*changed(content), *ids):
        rig = Rig(orders=2)
        rig.fill(0, 10)
        storage = SimStorage(rig.disk)
        replace_file(storage, "config/consumerOffset.json", json.dumps(value).encode())
        rig.replace_agent()
        hand = rig.attach()
        hand.join("h")
        assert hand.commit(q0=1).lost == {}


def test_nothing_nested_or_torn_is_a_request() -> None:
    """What is no request at all ends its session, and is not answered."""
    for decode in (
        groupwire.decode_request, schedulerwire.decode_request, transactionwire.decode_request,
    ):  # fmt: skip
        for body in (NESTED, b"", b"\x91\x01", b"\xc1"):
            with pytest.raises(msgspec.DecodeError):
                decode(body)
