"""A session that floods the broker with one kind of request: each kind that there is, by name.

Kinds come from the unions of the wire modules, so that a new request or frame has its flood at
once; what makes a sound request of one is in BASE. A flood goes round by round, and the rounds end
with whoever asks for the next one. All of them run against a broker that has nothing to lose.
"""

from __future__ import annotations

import itertools
import os
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import msgspec

from gantrymq import GantryError, Message, Producer
from gantrymq.clients.home import connect
from gantrymq.clients.session import Session
from gantrymq.shm import groupwire, layout, schedulerwire, transactionwire, wire
from gantrymq.shm.bell import EventBell
from gantrymq.shm.codes import EntryKind
from gantrymq.shm.controllane import BrokenLane, ControlLane, End
from gantrymq.shm.kernels.progress import note_progress, open_slot
from gantrymq.shm.limits import PROGRESS_MAX
from tests.support.extremes import kinds_of, requests_of, sound

TOPIC = "flood"
#: What makes a sound request, where the least value of a type does not.
BASE: dict[str, object] = {
    "serial": 1, "group": "flood", "topics": [0], "offsets": [0], "delays": [0], "whys": ["no"],
    "handle": "djEgZmxvb2QgYiAxNzAwMDAwMDAwMDAwIEtLS0tLS0tLS0tLS0tLS0=", "topic": TOPIC,
    "halves": [[0, 0]], "action": "recheck", "position": 1 << 20, "tx": "f" * 32, "name": TOPIC,
    "pid": os.getpid(), "fingerprint": layout.FINGERPRINT, "queues": 1,
}  # fmt: skip
MAPS: dict[str, dict[str, object]] = {
    "Join": {"queues": None},
    "Commit": {"offsets": {0: 1}, "done": {0: [[1, 2]]}},
    "Reset": {"offsets": {0: 0}},
}
LANES = {
    "groups": groupwire.AnyRequest,
    "scheduler": schedulerwire.Recall,
    "transactions": transactionwire.AnyRequest,
}
_BELLS = {"groups": "groups_bell", "scheduler": "scheduler_bell", "transactions": "checker_bell"}
#: Frames that no flood sends, and entries of rings that no client puts.
EXCUSED = {
    "frames.StopBroker": "ends the broker, which its owner may do",
    "writer.PAD": "a ring's own",
    "writer.APPEND": "of agents alone: it ends a client's session at once, as frames.Hello does",
    "writer.COMPLETION": "the writer's own",
    "writer.BATCH_COMPLETION": "the writer's own",
    "writer.REQUEST": "of the other lanes",
    "writer.NOTICE": "an agent's own",
}
#: A round puts so many messages, or asks so often.
A_ROUND = 64
LARGE = 1 << 20
#: Topics of a wide Join.
WIDE = 100

Rounds = Generator[None]
Flood = Callable[[Path], Rounds]


# ------------------------------------------------------------------------------------- the lanes


def packed(kind: type[msgspec.Struct], given: dict[str, object]) -> bytes:
    """A sound request, with some of its fields given."""
    fields = msgspec.structs.fields(kind)
    known = BASE | MAPS.get(kind.__name__, {}) | given
    values = [known.get(field.name, sound(field.type)) for field in fields]
    return msgspec.msgpack.encode([kind.__struct_config__.tag, *values])


def _lane(lane: str, bodies: Callable[[Session], Iterator[bytes]], home: Path) -> Rounds:
    """Put all that fits, read every other answer; attach again when the session was ended."""
    while True:
        with closing(Session(home, **{lane: True})) as session:  # type: ignore[arg-type]
            session.open_topic(TOPIC)
            with suppress(BrokenLane):
                for _ in _fill(session, lane, bodies(session)):
                    yield
                    if not session.is_live or session.arena[layout.ARENA_EVICTED]:
                        break


def _fill(session: Session, lane: str, bodies: Iterator[bytes]) -> Rounds:
    ours = ControlLane(session.arena, getattr(session.plan, lane), End.CLIENT)
    bell: EventBell = getattr(session, _BELLS[lane])
    body = next(bodies)
    while True:
        while ours.put(body):
            body = next(bodies)
        bell.ring()
        for _ in range(A_ROUND):
            if ours.take() is None:
                break
        yield


def _same(kind: type[msgspec.Struct], session: Session) -> Iterator[bytes]:
    """One request again and again; by a member with its leases where there are such."""
    leases = _join(session) if kind in OF_MEMBERS else {}
    return itertools.repeat(packed(kind, {"lease": leases.get(0, 0), "leases": leases}))


def _join(session: Session) -> dict[int, int]:
    """Become a member of a group of its own; the leases."""
    lane = ControlLane(session.arena, session.plan.groups, End.CLIENT)
    topic = session.open_topic(TOPIC)
    lane.put(groupwire.encode(groupwire.Join(1, f"flood{session.session}", [topic.slot])))
    session.groups_bell.ring()
    leases: dict[int, int] = {}
    until = time.monotonic() + 5
    while time.monotonic() < until:
        while (body := lane.take()) is not None:
            notice = groupwire.decode_notice(body)
            if isinstance(notice, groupwire.Granted):
                leases[notice.queue] = notice.lease
            elif isinstance(notice, groupwire.Joined):
                return leases
        time.sleep(0.001)
    return leases


OF_MEMBERS = {groupwire.Commit, groupwire.Released, groupwire.SendBack, groupwire.Failed}


def _worst(lane: str, session: Session) -> Iterator[bytes]:
    """Each request of a lane with each field at the ends of its type."""
    del session
    while True:
        for kind in kinds_of(LANES[lane]):
            for body in requests_of(kind, lambda: BASE):
                if len(body) < 1500:
                    yield body


def _unknown(session: Session) -> Iterator[bytes]:
    """Recalls of what was never sent."""
    del session
    for number in itertools.count():
        due_ms = int(time.time() * 1000) + 90_000
        text = f"v1 {TOPIC} b {due_ms} {number:032x}".encode()
        yield schedulerwire.encode(
            schedulerwire.Recall(number, TOPIC, urlsafe_b64encode(text).decode())
        )


def _in_and_out(session: Session) -> Iterator[bytes]:
    """A member that comes and goes, under one name."""
    topic = session.open_topic(TOPIC).slot
    join = groupwire.encode(groupwire.Join(1, "flood", [topic]))
    return itertools.cycle((join, groupwire.encode(groupwire.Leave(2))))


def _wide_joins(session: Session) -> Iterator[bytes]:
    """A member of many topics, which are new to each of its groups."""
    topics = [session.open_topic(f"wide{number}").slot for number in range(WIDE)]
    for number in itertools.count():
        yield groupwire.encode(groupwire.Join(1, f"wide{number % A_ROUND}", topics))
        yield groupwire.encode(groupwire.Leave(2))


def _wide_commits(session: Session) -> Iterator[bytes]:
    """Of as many queues as a request has room for, with ranges."""
    leases = _join(session) | dict.fromkeys(range(100, 1100), 1)
    done: dict[int, list[groupwire.Done]] = {queue: [(2, 3), (5, 6)] for queue in range(500)}
    offsets = dict.fromkeys(leases, 1)
    return itertools.repeat(groupwire.encode(groupwire.Commit(0, leases, offsets, offsets, done)))


def _wide_resets(session: Session) -> Iterator[bytes]:
    del session
    return itertools.repeat(
        groupwire.encode(groupwire.Reset(1, "flood", dict.fromkeys(range(4000), 0)))
    )


# --------------------------------------------------------------------------- frames, connections


def _frames(kind: type[msgspec.Struct], home: Path) -> Rounds:
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    least = {name: sound(of) for name, of in fields.items()}
    try:
        frame = msgspec.convert(least | {name: BASE[name] for name in fields if name in BASE}, kind)
    except msgspec.ValidationError:  # a field of an agent's frame that has another type
        frame = msgspec.convert(least, kind)
    return _asked(itertools.repeat(frame), home)  # type: ignore[arg-type]


def _asked(frames: Iterator[wire.Frame], home: Path) -> Rounds:
    """Frames of one session, each when the one before was answered; a new one after its end."""
    while True:
        with closing(Session(home)) as session:
            for frame in frames:
                with suppress(GantryError):
                    session.request(frame)
                yield
                if not session.is_live:
                    break


def _new_topics(home: Path) -> Rounds:
    names = (wire.OpenTopic(f"new{number}") for number in itertools.count())
    return _asked(names, home)


def _topics_that_go(home: Path) -> Rounds:
    def frames() -> Iterator[wire.Frame]:
        for number in itertools.count():
            yield wire.CreateTopic(f"going{number}", 1)
            yield wire.DeleteTopic(f"going{number}")

    return _asked(frames(), home)


def _sessions(home: Path) -> Rounds:
    while True:
        with suppress(GantryError):
            Session(home, groups=True, scheduler=True, transactions=True).close()
        yield


def _looks(home: Path) -> Rounds:
    hello = wire.Hello(os.getpid(), layout.FINGERPRINT, "look")
    while True:
        with suppress(GantryError, OSError), closing(connect(home, 1.0)) as channel:
            wire.send(channel, hello)
            wire.receive(channel)
        yield


def _silent(home: Path) -> Rounds:
    """Connections that say nothing."""
    with ExitStack() as kept:
        for number in itertools.count(1):
            with suppress(GantryError, OSError):
                kept.enter_context(connect(home, 1.0))
            if number % A_ROUND == 0:
                kept.close()
            yield


# -------------------------------------------------------------------------------- words and bells


def _words(home: Path) -> Rounds:
    """An interest list of all queues, and bells."""
    with closing(Session(home, groups=True)) as session:
        at = layout.ARENA_INTEREST_COUNT
        session.arena[at : at + 4].view("<u4")[0] = 1 << 31
        at = layout.ARENA_WAIT_ARMED
        while True:
            session.arena[at : at + 4].view("<u4")[0] = 1
            session.groups_bell.ring()
            session.scheduler_bell.ring()
            session.checker_bell.ring()
            session.writer_bell.ring()
            yield


def _progress(home: Path) -> Rounds:
    """Offsets of as many queues as there are words for, each of them another in each round."""
    with closing(Session(home, groups=True)) as session:
        leases = _join(session)
        places = [
            open_slot(session.arena, slot, leases.get(slot, 1), slot, 0)
            for slot in range(PROGRESS_MAX)
        ]
        lane = ControlLane(session.arena, session.plan.groups, End.CLIENT)
        for number in itertools.count():
            for at in places:
                note_progress(session.arena, at, number % 7, number % 7 + 300)
                session.arena[at + layout.PROGRESS_ACKED :][:64] = 0x55 << number % 2
            session.groups_bell.ring()
            while lane.take() is not None:
                pass
            yield


# -------------------------------------------------------------------------------------- messages


def _messages(home: Path, send: Callable[[Producer], object]) -> Rounds:
    with Producer(home=home, producer_group="flood", timeout=1.0) as producer:
        while True:
            with suppress(GantryError):
                send(producer)
            yield


def _small(producer: Producer) -> None:
    for _ in range(A_ROUND):
        producer.send_oneway(TOPIC, b"x" * 100, tag="t")


def _large(producer: Producer) -> None:
    producer.send(TOPIC, bytes(LARGE))


def _durable(producer: Producer) -> None:
    for _ in range(A_ROUND):
        producer.send_async(TOPIC, b"x", durability="durable")
    producer.flush()


def _batches(producer: Producer) -> None:
    producer.send_batch(TOPIC, [b"x"] * 1000)


def _delayed(ahead_s: float, producer: Producer) -> None:
    due_ms = int((time.time() + ahead_s) * 1000)
    for number in range(A_ROUND):
        producer.send_oneway(Message(TOPIC, b"x", delivery_timestamp=due_ms + number))


def _spread(producer: Producer, minutes: int) -> None:
    """Each is due in a minute of its own, of so many."""
    now_ms = int(time.time() * 1000)
    for number in range(A_ROUND):
        due_ms = now_ms + 60_000 * (1 + (number * 99_991 + now_ms) % minutes)
        producer.send_oneway(Message(TOPIC, b"x", delivery_timestamp=due_ms))


def _halves(producer: Producer) -> None:
    """Transactions of which only half are ended."""
    transactions = [producer.transaction() for _ in range(A_ROUND)]
    for transaction in transactions:
        producer.send_async(TOPIC, b"x", transaction=transaction)
    for transaction in transactions[::2]:
        transaction.rollback()


def _recalled(producer: Producer) -> None:
    due_ms = int((time.time() + 3600) * 1000)
    receipt = producer.send(Message(TOPIC, b"x", delivery_timestamp=due_ms))
    assert receipt.recall_handle is not None
    producer.recall_message(TOPIC, receipt.recall_handle)


# ------------------------------------------------------------------------------------ all of them


def _of_lanes() -> Iterator[tuple[str, Flood]]:
    for lane, union in LANES.items():
        for kind in kinds_of(union):
            yield f"{lane}.{kind.__name__}", partial(_lane, lane, partial(_same, kind))
        yield f"{lane}.extremes", partial(_lane, lane, partial(_worst, lane))
    yield "groups.Join+Leave", partial(_lane, "groups", _in_and_out)
    yield "groups.Join.wide", partial(_lane, "groups", _wide_joins)
    yield "groups.Commit.wide", partial(_lane, "groups", _wide_commits)
    yield "groups.Reset.wide", partial(_lane, "groups", _wide_resets)
    yield "groups.words", _progress
    yield "scheduler.Recall.unknown", partial(_lane, "scheduler", _unknown)


def _of_frames() -> Iterator[tuple[str, Flood]]:
    for kind in kinds_of(wire.AnyFrame):
        name = f"frames.{kind.__name__}"
        if name not in EXCUSED:
            yield name, _sessions if kind is wire.Hello else partial(_frames, kind)
    yield "frames.Hello.look", _looks
    yield "frames.OpenTopic.new", _new_topics
    yield "frames.CreateTopic+DeleteTopic", _topics_that_go
    yield "connections", _silent
    yield "words", _words


def _of_messages() -> Iterator[tuple[str, Flood]]:
    floods: dict[EntryKind, dict[str, Callable[[Producer], object]]] = {
        EntryKind.SEND: {
            "": _small, ".large": _large, ".durable": _durable, ".batch": _batches,
            ".half": _halves,
        },
        EntryKind.PARK: {
            "": partial(_delayed, 3600), ".now": partial(_delayed, 0),
            ".spread": partial(_spread, minutes=1_439),
            ".far": partial(_spread, minutes=5_000_000),
            ".recalled": _recalled,
        },
    }  # fmt: skip
    for kind in EntryKind:
        name = f"writer.{kind.name}"
        if name not in EXCUSED:
            for more, send in floods[kind].items():
                yield name + more, partial(_messages, send=send)


def floods() -> dict[str, Flood]:
    """All floods by name."""
    return dict(itertools.chain(_of_lanes(), _of_frames(), _of_messages()))
