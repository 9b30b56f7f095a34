"""What delayed delivery takes: `python -m bench.timer_speed [paced|burst|level|pending]`.

The figures of docs/adr/0016. Lateness is storeTimestamp of the copy less the time asked for, read
from the log afterwards; a broker of its own with a process for each agent.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from clients.home import store_of
from clients.producer import Producer
from gantrymq.temporary import Broker
from shm.board import Board
from shm.codes import Role
from shm.record import Record
from shm.segment import open_log
from shm.storage import PosixStorage
from tests.support.agents import board_of

TOPIC = "later"
BODY = bytes(100)
SIZES = {
    "profile": "standard",
    "mapped_file_size_commit_log": 256 << 20,
    "mapped_file_size_consume_queue": 6_000_000,
    "message_index_enable": False,
    "max_message_size": 4 << 20,
}


def lateness(home: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Milliseconds of each copy in the log."""
    found = []
    for record in copies(home):
        named = record.property_map()
        if "TIMER_DELIVER_MS" in named:
            found.append(record.store_timestamp - int(named["TIMER_DELIVER_MS"]))
        else:
            found.append(record.store_timestamp - int(named["stored"]) - 1000)
    return np.array(found, np.int64)


def copies(home: Path) -> Iterator[Record]:
    """Delivered records."""
    log = open_log(PosixStorage(str(store_of(home))))
    for _position, item in log.scan(log.min_position):
        if isinstance(item, Record) and item.prepared_transaction_offset < 0:
            yield item


def delivered(board: Board) -> int:
    """Records in the topic."""
    topics = [topic for topic in board.topics() if topic.name == TOPIC]
    return sum(
        board.queue(topic.queue_base + number)["max_offset"]
        for topic in topics
        for number in range(topic.queue_count)
    )


def wait_for(board: Board, count: int, patience_s: float) -> float:
    """Seconds until so many are delivered."""
    begin = time.monotonic()
    while delivered(board) < count:
        if time.monotonic() - begin > patience_s:
            raise TimeoutError(f"{delivered(board)} of {count} after {patience_s} s")
        time.sleep(0.002)
    return time.monotonic() - begin


def show(name: str, late: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """One line of figures."""
    p50, p99 = np.percentile(late, [50, 99])
    print(
        f"{name}: {len(late)} delivered, {(late < 0).sum()} early, lateness p50 {p50:.0f} p99"
        f" {p99:.0f} max {late.max()} ms"
    )


def paced(producer: Producer, home: Path, *, rate: int = 10_000, seconds: int = 20) -> None:
    """So many due in each second."""
    first = int(time.time() * 1000) + 6_000
    begin = time.monotonic()
    for number in range(rate * seconds):
        producer.send_oneway(TOPIC, BODY, delivery_timestamp=first + number * 1000 // rate)
    producer.flush()
    print(f"parked {rate * seconds / (time.monotonic() - begin):,.0f}/s")
    wait_for(board_of(home), rate * seconds, seconds + 30)
    show(f"{rate} a second for {seconds} s", lateness(home))


def burst(producer: Producer, home: Path, *, count: int = 100_000) -> None:
    """All due in the same second."""
    due = int(time.time() * 1000) + 4_000
    for number in range(count):
        producer.send_oneway(TOPIC, BODY, delivery_timestamp=due + number % 1000)
    producer.flush()
    time.sleep(max(0.0, due / 1000 - time.time()))
    wait_for(board_of(home), count, 30)
    out_ms = time.time() * 1000 - due
    print(f"{count} due in one second: all out {out_ms - 1000:.0f} ms after it")
    show("burst", lateness(home))


def level(producer: Producer, home: Path, *, count: int = 3_000) -> None:
    """Level 1, paced."""
    for _ in range(count):
        producer.send_oneway(TOPIC, BODY, delay_level=1, properties={"stored": _now()})
        time.sleep(0.001)
    producer.flush()
    wait_for(board_of(home), count, 10)
    show("level of 1 s (from the send)", lateness(home))


def _now() -> str:
    return str(int(time.time() * 1000))


def pending(producer: Producer, home: Path, *, count: int = 1_000_000) -> None:
    """Memory of so many pending, and how long they take to be read."""
    board = board_of(home)
    before = _memory(board)
    due = int(time.time() * 1000) + 3_600_000
    begin = time.monotonic()
    for number in range(count):
        producer.send_oneway(TOPIC, BODY, delivery_timestamp=due + number)
    producer.flush()
    parked_s = time.monotonic() - begin
    timers = store_of(home) / "gantry" / "timers"

    def kept() -> int:
        return sum(path.stat().st_size // 24 for path in timers.iterdir())

    while not timers.exists() or kept() < count:
        time.sleep(0.01)
    read_s = time.monotonic() - begin
    print(
        f"{count} pending: parked {count / parked_s:,.0f}/s, in buckets after {read_s:.2f} s;"
        f" scheduler {before // 1024} -> {_memory(board) // 1024} MiB (proportional)"
    )


def _memory(board: Board) -> int:
    """Proportional memory of the scheduler, KiB."""
    pid = board.process(Role.SCHEDULER)["pid"]
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(names: list[str]) -> None:
    """Measure some or all."""
    jobs: dict[str, Callable[[Producer, Path], None]] = {
        "level": level, "burst": burst, "paced": paced, "pending": pending,
    }  # fmt: skip
    for name in names or list(jobs):
        broker = Broker.temporary(**SIZES)
        with broker, Producer(broker.home, timeout=60) as producer:
            producer.send(TOPIC, b"first")
            jobs[name](producer, broker.home)


if __name__ == "__main__":
    main(sys.argv[1:])
