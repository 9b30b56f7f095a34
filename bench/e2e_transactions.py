"""Transactions: how fast they are, what checks add to the log, what open ones cost."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bench.crew import BenchError, Crew, JobFactory, Phase
from bench.harness import Bench
from bench.measure import Measurement
from bench.ours import Serving, broker, scratch, serving, stop_hard
from gantrymq.shm import layout
from gantrymq.shm.properties import OP_TOPIC

_NS: Final = 1e9
_KIB: Final = 1024
CHECKS: Final = 15
#: A half with a body of 1 KiB is the first record; all behind it is what checks have added.
_OPEN_MAX: Final = 1_000_000
#: Default of `transaction_timeout_s` and some more; what is open is looked at once in an interval.
_FIRST_CHECK_S: Final = 8
_INTERVAL_S: Final = 10


def one_by_one(bench: Bench) -> Measurement:
    """Half, local no-op, commit from one producer, and its plain sync sends."""
    from bench.transaction_jobs import OneByOne

    return _in_turns(bench, OneByOne, bench.sizes.sync_sends)


def in_flight(bench: Bench) -> Measurement:
    """64 in flight in a topic of level durable, and plain durable sends; op records of each."""
    from bench.transaction_jobs import InFlight

    return _in_turns(bench, InFlight, bench.sizes.in_flight_sends)


def checked(bench: Bench) -> Measurement:
    """`bytes`: what 15 checks of an open transaction add to the log."""
    from bench.transaction_jobs import NeverSure

    often = {"transaction_timeout_s": "1", "transaction_check_interval_s": "1"}
    checks = CHECKS if bench.sizes.rounds > 1 else 2
    settings, patience_s = {**often, "transaction_check_max": "1000"}, bench.sizes.timeout_s
    with (
        scratch(bench) as directory,
        serving(directory, settings, patience_s) as server,
        Crew(patience_s) as crew,
    ):
        crew.start("producer", NeverSure, str(server.home))
        crew.run(Phase(checks))
        added = server.board().word(layout.BOARD_APPENDED) - _first_record(server)
    return Measurement(values={"bytes": added * CHECKS / checks / _KIB}, count=checks)


def open_halves(bench: Bench) -> Measurement:
    """Memory of the txn-checker with many open above none; `seconds` of a start until it knows.

    `pass`: its processor seconds in a check interval, in which each is looked at once. Nobody is
    there to be asked.
    """
    from bench.transaction_jobs import LeftOpen

    count, patience_s = min(bench.sizes.pending_messages, _OPEN_MAX), bench.sizes.timeout_s
    with scratch(bench) as directory:
        interval = {"transaction_check_interval_s": str(_INTERVAL_S)}
        with serving(directory, interval, patience_s) as server:
            before_mb = _checker_mb(server)
            with Crew(patience_s) as crew:
                crew.start("producer", LeftOpen, str(server.home))
                crew.run(Phase(count))
            _wait_open(server, count, patience_s)
            after_mb = _checker_mb(server)
            time.sleep(_FIRST_CHECK_S)
            meter = server.meter()
            time.sleep(_INTERVAL_S)
            pass_s = meter.spent()["broker/txn_checker"]
            stop_hard(server)
        started = time.monotonic()
        with serving(directory, {}, patience_s) as server:
            _wait_open(server, count, patience_s)
            seconds = time.monotonic() - started
            stop_hard(server)
    values = {"memory_mb": after_mb - before_mb, "pass": pass_s, "seconds": seconds}
    return Measurement(values=values, count=count)


def _in_turns(bench: Bench, job: JobFactory, count: int) -> Measurement:
    with broker(bench) as server, Crew(bench.sizes.timeout_s) as crew:
        _make_safe(server.home)
        crew.start("producer", job, str(server.home))
        warming = max(1, count // 10)
        crew.run(Phase(warming))
        outcome = crew.run(Phase(count))["producer"]
        values = {
            "plain_rate": count * _NS / outcome.beside_ns,
            "rate": count * _NS / (outcome.ended_ns - outcome.started_ns - outcome.beside_ns),
            "ops": _next_offset(server) / (count + warming),
        }
    return Measurement(values=values, count=count)


def _make_safe(home: Path) -> None:
    from bench.transaction_jobs import SAFE

    command = [sys.executable, "-m", "gantrymq", "topic", "create", SAFE, "--home", str(home)]
    subprocess.run([*command, "--durability", "durable"], check=True, stdout=subprocess.DEVNULL)


def _next_offset(server: Serving) -> int:
    """How many op records there are."""
    board = server.board()
    (topic,) = [topic for topic in board.topics() if topic.name == OP_TOPIC]
    return board.word(board.queue_at(topic.queue_base) + layout.QUEUE_NEXT_OFFSET)


def _first_record(server: Serving) -> int:
    from gantrymq.clients.home import store_of
    from gantrymq.shm.storage import PosixStorage
    from gantrymq.shm.storereader import StoreReader

    return StoreReader(PosixStorage(str(store_of(server.home)))).record(0).total_size


def _checker_mb(server: Serving) -> float:
    """Proportional memory of the txn-checker's process, in 10**6 bytes."""
    (pid,) = [pid for pid, role in server.roles().items() if "txn_checker" in role]
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (kib,) = [line.split()[1] for line in text.splitlines() if line.startswith("Pss:")]
    return int(kib) * _KIB / 1e6


def _wait_open(server: Serving, count: int, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while server.board().word(layout.BOARD_OPEN_HALVES) < count:
        if time.monotonic() > deadline:
            raise BenchError(f"the txn-checker does not know {count} open halves")
        time.sleep(0.01)
