"""Each bound of each public argument: what is just outside is refused, what is inside is taken.

The bounds are in tests/support/argumentranges.py, the callables are found by inspection. That a
bound which is taken away fails these tests is shown for every one of them.
"""

from __future__ import annotations

import math
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import gantrymq
from gantrymq import (
    ArgumentIllegal,
    BatchParts,
    Broker,
    ConsumeFrom,
    GantryError,
    GroupIllegal,
    Message,
    MessageIllegal,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Rejected,
    TopicNotFound,
    TransactionDecided,
)
from gantrymq.clients import arguments
from gantrymq.clients.arguments import TABLE
from gantrymq.clients.delays import due_of
from gantrymq.shm.errors import shown
from tests.support.argumentranges import (
    BOUNDLESS,
    GROUP_MAX,
    INSTANCE_MAX,
    QUEUE_ID_MAX,
    TOPIC,
    YEAR_9999_MS,
    Bound,
    Bounds,
    kind_of,
    lifted,
    ranges,
    users_of,
    whole,
)
from tests.support.callrecipes import RECIPES, Call, Scene, a_scene, listen, receipt_of
from tests.support.faces import callables, conforms, hints_of
from tests.support.push import Seen
from tests.support.trials import mends
from tests.system.test_arguments import FIELDS, SENDS, WRONG, is_well_told

#: Of names that are here for their keys alone.
KEYS = ranges("t", "g")
#: Public callables, and the rows that judge their arguments.
USERS: dict[str, list[tuple[str, str]]] = {}
for _call, _row in TABLE.items():
    for _user in users_of(_call):
        USERS.setdefault(_user, []).extend((_call, _argument) for _argument in _row)
BOUNDED = sorted(name for name, rows in USERS.items() if not KEYS.keys().isdisjoint(rows))
#: Without a timeout it is judged with the rest of a message.
JUDGED_LATER = ("Producer.send", "durability")
#: Ends of what is at work.
AT_WORK = {"PushConsumer.stop", "PushConsumer.close"}
#: Judged where entries are made of them, or by their own class.
NOT_IN_THE_TABLE = {
    *((f"Producer.{send}", part) for send in (
        "send", "send_async", "send_oneway", "send_batch", "send_batch_async",
    ) for part in ("message", "messages", "bodies", "transaction", *FIELDS)),
    *(("FilterExpression", part) for part in ("text", "type", "dialect")),
    ("FilterExpression.matches", "properties"),
    ("Message.retry_after", "seconds"),
    ("Broker.temporary", "default_topic_queue_nums"),
}  # fmt: skip


@dataclass
class Stage:
    """A scene, and what ends with it."""

    scene: Scene
    ranges: Mapping[tuple[str, str], Bounds] = field(repr=False)
    ends: ExitStack = field(default_factory=ExitStack)
    at_work: list[PushConsumer] = field(default_factory=list)

    def places(self) -> list[tuple[MessageQueue, int]]:
        """Where the consumer that pulls is."""
        pull = self.scene.pull
        return [(queue, pull.position(queue)) for queue in pull.assignment()]

    def held(self) -> set[str]:
        """Threads and descriptors. Those of a consumer at work come and go as it likes."""
        if self.at_work:
            return set()
        return {thread.name for thread in threading.enumerate()}.union(os.listdir("/proc/self/fd"))

    def next_offsets(self) -> list[int]:
        """Where each queue of the topic ends, told by a message more in each."""
        send, topic = self.scene.producer.send, self.scene.topic
        return [send(topic, b"x", queue_id=number).queue_offset for number in range(4)]


@pytest.fixture(name="scene", scope="module")
def scene_fixture(broker: Broker) -> Iterator[Scene]:
    with a_scene(broker, f"ranges-{os.getpid()}") as scene:
        yield scene


@pytest.fixture(name="stage")
def stage_fixture(scene: Scene) -> Iterator[Stage]:
    queues = [MessageQueue(scene.topic, number) for number in range(4)]
    scene.pull.assign(queues)
    with ExitStack() as ends:
        yield Stage(scene, ranges(scene.topic, f"{scene.topic}-"), ends)
    scene.pull.assign(queues)
    scene.pull.resume(queues)  # what was chosen and paused inside of a bound


def made_only(make: Call) -> Call:
    """The constructor, and nothing that comes later."""

    def call(**given: object) -> None:
        made = make(**given)
        made.close()  # type: ignore[attr-defined]

    return call


def transacting(stage: Stage, end: str) -> tuple[Call, dict[str, object]]:
    """An end of an open transaction, which stays open if it is refused."""
    transaction = stage.scene.producer.begin_transaction()
    stage.scene.producer.send(stage.scene.topic, b"x", transaction=transaction)

    def end_it() -> None:
        with suppress(TransactionDecided):  # where a bound was taken away
            transaction.rollback()

    stage.ends.callback(end_it)
    return getattr(transaction, end), {}


def stopping(stage: Stage, end: str) -> tuple[Call, dict[str, object]]:
    """An end of a consumer at work."""
    consumer = started(stage.scene)
    stage.ends.callback(consumer.stop)
    stage.at_work.append(consumer)
    return getattr(consumer, end), {}


def polling(stage: Stage) -> tuple[Call, dict[str, object]]:
    """There is something to be had, by the first call."""
    pull = stage.scene.pull
    for queue in pull.assignment():
        pull.seek(queue, "begin")
    return pull.poll, {"timeout": 0}


def joined(stage: Stage) -> PullConsumer:
    scene = stage.scene
    return stage.ends.enter_context(
        PullConsumer(scene.fresh(), [scene.topic], home=scene.broker.home)
    )


def started(scene: Scene, listener: Callable[[Message], Any] = listen) -> PushConsumer:
    consumer = PushConsumer(
        scene.fresh(), [scene.topic], listener, home=scene.broker.home, concurrency=1
    )
    consumer.start()
    return consumer


def constructor(name: str, stage: Stage) -> tuple[Call, dict[str, object]]:
    call = made_only(getattr(gantrymq, name))
    return call, RECIPES[name](stage.scene)[1]


#: Where a recipe does more than to call: the callable alone, on what is there beforehand.
ALONE: dict[str, Callable[[Stage], tuple[Call, dict[str, object]]]] = {
    "Producer": lambda s: constructor("Producer", s),
    "PullConsumer": lambda s: constructor("PullConsumer", s),
    "PushConsumer": lambda s: constructor("PushConsumer", s),
    "Client": lambda s: constructor("Client", s),
    "PullConsumer.poll": polling,
    "PullConsumer.close": lambda s: (joined(s).close, {}),
    "Transaction.commit": lambda s: transacting(s, "commit"),
    "Transaction.rollback": lambda s: transacting(s, "rollback"),
    "ReceiptFuture.result": lambda s: (receipt_of(s.scene).result, {}),
    "ReceiptFuture.exception": lambda s: (receipt_of(s.scene).exception, {}),
    "PushConsumer.stop": lambda s: stopping(s, "stop"),
    "PushConsumer.close": lambda s: stopping(s, "close"),
}


def alone(stage: Stage, name: str) -> tuple[Call, dict[str, object]]:
    return ALONE[name](stage) if name in ALONE else RECIPES[name](stage.scene)


def attributes(call: Call) -> dict[str, int]:
    """Of the object whose method it is: what each one is, for it may hold locks and futures."""
    owner = getattr(call, "__self__", None)
    return {name: id(value) for name, value in getattr(owner, "__dict__", {}).items()}


#: What an argument is given together with, for it to count.
WITH_IT: dict[str, dict[str, object]] = {
    "consume_timestamp": {"consume_from": ConsumeFrom.TIMESTAMP},
    "instance": {"model": MessageModel.BROADCASTING},
}


def called(call: Call, given: Mapping[str, object], argument: str, value: object) -> None:
    call(**{**given, **WITH_IT.get(argument, {}), argument: value})


def judged_by(error: BaseException) -> str:
    """The rows of the table by which it was refused, or nothing."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    judges = [frame for frame in frames if frame.f_code is arguments.judged.__code__]
    return str(judges[0].f_locals["call"]) if judges else ""


def fault_outside(
    call: Call, given: Mapping[str, object], row: tuple[str, str], value: object
) -> str:
    """What is wrong with how it refuses a value, or nothing."""
    judge, argument = row
    try:
        called(call, given, argument, value)
    except GantryError as error:
        if judged_by(error) == judge and is_well_told(error, argument):
            return ""
        return f"{type(error).__name__}: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def fault_inside(call: Call, given: Mapping[str, object], argument: str, value: object) -> str:
    """What is wrong with how it takes a value, or nothing."""
    try:
        called(call, given, argument, value)
    except GantryError as error:
        return f"{type(error).__name__}: {error}" if judged_by(error) else ""
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return ""


def misjudged(row: tuple[str, str], bound: Bound) -> list[str]:
    """What is not taken as what it should become."""
    call, argument = row
    judge = TABLE[call][argument]
    return [
        f"{call}({argument}), {bound.name}: {shown(value)} is not {wanted}"
        for value, wanted in bound.becomes
        if judge(argument, value) != wanted
    ]


def faults_outside(stage: Stage, name: str, row: tuple[str, str], bound: Bound) -> list[str]:
    """Of one bound: by which values, and what they did."""
    call, given = alone(stage, name)
    found = [fault_outside(call, given, row, value) for value in bound.outside]
    return [*filter(None, found), *misjudged(row, bound)]


@contextmanager
def nothing_done(stage: Stage, call: Call) -> Iterator[None]:
    """Nothing was stored, moved, begun, opened or noted meanwhile."""
    ends, places, known, held = stage.next_offsets(), stage.places(), attributes(call), stage.held()
    yield
    assert attributes(call) == known
    assert stage.held() <= held
    assert stage.places() == places
    assert stage.next_offsets() == [end + 1 for end in ends]
    assert all(consumer.is_running for consumer in stage.at_work)


# ------------------------------------------------------------------------------ nothing is left out


def test_each_row_of_the_table_has_bounds_or_needs_none() -> None:
    rows = {
        (call, argument): judge for call, row in TABLE.items() for argument, judge in row.items()
    }
    assert set(KEYS) - set(rows) == set(), "no such row"
    boundless = {row for row, judge in rows.items() if kind_of(judge) in BOUNDLESS}
    assert boundless & set(KEYS) == set(), "bounds of what has none"
    assert set(rows) - set(KEYS) - boundless == set(), "say its bounds in argumentranges.py"


def test_each_public_argument_is_judged_by_a_row() -> None:
    """Found by inspection: what is not in the table is listed with those that judge otherwise."""
    found = callables()
    there = {(name, argument) for name in RECIPES for argument in hints_of(name, found[name])}
    by_rows = {(user, argument) for user, rows in USERS.items() for _, argument in rows}
    assert by_rows - there == set(), "no such public argument"
    assert there - by_rows - NOT_IN_THE_TABLE == set(), "give it a row"
    assert by_rows & NOT_IN_THE_TABLE == set(), "it has a row"


@mends("A10.15")
def test_each_end_that_may_wait_is_tried_on_what_is_at_work() -> None:
    ends = {
        name
        for name, function in callables().items()
        if name.rpartition(".")[2] in ("stop", "close") and "timeout" in hints_of(name, function)
    }
    assert ends == AT_WORK


# --------------------------------------------------------------------------------------- the bounds


def bounds_of(stage: Stage, name: str) -> Iterator[tuple[tuple[str, str], Bound]]:
    """Of all arguments of a public callable."""
    for row in USERS[name]:
        for bound in stage.ranges.get(row, ()):
            yield row, bound


@mends("A10.2", "A10.4", "A10.6", "A10.8", "A10.11", "A10.13", "A10.14", "A10.15", "S234")
@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_outside_of_a_bound_is_refused_before_anything_is_done(
    stage: Stage, name: str
) -> None:
    call, given = alone(stage, name)
    with nothing_done(stage, call):
        faults = [
            f"{name}({row[1]}), {bound.name}: {shown(value)}: {fault}"
            for row, bound in bounds_of(stage, name)
            for value in bound.outside
            if (fault := fault_outside(call, given, row, value))
        ]
        assert not faults, "\n".join(faults)


@mends("A10.1", "A10.3", "A10.4", "A10.5", "A10.6", "A10.10", "A10.11", "A10.14", "A10.15")
@pytest.mark.parametrize("name", sorted(USERS))
def test_wrong_types_are_refused_where_they_are_handed_over(stage: Stage, name: str) -> None:
    """By a constructor, before anything is sent or started; by an end, and the work goes on."""
    call, given = alone(stage, name)
    hints = hints_of(name, callables()[name])
    with nothing_done(stage, call):
        faults = [
            f"{name}({row[1]}={what}): {fault}"
            for row in USERS[name]
            if row != JUDGED_LATER
            for what, wrong in WRONG.items()
            if not conforms(wrong, hints[row[1]])
            if (fault := fault_outside(call, given, row, wrong))
        ]
        assert not faults, "\n".join(faults)


@mends("A10.2", "A10.4", "A10.6", "A10.8", "A10.11", "A10.13", "A10.14", "A10.15")
@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_inside_of_a_bound_is_taken(
    stage: Stage, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or fails later, for another reason."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # offsets of broadcasting consumers
    faults = []
    for row, bound in bounds_of(stage, name):
        for value in bound.inside:
            call, given = alone(stage, name) if name in AT_WORK else RECIPES[name](stage.scene)
            if fault := fault_inside(call, given, row[1], value):
                faults.append(f"{name}({row[1]}), {bound.name}: {shown(value)}: {fault}")
    assert not faults, "\n".join(faults)


# A path with a NUL fails amid connecting: nothing but the judge stands before that.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("name", BOUNDED)
def test_a_bound_that_is_taken_away_is_noticed(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one, and each value beyond it, at each callable that uses the row."""
    unnoticed = []
    for row, bound in bounds_of(stage, name):
        call, argument = row
        values = (*bound.outside, *(value for value, became in bound.becomes if value != became))
        with monkeypatch.context() as patch:
            judge = lifted(TABLE[call][argument], values)
            patch.setitem(TABLE[call], argument, judge)
            faults = faults_outside(stage, name, row, bound)
        if len(faults) < len(values):
            unnoticed.append(f"{name}({argument}), {bound.name}: only {faults}")
    assert not unnoticed, "\n".join(unnoticed)


@pytest.mark.parametrize("name", BOUNDED)
def test_what_each_bound_lets_through_is_as_it_is_used(stage: Stage, name: str) -> None:
    faults = [fault for row, bound in bounds_of(stage, name) for fault in misjudged(row, bound)]
    assert not faults, "\n".join(faults)


# -------------------------------------------------------------------------------- parts of messages

#: What a send judges itself: the bounds of a message's parts.
PARTS: dict[str, Bounds] = {
    "topic": TOPIC,
    "queue_id": whole(0, QUEUE_ID_MAX),
    "delivery_timestamp": whole(0, YEAR_9999_MS),
    "delay": (
        Bound("number", (math.nan,)),
        Bound(
            "low",
            (
                -1,
                -0.001,
                -5e-324,
                -math.inf,
                timedelta(microseconds=-1000),
                timedelta(microseconds=-1),
                timedelta.min,
            ),
            (0, 0.0),
        ),
        Bound("high", (YEAR_9999_MS, 1e300, math.inf, timedelta.max), (YEAR_9999_MS // 1000,)),
    ),
    "delay_level": (Bound("low", (0, -1, -(1 << 64)), (1, 18, 19, 1 << 64)),),
}
BATCHES = {way for way in SENDS if "batch" in way}


@mends("A10.8", "S255")
@pytest.mark.parametrize("way", SENDS)
@pytest.mark.parametrize("part", PARTS)
def test_bounds_of_the_parts_of_a_message(stage: Stage, part: str, way: str) -> None:
    """Outside nothing is stored; inside it is, unless the broker has another reason."""

    def send(value: object, topic: str = stage.scene.topic) -> None:
        given: dict[str, Any] = {"topic": topic, "body": b"x"} | {part: value}
        SENDS[way](stage.scene, Message(**given))
        stage.scene.producer.flush()

    def why_not(value: object) -> str:
        try:
            send(value, f"{stage.scene.topic}-later")  # a delay ends amid another test
        except TopicNotFound:  # of a group that there is not
            return ""
        except Rejected as error:
            return str(error)
        return ""

    ends = stage.next_offsets()
    for bound in PARTS[part]:
        for value in bound.outside:
            with pytest.raises(MessageIllegal, match=part):
                send(value)
    assert stage.next_offsets() == [end + 1 for end in ends]
    if way in BATCHES and (part not in BatchParts.__annotations__ or "others" in way):
        return
    refusals = [why_not(value) for bound in PARTS[part] for value in bound.inside]
    assert all(not why or "the broker refused" in why for why in refusals), refusals


#: Whole numbers about all ends of 64 bits, and where a thousand times one begins anew.
ENDS = sorted({
    sign * (1 << bits) + near + seconds
    for sign in (1, -1) for bits in (0, 31, 32, 53, 60, 61, 62, 63, 64, 65)
    for near in (-1, 0, 1) for seconds in (0, 86_400)
} | {YEAR_9999_MS, YEAR_9999_MS + 1, YEAR_9999_MS // 1000, YEAR_9999_MS // 1000 + 1})  # fmt: skip


@mends("S254")
@pytest.mark.parametrize("part", ["delivery_timestamp", "delay", "delay_level"])
@pytest.mark.parametrize("way", ["send_async", "send_oneway"])
def test_a_call_whose_topic_is_known_judges_numbers_as_any_other(
    scene: Scene, part: str, way: str
) -> None:
    """It is put by a kernel, which takes what is plain."""
    send = getattr(scene.producer, way)
    topic = f"{scene.topic}-ends"
    send(topic, b"x", **{part: 1})
    scene.producer.flush()
    for value in ENDS:
        try:
            due_of(msgspec.structs.replace(Message(topic, b"x"), **{part: value}))
            is_taken = True
        except MessageIllegal:
            is_taken = False
        try:
            send(topic, b"x", **{part: value})
            assert is_taken, value
        except MessageIllegal:
            assert not is_taken, value
    with suppress(MessageIllegal):  # the broker's: so long from now on is too far
        scene.producer.flush()


@mends("S258")
def test_an_array_without_a_dimension_is_no_several_things(scene: Scene) -> None:
    """It says that it can be iterated."""
    one: Any = np.array(3)
    calls: list[Callable[[], object]] = [
        lambda: scene.producer.send(scene.topic, b"x", keys=one),
        lambda: scene.producer.send_batch(scene.topic, one),
        lambda: scene.producer.send_batch(one),
        lambda: PullConsumer("g", one, home=scene.broker.home),
        lambda: PushConsumer("g", one, print, home=scene.broker.home),
        lambda: scene.pull.assign(one),
        lambda: scene.pull.pause(one),
        lambda: scene.pull.resume(one),
    ]
    for call in calls:
        with pytest.raises((MessageIllegal, GroupIllegal), match=r"is array|sequence of texts"):
            call()


@pytest.mark.parametrize("kind", [Message, ReceivedMessage])
def test_bounds_of_retry_after(kind: type[Message]) -> None:
    """Seconds, none to 1,000 years; within them it is told that this is no listener."""
    message = kind("t", b"x")
    years_s = 31_536_000_000.0
    for seconds in (-1, -5e-324, -math.inf, math.nextafter(years_s, math.inf), math.inf, math.nan):
        with pytest.raises(ArgumentIllegal, match="retry_after takes seconds") as refused:
            message.retry_after(seconds)
        assert refused.value.argument == "seconds"
    for seconds in (0, 5e-324, years_s):
        with pytest.raises(Rejected, match="listener") as elsewhere:
            message.retry_after(seconds)
        assert not isinstance(elsewhere.value, ArgumentIllegal)


# --------------------------------------------------------------------------------------- one by one


@mends("A10.5")
@pytest.mark.parametrize("timeout", ["x", math.nan, True, timedelta(seconds=1), [1]])
def test_a_producers_timeout_is_judged_as_it_is_made(broker: Broker, timeout: float) -> None:
    """Not by its first send: there is none here."""
    with pytest.raises(ArgumentIllegal, match="timeout is"):
        Producer(broker.home, timeout=timeout)


@mends("A10.11")
@pytest.mark.parametrize("letters", [0, INSTANCE_MAX + 1, 300])
def test_a_broadcasting_instance_of_a_wrong_length_is_refused_by_the_constructor(
    broker: Broker, letters: int
) -> None:
    with pytest.raises(GroupIllegal, match=r"instance is .*: give up to 200 letters"):
        PushConsumer(
            "g", ["t"], listen, home=broker.home, model=MessageModel.BROADCASTING,
            instance="x" * letters,
        )  # fmt: skip


@mends("A10.11")
def test_the_longest_broadcasting_instance_has_a_file(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a group with the longest name: its offsets are there for the next one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    group, instance = scene.fresh().ljust(GROUP_MAX, "g"), "i" * INSTANCE_MAX
    bodies = []
    for body in (b"first", b"second"):
        seen = Seen()
        with PushConsumer(
            group, [scene.topic], seen, home=scene.broker.home, instance=instance,
            model=MessageModel.BROADCASTING, concurrency=1,
        ):  # fmt: skip
            scene.producer.send(scene.topic, body)
            seen.wait_for(1)
        bodies.append([bytes(message.body) for message in seen.messages])
    assert bodies == [[b"first"], [b"second"]]
    (kept,) = (tmp_path / "gantrymq" / "broadcast" / group).glob("*.json")
    assert kept.name.startswith(f"{instance}-")


@mends("A10.12")
@pytest.mark.parametrize("way", ["send_batch", "send_batch_async"])
@pytest.mark.parametrize("wrong", [None, b"x", "x", 5, MessageQueue("x", 0)], ids=repr)
def test_a_batch_of_messages_and_something_else_is_refused_as_a_whole(
    scene: Scene, way: str, wrong: object
) -> None:
    """Wherever it stands among them; nothing of it is stored."""
    right = Message(scene.topic, b"right", queue_id=0)
    end = scene.producer.send(right).queue_offset
    for messages in ([right, wrong], [wrong, right], [right, wrong, right], [wrong]):
        number = messages.index(wrong)
        with pytest.raises(MessageIllegal, match=f"messages: number {number} is .*not a Message"):
            getattr(scene.producer, way)(iter(messages))
    assert scene.producer.send(right).queue_offset == end + 1


@mends("A10.12")
@pytest.mark.parametrize("way", ["send_batch", "send_batch_async"])
@pytest.mark.parametrize("wrong", [None, "x", 5, Message("x", b"x")], ids=repr)
def test_a_batch_of_bodies_and_something_else_is_refused_as_a_whole(
    scene: Scene, way: str, wrong: object
) -> None:
    end = scene.producer.send(scene.topic, b"x", queue_id=0).queue_offset
    for bodies in ([b"x", wrong], [wrong, b"x"], [b"x", wrong, b"x"]):
        with pytest.raises(MessageIllegal, match="bod"):
            getattr(scene.producer, way)(scene.topic, iter(bodies), queue_id=0)
    assert scene.producer.send(scene.topic, b"x", queue_id=0).queue_offset == end + 1


@mends("A10.13")
def test_a_negative_limit_of_a_query_is_refused_and_none_is_none(scene: Scene) -> None:
    for limit in (-1, -(1 << 63), True, math.nan, 1.0):
        with pytest.raises(ArgumentIllegal, match="limit is"):
            scene.client.query(scene.topic, limit=limit)  # type: ignore[arg-type]
    found = [len(list(scene.client.query(scene.topic, limit=limit))) for limit in (0, 1, 2)]
    assert found == [0, 1, 2]


@mends("A10.15")
@pytest.mark.parametrize("end", ["stop", "close"])
def test_a_wrong_timeout_stops_no_consumer_and_infinity_does(scene: Scene, end: str) -> None:
    seen = Seen()
    consumer = started(scene, seen)
    try:
        for timeout in ("x", math.nan, True, timedelta(seconds=1), [1]):
            with pytest.raises(ArgumentIllegal, match="timeout is"):
                getattr(consumer, end)(timeout)
        scene.producer.send(scene.topic, b"x")
        seen.wait_for(1)
        assert consumer.is_running
    finally:
        getattr(consumer, end)(math.inf)
    assert not consumer.is_running
    getattr(consumer, end)(math.inf)
