"""A real RocketMQ goes on with a store of ours, then we do: legs of `make interop`.

Both ends are tried clean and by SIGKILL. Everything of both must be there once, `store verify`
clean, and RocketMQ must accept the outcome again.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantrymq import Broker, ConsumeFrom, Message, Producer, PullConsumer

TOPIC: Final = "orders"
GROUP: Final = "keepers"
OURS: Final = 400
IN_FLIGHT: Final = 200
THEIRS: Final = 60
PATIENCE_S: Final = 60.0
_UP: Final = "name server"  # what it prints when it waits, everything done


@dataclass(frozen=True)
class Leg:
    """Who is killed."""

    name: str
    we_are_killed: bool
    it_is_killed: bool


LEGS: Final = (
    Leg("goes on: stop, stop", False, False),
    Leg("goes on: kill, stop", True, False),
    Leg("goes on: stop, kill", False, True),
    Leg("goes on: kill, kill", True, True),
)


@dataclass(frozen=True)
class Checker:
    """The real RocketMQ: its `run.sh`, options of the store's sizes, and its environment."""

    runner: Path
    sizes: tuple[str, ...]
    environment: dict[str, str]

    def go_on(self, store: Path, work: Path, log: Path, *, killed: bool) -> None:
        """Serve a copy of the store, send to it, stop; the outcome replaces the store's files."""
        command = [str(self.runner), "serve", str(store), *self.sizes, "--work", str(work)]
        command += ["--send", str(THEIRS), "--send-topic", TOPIC]
        command += ["--keep", "600"] if killed else []
        with log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=self.environment
            )
            try:
                if killed:
                    _wait_until(lambda: _UP in log.read_text() or process.poll() is not None)
                    process.kill()
                process.wait(4 * PATIENCE_S)
            finally:
                process.kill()
                process.wait()
        said = log.read_text(encoding="utf-8", errors="replace")
        if (
            "FAIL" in said
            or (process.returncode != 0 and not killed)
            or (killed and _UP not in said)
        ):
            raise AssertionError(f"RocketMQ did not go on with the store: {log}")
        (copy,) = work.glob("rmq*/store")
        for old in store.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.copytree(copy, store, dirs_exist_ok=True)


def run(leg: Leg, checker: Checker, sizes: dict[str, int], log: Path) -> tuple[Path, str]:
    """One leg; the store it leaves, for another check, and what was there. Raises AssertionError.

    The store lies beside the log.
    """
    bodies: list[bytes] = []
    with Broker.temporary(**sizes) as broker, Producer(broker.home, timeout=PATIENCE_S) as producer:
        store = broker.home / "store"
        _send(producer, bodies, OURS)
        producer.flush()
        with PullConsumer(
            GROUP, [TOPIC], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer:
            before = _consumed(consumer, OURS // 2)
        if leg.we_are_killed:
            _send(producer, bodies, IN_FLIGHT)
            broker.process.kill()
            broker.process.wait()
        else:
            broker.stop()
        checker.go_on(store, log.with_suffix(".work"), log, killed=leg.it_is_killed)
        broker.start()
        _send(producer, bodies, OURS)
        producer.flush()
        theirs = [b"sent by serve %d" % number for number in range(THEIRS)]
        wanted = Counter([*bodies, *theirs])
        _require_all(broker, wanted, before)
        broker.stop()
        kept = log.with_suffix(".store")
        shutil.copytree(store, kept)
    shutil.rmtree(log.with_suffix(".work"))
    return kept, _verified(kept)


def _send(producer: Producer, bodies: list[bytes], count: int) -> None:
    for _ in range(count):
        bodies.append(b"%d " % len(bodies) * (1 + len(bodies) % 90))
        producer.send_async(Message(TOPIC, bodies[-1], tag="paid", keys=(f"k{len(bodies)}",)))


def _require_all(broker: Broker, wanted: Counter[bytes], before: Counter[bytes]) -> None:
    """A new group gets everything once; the one that has begun, all that it has not committed."""
    with PullConsumer(
        "afterwards", [TOPIC], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        found = _consumed(consumer, wanted.total())
    if found != wanted:
        raise AssertionError(
            f"{(wanted - found).total()} lost, {(found - wanted).total()} too many"
        )
    with PullConsumer(GROUP, [TOPIC], home=broker.home) as consumer:
        rest = _consumed(consumer, wanted.total() - before.total())
    if rest + before != wanted:
        raise AssertionError(f"group {GROUP} did not go on where it had committed")


def _consumed(consumer: PullConsumer, count: int) -> Counter[bytes]:
    """Bodies of at least so many messages, committed."""
    found: Counter[bytes] = Counter()

    def read() -> bool:
        found.update(bytes(body) for body in consumer.poll(timeout=0.2).bodies)
        return found.total() >= count

    _wait_until(read)
    consumer.commit()
    return found


def _verified(store: Path) -> str:
    from brokerd.verify import verify
    from shm.ranges import read_ranges
    from shm.storage import PosixStorage

    report = verify(store)
    if not report.ok:
        raise AssertionError(str(report))
    ranges = read_ranges(PosixStorage(str(store)))
    if ranges is None or len(ranges.spans) != 2:
        raise AssertionError(f"ours, RocketMQ's, ours were expected: {ranges}")
    (_, first), (second, _) = ranges.spans
    return f"{report.records} records, RocketMQ's from {first} to {second}; verify clean"


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 2 * PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it takes too long")
        time.sleep(0.05)
