"""Stores of ours for `make interop`, and what a real RocketMQ has to do with each."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantrymq import Broker, BrokerGone, Message, Producer
from gantrymq.brokerd.backup import backup
from gantrymq.brokerd.salvage import salvage
from gantrymq.brokerd.verify import Report, verify
from scripts.interop_checker import PATIENCE_S, SEGMENT_BYTES, Checker, Refused
from scripts.interop_table import VERSIONS, Row

#: RocketMQ then takes a record for valid only with a true checksum trailer (SF-24).
_BINDING: Final = ("-D", "enabledAppendPropCRC=true", "-D", "forceVerifyPropCRC=true")
#: Every key of every record has to be found.
_STRICT: Final = ("--index", "strict")
#: SF-123: without this 5.4.0 rebuilds queues from the last ten segments only.
_WHOLE_LOG: Final = ("-D", "commitLogRecoverMaxNum=100000")

#: Makes a store with a running broker, files beside it in the directory; where the store is.
Maker = Callable[[Broker, Path], Path]


@dataclass(frozen=True)
class Step:
    """One run of the checker."""

    did: str
    command: str
    options: tuple[str, ...] = ()

    def run(self, checker: Checker, store: Path, log: Path) -> str:
        """What the checker said last. Raises Refused."""
        if self.command == "check":
            return checker.check(store, self.options, log)
        return checker.serve(store, self.options, log)


CHECK: Final = Step("loads, recovers; equal to our dump; finds all keys", "check", _STRICT)
CHECK_SUMS: Final = Step(
    "loads with record checksums required; equal to our dump; finds all keys", "check",
    (*_STRICT, *_BINDING),
)  # fmt: skip
RECOVER: Final = Step(
    "recovers as after its own crash; equal to our dump", "check",
    ("--abort", "keep", "--allow-tail", "yes"),
)  # fmt: skip
REBUILD: Final = Step(
    "builds queues and index of the log alone; equal to our dump", "check", (*_STRICT, *_WHOLE_LOG)
)
SERVE: Final = Step("serves: consumed by its clients, extended", "serve")
SERVE_REBUILT: Final = Step(SERVE.did, "serve", _WHOLE_LOG)


@dataclass(frozen=True)
class Trial:
    """One store and what RocketMQ has to do with it."""

    name: str
    make: Maker
    steps: tuple[Step, ...]
    #: The index is made for the other version (SF-122).
    other_target: bool = False

    @property
    def rows(self) -> list[Row]:
        """Its rows of the table."""
        return [Row(self.name, step.did) for step in self.steps]

    @contextmanager
    def made(self, checker: Checker) -> Iterator[Path]:
        """The store, nobody at it."""
        target = checker.version
        if self.other_target:
            (target,) = (version for version in VERSIONS if version != target)
        folder = checker.folder / "made"
        folder.mkdir()
        with Broker.temporary(**checker.settings_of_ours(target)) as broker:
            yield self.make(broker, folder)
        shutil.rmtree(folder)


# --------------------------------------------------------------------------------------- messages


def send_mixed(broker: Broker) -> None:
    """Three topics, tags and keys not only ASCII, bodies of 1 B to 100 KiB; many files."""
    with Producer(broker.home) as producer:
        for number in range(900):
            producer.send_async(_mixed(number))
        producer.flush()


def _mixed(number: int) -> Message:
    topic = ("orders", "audit-2026", "a%b|c")[number % 3]
    size = 100 * 1024 if number % 300 == 7 else 1 + number * 37 % 3000
    return Message(
        topic,
        bytes([number % 251]) * size,
        tag=(None, "paid", "refunded", "übergabe")[number % 4],
        keys=(f"k{number}", f"group{number % 10}") if number % 2 else (),
        properties={"region": "eu", "größe": str(size)} if number % 5 == 0 else {},
    )


def send_durable(broker: Broker) -> None:
    """Durable sends and batches, two sessions side by side."""
    with Producer(broker.home, durability="durable") as first, Producer(broker.home) as second:
        for number in range(60):
            first.send("orders", b"durable %d" % number, tag="paid", keys=(f"d{number}",))
            members = [
                Message("batches", b"%d/%d " % (number, i) * 200, tag=f"t{i % 3}")
                for i in range(1 + number % 15)
            ]
            second.send_batch(members)
            second.send_oneway("orders", b"written %d" % number)
        second.flush()


def send_fitting(broker: Broker) -> None:
    """Records that would leave 7 bytes of their segment (so they roll), 8, 9 and more (SF-20)."""
    with Producer(broker.home) as producer:
        for left_over in (*range(7, 17), 28, 99):
            start = producer.send("edges", b"x", queue_id=0)
            first = int(start.offset_msg_id[16:], 16)
            probe = producer.send("edges", b"y", queue_id=0)
            record = int(probe.offset_msg_id[16:], 16) - first
            position = int(probe.offset_msg_id[16:], 16) + record
            left = SEGMENT_BYTES - position % SEGMENT_BYTES
            bare = record - len(b"y")
            producer.send("edges", b"z" * (left - left_over - bare), queue_id=0)
            producer.send("edges", b"behind", queue_id=0)


# ----------------------------------------------------------------------------------------- stores


def mixed(broker: Broker, folder: Path) -> Path:
    """Stopped cleanly."""
    send_mixed(broker)
    return _stopped(broker)


def durable(broker: Broker, folder: Path) -> Path:
    """Durable sends and batches, stopped cleanly."""
    send_durable(broker)
    return _stopped(broker)


def fitting(broker: Broker, folder: Path) -> Path:
    """All lengths of fillers, stopped cleanly."""
    send_fitting(broker)
    return _stopped(broker)


def killed(broker: Broker, folder: Path) -> Path:
    """Killed amid sends; RocketMQ recovers it, not we."""
    send_mixed(broker)
    _kill_amid_sends(broker, recovered=False)
    return broker.home / "store"


def recovered(broker: Broker, folder: Path) -> Path:
    """Killed amid sends; recovered by us, the rest is sent again."""
    send_mixed(broker)
    _kill_amid_sends(broker, recovered=True)
    return _stopped(broker)


def _kill_amid_sends(broker: Broker, *, recovered: bool) -> None:
    """Its producer sends again what was not answered, or gives up where nobody comes back."""
    gone, patience = ((), PATIENCE_S) if recovered else ((BrokerGone,), 1.0)
    with contextlib.suppress(*gone), Producer(broker.home, timeout=patience) as producer:
        for number in range(900, 1200):
            producer.send_async(_mixed(number))
        broker.process.send_signal(signal.SIGKILL)
        broker.process.wait()
        if recovered:
            broker.start()


def restarted(broker: Broker, folder: Path) -> Path:
    """A clean stop, then a kill, with messages before, between and after."""
    send_mixed(broker)
    broker.stop()
    broker.start()
    send_durable(broker)
    broker.process.send_signal(signal.SIGKILL)
    broker.process.wait()
    broker.start()
    send_fitting(broker)
    return _stopped(broker)


def log_alone(broker: Broker, folder: Path) -> Path:
    """What is derived may go: RocketMQ builds queues and index from our log (SF-111)."""
    store = mixed(broker, folder)
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")  # or the last message is indexed twice (SF-120)
    return store


def salvaged(broker: Broker, folder: Path) -> Path:
    """Bytes of several records are damaged; all else is saved, markers stand for them."""
    store = mixed(broker, folder)
    segments = sorted((store / "commitlog").iterdir())
    for number in (0, len(segments) // 2):
        data = bytearray(segments[number].read_bytes())
        for at in (SEGMENT_BYTES // 3, SEGMENT_BYTES // 2):
            data[at : at + 64] = bytes(byte ^ 0xFF for byte in data[at : at + 64])
        segments[number].write_bytes(data)
    if verify(store).ok:
        raise Refused("the damage was not found")
    target = folder / "salvaged"
    done = salvage(store, target)
    if not done.lost:
        raise Refused("nothing was lost")
    return target


def salvaged_and_extended(broker: Broker, folder: Path) -> Path:
    """A salvaged store that a broker of ours has gone on with."""
    _in_place_of(broker, salvaged(broker, folder))
    return _gone_on(broker)


def copied(broker: Broker, folder: Path) -> Path:
    """A back-up of a running broker's store, as it was copied: without what is derived."""
    send_mixed(broker)
    home = folder / "copy"
    backup(broker.home, home)
    send_durable(broker)
    broker.stop()
    return home / "store"


def restored(broker: Broker, folder: Path) -> Path:
    """The back-up in the place of the store, and a broker of ours has gone on with it."""
    _in_place_of(broker, copied(broker, folder))
    return _gone_on(broker)


def _in_place_of(broker: Broker, store: Path) -> None:
    shutil.rmtree(broker.home / "store")
    shutil.move(store, broker.home / "store")


def _gone_on(broker: Broker) -> Path:
    broker.start()
    send_durable(broker)
    store = _stopped(broker)
    require_sound(store)
    return store


def require_sound(store: Path) -> Report:
    """What `store verify` says of a store. Raises Refused if it finds damage."""
    report = verify(store)
    if not report.ok:
        raise Refused(f"store verify: {report}")
    return report


def _stopped(broker: Broker) -> Path:
    broker.stop()
    return broker.home / "store"


TRIALS: Final = (
    Trial("clean", mixed, (CHECK, CHECK_SUMS, SERVE)),
    Trial("index of the other version", mixed, (CHECK,), other_target=True),
    Trial("durable and batches", durable, (CHECK_SUMS, SERVE)),
    Trial("filler edges", fitting, (CHECK_SUMS,)),
    Trial("killed", killed, (RECOVER, SERVE)),
    Trial("killed, recovered by us", recovered, (CHECK_SUMS, SERVE)),
    Trial("stopped, killed, stopped", restarted, (CHECK_SUMS, SERVE)),
    Trial("log alone", log_alone, (REBUILD, SERVE_REBUILT)),
    Trial("salvaged", salvaged, (CHECK,)),
    Trial("salvaged, gone on", salvaged_and_extended, (CHECK, SERVE)),
    Trial("back-up", copied, (REBUILD,)),
    Trial("back-up, gone on", restored, (CHECK, SERVE)),
)
