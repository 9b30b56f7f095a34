"""A session floods with each kind of request in turn; how long others' sends and answers take.

`python -m tests.system.floods --seconds 10` starts a broker of its own and prints a line for each
kind: the worst of the others in ms, beside that of a quiet time before; `--only` names some. It
fails if an agent has died, or one of the others got no answer amid a flood; times are for who reads
them, since another load of the machine has its part in them.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import tempfile
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from gantrymq import GantryError, Message, Producer, PullConsumer
from gantrymq.clients.session import Session
from gantrymq.shm import groupwire, layout, schedulerwire, transactionwire
from gantrymq.shm.controllane import ControlLane, End
from tests.support.brokers import ServingBroker
from tests.support.extremes import kinds_of, sound

#: What makes a sound request, where the least value of a type does not.
BASE: dict[str, object] = {
    "serial": 1, "group": "flood", "topics": [0], "offsets": [0], "delays": [0], "whys": ["no"],
    "handle": "djEgZmxvb2QgYiAxNzAwMDAwMDAwMDAwIEtLS0tLS0tLS0tLS0tLS0=", "topic": "flood",
    "halves": [[0, 0]], "action": "recheck", "position": 1 << 20, "tx": "f" * 32,
}  # fmt: skip
MAPS: dict[str, dict[str, object]] = {
    "Commit": {"offsets": {0: 1}, "done": {0: [[1, 2]]}},
    "Reset": {"offsets": {0: 0}},
}
UNIONS = {
    "groups": groupwire.AnyRequest,
    "scheduler": schedulerwire.Recall,
    "transactions": transactionwire.AnyRequest,
}
#: A message that is due after so long.
DUE_MS = 300
PAUSE_S = 0.005


def kinds() -> list[str]:
    """All floods by name: each request of each lane, frames, connections, words."""
    lanes = [
        f"{lane}.{kind.__name__}" for lane, union in UNIONS.items() for kind in kinds_of(union)
    ]
    return [*lanes, "scheduler.unknown", "frames.OpenTopic", "Hello", "words"]


def flood(home: Path, name: str, seconds: float) -> None:
    """Be the session that floods."""
    end = time.monotonic() + seconds
    lane, _, kind = name.partition(".")
    with suppress(GantryError, OSError):
        if lane in UNIONS:
            _flood_lane(home, lane, kind, end)
        elif name == "Hello":
            while time.monotonic() < end:
                Session(home, groups=True).close()
        elif name == "words":
            _flood_words(home, end)
        else:
            session = Session(home)
            while time.monotonic() < end:
                session.open_topic("flood")


def _requests(kind: str, lane: str) -> Iterator[bytes]:
    """Bodies without end."""
    if kind == "unknown":
        number = 0
        while True:
            number += 1
            text = _handle(number)
            yield schedulerwire.encode(schedulerwire.Recall(number, "flood", text))
    (found,) = [one for one in kinds_of(UNIONS[lane]) if one.__name__ == kind]
    given = BASE | MAPS.get(kind, {})
    fields = msgspec.structs.fields(found)
    values = [given.get(field.name, sound(field.type)) for field in fields]
    body = msgspec.msgpack.encode([found.__struct_config__.tag, *values])
    while True:
        yield body


def _handle(number: int) -> str:
    due_ms = int(time.time() * 1000) + 90_000
    return urlsafe_b64encode(f"v1 flood b {due_ms} {number:032x}".encode()).decode()


def _flood_lane(home: Path, lane: str, kind: str, end: float) -> None:
    """Put all that fits, read every other answer."""
    session = Session(home, **{lane: True})  # type: ignore[arg-type]
    bell = getattr(session, {"transactions": "checker"}.get(lane, lane) + "_bell")
    ours = ControlLane(session.arena, getattr(session.plan, lane), End.CLIENT)
    bodies = _requests(kind, lane)
    body = next(bodies)
    while time.monotonic() < end:
        while ours.put(body):
            body = next(bodies)
        bell.ring()
        for _ in range(64):
            if ours.take() is None:
                break
        time.sleep(0)


def _flood_words(home: Path, end: float) -> None:
    """An interest list of all queues, and bells."""
    session = Session(home, groups=True)
    at = layout.ARENA_INTEREST_COUNT
    session.arena[at : at + 4].view("<u4")[0] = 1 << 31
    at = layout.ARENA_WAIT_ARMED
    while time.monotonic() < end:
        session.arena[at : at + 4].view("<u4")[0] = 1
        session.groups_bell.ring()
        session.scheduler_bell.ring()
        session.checker_bell.ring()
        time.sleep(0)


class Others:
    """Applications that do as they always do, and note what each takes, in ms."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.took: dict[str, list[float]] = {}
        self._stop = threading.Event()
        works = (self._sends, self._timers, self._commits, self._recalls, self._transactions)
        self._threads = [threading.Thread(target=work, args=(work.__name__[1:],)) for work in works]
        for thread in self._threads:
            thread.start()

    def _again(self, name: str, work: Callable[[], object]) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            with suppress(GantryError):
                work()
            self.took.setdefault(name, []).append((time.monotonic() - began) * 1e3)
            time.sleep(PAUSE_S)

    def _sends(self, name: str) -> None:
        with Producer(home=self.home) as producer:
            self._again(name, lambda: producer.send("others", b"x"))

    def _timers(self, name: str) -> None:
        group = f"timers{time.monotonic_ns()}"
        with (
            PullConsumer(group, ["due"], home=self.home) as consumer,
            Producer(home=self.home) as producer,
        ):
            consumer.poll(timeout=0.5)
            sent_ns = 0
            while not self._stop.is_set():
                if time.monotonic_ns() - sent_ns > 20_000_000:
                    sent_ns = time.monotonic_ns()
                    due_ms = math.ceil(time.time() * 1000) + DUE_MS
                    body = b"%d" % due_ms
                    producer.send_oneway(Message("due", body, delivery_timestamp=due_ms))
                for message in consumer.poll(timeout=0.01):
                    late = time.time() * 1000 - int(message.body)
                    self.took.setdefault(name, []).append(late)

    def _commits(self, name: str) -> None:
        with PullConsumer(f"c{time.monotonic_ns()}", ["others"], home=self.home) as consumer:

            def work() -> None:
                consumer.poll(timeout=0)
                consumer.commit()

            self._again(name, work)

    def _recalls(self, name: str) -> None:
        with Producer(home=self.home) as producer:

            def work() -> None:
                receipt = producer.send(
                    Message("due2", b"x", delivery_timestamp=int(time.time() + 3600) * 1000)
                )
                assert receipt.recall_handle is not None
                producer.recall_message("due2", receipt.recall_handle)

            self._again(name, work)

    def _transactions(self, name: str) -> None:
        with Producer(home=self.home, producer_group="floods") as producer:

            def work() -> None:
                with producer.transaction() as transaction:
                    producer.send(Message("others", b"x"), transaction)

            self._again(name, work)

    def worst(self) -> dict[str, float]:
        """The worst of each since the last call."""
        took, self.took = self.took, {}
        return {name: max(values) for name, values in sorted(took.items())}

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def main() -> None:
    """Run the floods."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    only = [name for name in kinds() if not options.only or name in options.only.split(",")]
    failed: list[str] = []
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="gantrymq-floods-") as folder:
        home = Path(folder) / "home"
        broker = ServingBroker(home, mapped_file_size_commit_log=64 << 20)
        broker.wait_until_ready()
        others = Others(home)
        time.sleep(2)
        for name in only:
            others.worst()
            time.sleep(options.seconds / 2)
            quiet = others.worst()
            process = context.Process(target=flood, args=(home, name, options.seconds))
            process.start()
            process.join()
            time.sleep(0.2)
            loud = others.worst()
            line = ", ".join(
                f"{what} {loud.get(what, math.inf):.0f} ({quiet.get(what, math.inf):.0f})"
                for what in ("sends", "timers", "commits", "recalls", "transactions")
            )
            print(f"{name}: {line}", flush=True)
            if len(loud) < len(quiet):
                failed.append(f"{name}: only {', '.join(loud)} were answered")
        board = broker.board
        failed += [f"{role.name} died" for role in broker.pids() if board.process(role)["restarts"]]
        others.close()
        broker.stop()
    sys.exit("\n".join(failed) or 0)


if __name__ == "__main__":
    main()
