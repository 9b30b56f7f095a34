"""A store with bits of SQL92 filters, read by a RocketMQ's own groups: a leg of `make interop`.

One filter was there first, one came late and was caught up with, one has lost a bit of one message
on purpose: if the RocketMQ gives that group all but this message, bits are what it goes by. Each
group gets what our own consumer has got of the same filter.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantrymq import (
    Broker,
    ConsumeFrom,
    FilterExpression,
    FilterType,
    Message,
    Producer,
    PullConsumer,
)
from gantrymq.clients.control import look_at
from gantrymq.shm import layout, wire
from gantrymq.shm.bitmapnote import read_covered
from gantrymq.shm.storage import PosixStorage
from scripts.interop_checker import Checker, Refused, wait_until
from scripts.interop_group import RocketMqGroup
from scripts.interop_handover import hand_over
from scripts.interop_table import Row

TOPIC: Final = "fares"
PLAIN: Final = "orders"
COUNT: Final = 600
#: Group -> its filter; they are TRUE of a few messages in a hundred, in either dialect.
FILTERS: Final = {
    "first": "price BETWEEN 10 AND 14 AND carrier IN ('UA', 'DL')",
    "late": "price > 95 OR carrier IS NULL",
    "blinded": "NOT (price < 97)",
}
BLINDED: Final = "blinded"
_STAY_S: Final = 12.0
_SETTINGS: Final = {
    "enable_consume_queue_ext": True,
    "enable_calc_filter_bit_map": True,
    "default_topic_queue_nums": 1,
}


@dataclass(frozen=True)
class Leg:
    """The only one."""

    name: str = "bits of filters"
    did: str = "by SQL92 gives groups what ours got, and goes by our bits"

    @property
    def row(self) -> Row:
        """Its row of the table."""
        return Row(self.name, self.did)


LEGS: Final = (Leg(),)


def run(_leg: Leg, checker: Checker, log: Path) -> str:
    """What was found in the end. Raises Refused, GantryError."""
    theirs: dict[str, set[bytes]] = {}
    with Broker.temporary(**checker.settings_of_ours(checker.version), **_SETTINGS) as broker:
        store = broker.home / "store"
        ours = _consumed_here(broker)
        broker.stop()
        hidden = _blind(store, ours[BLINDED])
        settings = hand_over(broker)["settings"]
        options = [word for item in settings.items() for word in ("-D", "{}={}".format(*item))]
        options += ["-D", "enablePropertyFilter=true"]

        def consume(port: int) -> None:
            for group, text in FILTERS.items():
                member = RocketMqGroup(port, group, {})
                theirs[group] = {record.body for record in member.passing(TOPIC, text)}
                member.close()

        checker.go_on_with(store, (5, PLAIN), log, consume, stay=_STAY_S, options=options)
    for group, wanted in ours.items():
        found, lacks = theirs[group], {hidden} if group == BLINDED else set()
        if found != wanted - lacks:
            raise Refused(
                f"group {group}: {len(found)} of {len(wanted)} came, {len(wanted - lacks - found)}"
                f" missing, {len(found - wanted)} too many, {len(found & lacks)} without its bit"
            )
    counts = ", ".join(f"{group} {len(found)}" for group, found in theirs.items())
    return f"{counts} of {COUNT}; one without its bit is passed over"


# ------------------------------------------------------------------------------------------ at ours


def _consumed_here(broker: Broker) -> dict[str, set[bytes]]:
    """Make the store; what its groups get of all messages."""
    storage = PosixStorage(str(broker.home / "store"))

    def known(*groups: str) -> bool:
        starts = {covered.group: covered.start for covered in read_covered(storage)}
        return all(starts.get(group, 1) == 0 for group in groups)

    with look_at(broker.home) as control:
        control.request(wire.CreateTopic(TOPIC, 1, "written"), wire.TopicOpened)
    with ExitStack() as open_ones:
        producer = open_ones.enter_context(Producer(broker.home))
        producer.send(PLAIN, b"what the RocketMQ is sent goes here")
        consumers = {}
        for group in ("first", BLINDED):
            consumers[group] = open_ones.enter_context(_consumer(broker, group))
        wait_until(lambda: known("first", BLINDED))
        producer.send_batch([_message(number) for number in range(COUNT // 2)])
        consumers["late"] = open_ones.enter_context(_consumer(broker, "late"))
        wait_until(lambda: known("late"))
        producer.send_batch([_message(number) for number in range(COUNT // 2, COUNT)])
        return {group: _all_of(consumer) for group, consumer in consumers.items()}


def _consumer(broker: Broker, group: str) -> PullConsumer:
    wanted = FilterExpression(FILTERS[group], FilterType.SQL92)
    return PullConsumer(
        group, {TOPIC: wanted}, home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    )


def _message(number: int) -> Message:
    carrier = {} if number % 40 == 0 else {"carrier": ("UA", "DL", "AA")[number % 3]}
    return Message(TOPIC, b"%d" % number, properties={"price": str(number % 100), **carrier},
                   tag="fare")  # fmt: skip


def _all_of(consumer: PullConsumer) -> set[bytes]:
    found: set[bytes] = set()

    def is_done() -> bool:
        found.update(bytes(body) for body in consumer.poll(timeout=0.2).bodies)
        (queue,) = consumer.assignment()
        return consumer.position(queue) >= COUNT

    wait_until(is_done)
    return found


def _blind(store: Path, passing: set[bytes]) -> bytes:
    """Take a bit from one message that a group has to get; its body, which is its offset."""
    storage = PosixStorage(str(store))
    hidden = max(passing, key=int)
    bits: dict[str, set[int]] = {}
    for covered in read_covered(storage):
        bits[covered.group] = set(covered.positions)
    bit = min(bits.pop(BLINDED) - set().union(*bits.values()))
    unit = _read(store, "consumequeue", int(hidden) * layout.CQ_UNIT_BYTES, layout.CQ_UNIT_BYTES)
    code: int = layout.CQ_UNIT.unpack(unit)["tags_code"]
    address = code - layout.CQ_EXT_ADDRESS_BASE + layout.CQ_EXT_BITMAP + bit // 8
    folder = "consumequeue_ext"
    (byte,) = _read(store, folder, address, 1)
    path, place = _place(store, folder, address)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([byte & ~(1 << bit % 8)]))
    return hidden


def _read(store: Path, folder: str, address: int, count: int) -> bytes:
    path, place = _place(store, folder, address)
    return path.read_bytes()[place : place + count]


def _place(store: Path, folder: str, address: int) -> tuple[Path, int]:
    """File of the topic's only queue, and place in it."""
    files = sorted((store / folder / TOPIC / "0").iterdir())
    path = max(file for file in files if int(file.name) <= address)
    return path, address - int(path.name)
