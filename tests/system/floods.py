"""A session floods with each kind of request in turn; how long others' sends and answers take.

`python -m tests.system.floods --seconds 30` takes each flood of tests/support/floods.py in turn,
with a broker of its own: others work in peace, for 10 s at most (the worst of a shorter peace is
the stricter measure), then for so long beside the flood. It prints a row for each of what they do:
the worst in ms in peace, beside the flood, by how much more, and the bound. It exits with 1 if a
row is over the bound, if one of the others got no answer, or if an agent has died. `--repeat 3`
does all of it three times and judges the middle one, with each excess printed; nothing else is
tried again. `--only` names floods, `--some 6 --seed 1` chooses so many by chance. Another load of
the machine has its part in all times.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

from gantrymq import GantryError, Message, Producer, PullConsumer
from gantrymq.clients.session import Session
from gantrymq.shm import groupwire, layout
from gantrymq.shm.board import Board
from gantrymq.shm.controllane import ControlLane, End
from tests.support.brokers import ServingBroker
from tests.support.floods import floods

#: Others' worst beside a flood, over their worst in peace.
BOUND_MS = 50.0
#: How long others are measured in peace, at most.
PEACE_S = 10.0
#: A message that is due after so long.
DUE_MS = 300
PAUSE_S = 0.005
#: Between two new clients.
ATTACH_S = 0.05
#: Groups that the ledger knows before anything begins.
GROUPS = 500
#: A flood of messages goes on up to so many bytes of log.
LOG_BYTES = 2 << 30


@dataclass(frozen=True)
class Row:
    """What one kind of work took beside one flood, in ms; infinite: it was not answered."""

    flood: str
    work: str
    quiet: float
    flooded: float

    @property
    def excess(self) -> float:
        """How much longer it took than in peace."""
        return self.flooded - self.quiet

    def __str__(self) -> str:
        mark = "OVER" if self.excess > BOUND_MS else ""
        return (
            f"{self.flood:32} {self.work:13} {self.quiet:8.1f} {self.flooded:9.1f}"
            f" {self.excess:8.1f} {BOUND_MS:6.0f} {mark}"
        )


HEAD = f"{'flood':32} {'work':13} {'quiet':>8} {'flooded':>9} {'excess':>8} {'bound':>6}"


def rows_of(flood: str, quiet: dict[str, float], loud: dict[str, float]) -> list[Row]:
    """A row for each work that was done in peace."""
    return [Row(flood, work, took, loud.get(work, math.inf)) for work, took in quiet.items()]


def middle(repeats: list[list[Row]]) -> list[Row]:
    """Of repeats of one flood the row whose excess is the middle one, for each work."""
    found = []
    for rows in zip(*repeats, strict=True):
        wanted = statistics.median_high(row.excess for row in rows)
        found.append(next(row for row in rows if row.excess == wanted))
    return found


def flood(home: Path, name: str, seconds: float, begin: Event) -> None:
    """Be the session that floods, once it is to begin."""
    begin.wait()
    end = time.monotonic() + seconds
    with closing(floods()[name](home)) as rounds, closing(Session(home)) as looker:
        begun = looker.board.word(layout.BOARD_APPENDED)
        while time.monotonic() < end:
            if looker.board.word(layout.BOARD_APPENDED) - begun > LOG_BYTES:
                time.sleep(0.01)
                continue
            with suppress(GantryError, OSError):
                next(rounds)
            time.sleep(0)


class Others:
    """Applications that do as they always do, and note what each takes, in ms."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.took: dict[str, list[float]] = {}
        self._stop = threading.Event()
        works = (
            self._sends, self._durable, self._timers, self._commits, self._recalls,
            self._transactions, self._attaches,
        )  # fmt: skip
        self._threads = [threading.Thread(target=work, args=(work.__name__[1:],)) for work in works]
        for thread in self._threads:
            thread.start()

    def _again(self, name: str, work: Callable[[], object], pause_s: float = PAUSE_S) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                work()
                took_ms = (time.monotonic() - began) * 1e3
            except GantryError:
                took_ms = math.inf
            self.took.setdefault(name, []).append(took_ms)
            time.sleep(pause_s)

    def _sends(self, name: str) -> None:
        with Producer(home=self.home) as producer:
            self._again(name, lambda: producer.send("others", b"x"))

    def _durable(self, name: str) -> None:
        with Producer(home=self.home) as producer:
            self._again(name, lambda: producer.send("others", b"x", durability="durable"))

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

    def _attaches(self, name: str) -> None:
        self._again(name, lambda: Session(self.home, groups=True).close(), ATTACH_S)

    def worst(self) -> dict[str, float]:
        """The worst of each since the last call."""
        took, self.took = self.took, {}
        return {name: max(values) for name, values in sorted(took.items())}

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def fill_ledger(home: Path, groups: int) -> None:
    """Groups that the ledger knows, as a store has them that is some months old."""
    with closing(Session(home, groups=True)) as session:
        topic = session.open_topic("others").slot
        lane = ControlLane(session.arena, session.plan.groups, End.CLIENT)
        for number in range(groups):
            for request in (groupwire.Join(1, f"old{number}", [topic]), groupwire.Leave(2)):
                while not lane.put(groupwire.encode(request)):
                    session.groups_bell.ring()
                    time.sleep(0.001)
                    while lane.take() is not None:
                        pass
        session.groups_bell.ring()
        time.sleep(0.5)


def one(name: str, seconds: float) -> Iterator[list[Row] | str]:
    """Measure beside one flood; what failed, as text."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="gantrymq-floods-") as folder:
        home = Path(folder) / "home"
        sizes = {"topics_max": 1024, "board_queues_max": 16_384}
        broker = ServingBroker(home, mapped_file_size_commit_log=64 << 20, **sizes)
        broker.wait_until_ready()
        fill_ledger(home, GROUPS)
        others, begin = Others(home), context.Event()
        process = context.Process(target=flood, args=(home, name, seconds, begin))
        process.start()
        time.sleep(4)
        others.worst()
        time.sleep(min(seconds, PEACE_S))
        quiet = others.worst()
        begin.set()
        process.join()
        time.sleep(0.2)
        loud = others.worst()
        if process.exitcode:
            yield f"{name}: the flood itself ended with {process.exitcode}"
        yield from deaths_of(name, broker.board, list(broker.pids()))
        others.close()
        broker.stop()
        yield rows_of(name, quiet, loud)


def deaths_of(name: str, board: Board, roles: list[int]) -> Iterator[str]:
    """Agents that were replaced."""
    for role in roles:
        if restarts := board.process(role)["restarts"]:
            yield f"{name}: role {role} died {restarts} times"


def main() -> None:
    """Run the floods."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", default="", help="floods, with commas between")
    parser.add_argument("--some", type=int, default=0, help="so many of them, by chance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="the names of all floods")
    options = parser.parse_args()
    names = [name for name in floods() if not options.only or name in options.only.split(",")]
    if 0 < options.some < len(names):
        names = random.Random(options.seed).sample(names, options.some)
    if options.list:
        print("\n".join(names))
        return
    sys.setswitchinterval(0.0005)  # the others are threads of one process,
    gc.collect()  # which a collection of all that it has imported would stop for 100 ms
    gc.freeze()
    print(HEAD, flush=True)
    failed = [text for name in names for text in judged(name, options.seconds, options.repeat)]
    if failed:
        sys.exit("\n".join(failed))


def judged(name: str, seconds: float, repeat: int) -> list[str]:
    """Measure beside one flood so often, print its rows; what is wrong."""
    found = [item for _ in range(repeat) for item in one(name, seconds)]
    failed = [item for item in found if isinstance(item, str)]
    repeats = [item for item in found if not isinstance(item, str)]
    for number, row in enumerate(middle(repeats)):
        each = " ".join(f"{rows[number].excess:.1f}" for rows in repeats)
        print(row, f"of {each}" if repeat > 1 else "", flush=True)
        if row.excess > BOUND_MS:
            failed.append(f"{name}: {row.work} took {row.excess:.0f} ms more than in peace")
    return failed


if __name__ == "__main__":
    main()
