"""What a broker takes while nothing happens; how long commands, first sends, take-overs last."""

from __future__ import annotations

import multiprocessing
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from bench.crew import BenchError, Crew, Phase
from bench.harness import Bench
from bench.measure import Measurement, histogram, percentiles
from bench.ours import TOPIC, Serving, broker, make_topic

if TYPE_CHECKING:
    from gantrymq import Producer, PullConsumer

_QUEUES: Final = 4
_GROUP: Final = "takeover"
_PATIENCE_S: Final = 30.0
_IMPORT: Final = """
import time
started = time.perf_counter()
import gantrymq
print(time.perf_counter() - started)
"""
#: These print when they were done, by the clock of all processes.
_FIRST_SEND: Final = """
import sys, time
from gantrymq import Producer
with Producer(home=sys.argv[1]) as producer:
    producer.send(sys.argv[2], b"first")
    print(time.monotonic_ns())
"""
_TEMPORARY: Final = """
import sys, time
from gantrymq import Broker, ConsumeFrom, Producer, PullConsumer
with Broker.temporary() as broker:
    with Producer(home=broker.home) as producer:
        producer.send(sys.argv[1], b"first")
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer("g", [sys.argv[1]], home=broker.home, consume_from=first) as consumer:
        assert len(consumer.poll(timeout=30.0)) == 1
        print(time.monotonic_ns())
"""


def idle(bench: Bench) -> Measurement:
    """Two producers that sleep and two consumers in `poll`, each a process of its own.

    `percent` of one processor, for the broker and its clients together; `memory_mb` is what the
    broker's processes have, pages that they share divided among those that share them.
    """
    from bench.scale_jobs import IdleConsumer, IdleProducer

    with broker(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        for number in (1, 2):
            crew.start(f"producer-{number}", IdleProducer, str(server.home))
            crew.start(f"consumer-{number}", IdleConsumer, str(server.home), f"idle-{number}")
        crew.run(Phase(0, seconds=min(2.0, bench.sizes.idle_s)))
        meter = server.meter()
        started = time.monotonic()
        outcomes = crew.run(Phase(0, seconds=bench.sizes.idle_s))
        seconds = time.monotonic() - started
        spent = {role: outcome.cpu_s for role, outcome in outcomes.items()} | meter.spent()
        shares = {f"percent_{role}": 100 * cpu / seconds for role, cpu in spent.items()}
        memory = {f"memory_mb_{role}": size for role, size in _memory_mb(server).items()}
    return Measurement(
        values={
            "percent": sum(shares.values()),
            "memory_mb": sum(memory.values()),
            **shares,
            **memory,
        }
    )


def importing(bench: Bench) -> Measurement:
    """The statement `import gantrymq` in a new process."""
    command = [sys.executable, "-c", _IMPORT]
    return _median_ms(bench, lambda: float(_said(command)))


def status(bench: Bench) -> Measurement:
    """The command `gantrymq status`, from its start to its end."""
    with broker(bench) as server:
        command = [sys.executable, "-m", "gantrymq", "status", "--home", str(server.home)]

        def run() -> float:
            started = time.monotonic()
            _said(command)
            return time.monotonic() - started

        return _median_ms(bench, run)


def first_send(bench: Bench) -> Measurement:
    """From the start of a process to the receipt of its first `send`."""
    with broker(bench) as server:
        command = [sys.executable, "-c", _FIRST_SEND, str(server.home), TOPIC]
        return _median_ms(bench, lambda: _until_said(command))


def temporary(bench: Bench) -> Measurement:
    """From the start of a process, through `Broker.temporary()`, to its first consumed message."""
    command = [sys.executable, "-c", _TEMPORARY, TOPIC]
    return _median_ms(bench, lambda: _until_said(command))


def takeover(bench: Bench) -> Measurement:
    """From the kill of one of two members to the other's first message of each queue."""
    from gantrymq import Producer, PullConsumer

    latencies = array("q")
    with broker(bench) as server:
        make_topic(server, _QUEUES)
        home = str(server.home)
        with PullConsumer(_GROUP, [TOPIC], home=home) as consumer, Producer(home=home) as producer:
            for _ in range(bench.sizes.kills):
                latencies.append(_kill_one(home, consumer, producer))
    return Measurement(values=percentiles(histogram(latencies)), count=len(latencies))


def _kill_one(home: str, consumer: PullConsumer, producer: Producer) -> int:
    """Let a member join, kill it, and return the nanoseconds until all queues are read again."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    member = context.Process(target=_member, args=(theirs, home), daemon=True)
    member.start()
    theirs.close()
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while not ours.poll():
            consumer.poll(timeout=0.01)
            if time.monotonic() > deadline or not member.is_alive():
                raise BenchError("takeover: the second member got no queues")
        killed_ns = time.monotonic_ns()
        member.kill()
        for queue in range(_QUEUES):
            producer.send_oneway(TOPIC, b"%d" % killed_ns, queue_id=queue)
        came = 0
        while came < _QUEUES:
            came += len(consumer.poll(timeout=1.0))
            if time.monotonic() > deadline:
                raise BenchError(f"takeover: {came} of {_QUEUES} messages came")
        return time.monotonic_ns() - killed_ns
    finally:
        member.kill()
        member.join()
        ours.close()


def _member(pipe: Connection, home: str) -> None:
    """Life of a member: it says when it has its half of the queues, and polls until killed."""
    from gantrymq import PullConsumer

    told = False
    with PullConsumer(_GROUP, [TOPIC], home=home) as consumer:
        while True:
            consumer.poll(timeout=0.01)
            if not told and len(consumer.assignment()) == _QUEUES // 2:
                told = True
                pipe.send(None)


def _memory_mb(server: Serving) -> dict[str, float]:
    """Proportional memory of each process of the broker in 10**6 bytes."""
    root = psutil.Process(server.pid)
    roles = server.roles()
    found = {}
    for process in [root, *root.children(recursive=True)]:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        (kib,) = [line.split()[1] for line in text.splitlines() if line.startswith("Pss:")]
        found[roles.get(process.pid, process.name())] = int(kib) * 1024 / 1e6
    return found


def _median_ms(bench: Bench, run: Callable[[], float]) -> Measurement:
    """Run so many times after a first one that fills caches; seconds become `ms`."""
    run()
    seconds = [run() for _ in range(bench.sizes.starts)]
    return Measurement(values={"ms": statistics.median(seconds) * 1000}, count=len(seconds))


def _until_said(command: list[str]) -> float:
    """Seconds from the start of a process to the time that it prints."""
    started = time.monotonic_ns()
    return (int(_said(command)) - started) / 1e9


def _said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{command[1:3]}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout
