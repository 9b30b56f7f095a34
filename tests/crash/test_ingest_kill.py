"""A continuous ingest and the broker are killed at random; the table is what was sent, once.

Two rounds without Spark here. GANTRYMQ_TEST_INGESTS asks for more, GANTRYMQ_TEST_INGEST_SPARK=1 for
Spark, of which the driver, its Java or a Python worker is killed then (20 rounds each in the soak).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from gantrymq import Broker, Producer
from gantrymq.clients.home import store_of
from gantrymq.clients.spark.table.files import TableFiles
from gantrymq.clients.spark.table.manifest import load_manifest
from tests.support.tables import require_equal, table_rows

ROUNDS = int(os.environ.get("GANTRYMQ_TEST_INGESTS", "2"))
SENT_A_ROUND = 3_000
BY_SPARK = bool(os.environ.get("GANTRYMQ_TEST_INGEST_SPARK"))
FOLLOW = ("--continuous", "--every", "0.1")
#: A loaded machine takes long to start a JVM and its workers.
PATIENCE_S = 240.0 if BY_SPARK else 60.0


def start(store: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    runner = ("--master", "local[2]", "--memory", "512m") if BY_SPARK else ("--no-spark",)
    words = ["--store", str(store), "--out", str(out), *runner, *more]
    return subprocess.Popen([sys.executable, "-m", "gantrymq", "ingest", *words])


def is_worker(process: psutil.Process) -> bool:
    try:
        return any("pyspark" in word for word in process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return False


def is_java(process: psutil.Process) -> bool:
    try:
        return str(process.name()).startswith("java")
    except psutil.Error:
        return False


def strike(job: subprocess.Popen[bytes], broker: Broker, number: int, sample: random.Random) -> str:
    """Kill something in the middle of the work; what was hit."""
    hit = sample.choice(("driver", "java", "worker", "broker") if BY_SPARK else ("driver",))
    family = psutil.Process(job.pid).children(recursive=True)
    javas = [process for process in family if is_java(process)]
    workers = [process for process in family if process not in javas and is_worker(process)]
    victims = {"java": javas, "worker": workers}.get(hit)
    if victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            sample.choice(victims).kill()
    if hit == "broker" or (not BY_SPARK and number % 2):
        broker.process.kill()
        broker.process.wait()
        broker.start()
    if hit == "driver":
        end(job)
    return hit


def end(job: subprocess.Popen[bytes]) -> None:
    """Kill the job and what it has started."""
    family = [] if job.poll() is not None else psutil.Process(job.pid).children(recursive=True)
    job.kill()
    job.wait()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, PATIENCE_S)


def position_of(out: Path) -> int:
    known = load_manifest(TableFiles(str(out)))
    return known.position if known else -1


def test_a_table_outlives_kills(
    tmp_path: Path, poll_until: Callable[..., object], seed: int
) -> None:
    out, sample = tmp_path / "table", random.Random(seed)
    sent: list[bytes] = []
    hits: Counter[str] = Counter()
    with Broker.temporary(mapped_file_size_commit_log=1 << 18) as broker:
        store = store_of(broker.home)
        job = start(store, out, *FOLLOW)
        try:
            for number in range(ROUNDS):
                before = position_of(out)
                with Producer(home=broker.home) as producer:
                    for n in range(SENT_A_ROUND):
                        sent.append(b"%d-%d" % (number, n) + b"x" * (n % 80))
                        producer.send_oneway(f"t{n % 3}", sent[-1], tag="a")
                    producer.flush(timeout=30.0)
                target = before + sample.randrange(1 << 17)
                while position_of(out) <= target:
                    if job.poll() is not None:  # a task that was killed ends it: again
                        job = start(store, out, *FOLLOW)
                    poll_until(
                        lambda: position_of(out) > target or job.poll() is not None,  # noqa: B023
                        "the ingest is on its way",
                        PATIENCE_S,
                    )
                if job.poll() is None:
                    hits[strike(job, broker, number, sample)] += 1
        finally:
            end(job)
        last = start(store, out, "--json")
        assert last.wait(PATIENCE_S) == 0
        broker.stop()
        job = start(store, out)
        assert job.wait(PATIENCE_S) == 0
        require_equal(out, store, includeActive="true")
        bodies = sorted(row["body"] for row in table_rows(out))
    assert bodies == sorted(sent)
    print(f"killed in {ROUNDS} rounds: {dict(hits)}; {len(sent)} messages, each once")


def test_sigterm_ends_a_continuous_ingest_with_a_whole_table(
    tmp_path: Path, poll_until: Callable[..., object]
) -> None:
    """Exit code 0, the last line says so, and the table is the log up to its position."""
    out = tmp_path / "table"
    with Broker.temporary(mapped_file_size_commit_log=1 << 18) as broker:
        store = store_of(broker.home)
        with Producer(home=broker.home) as producer:
            words = ["--store", str(store), "--out", str(out), "--no-spark", "--json"]
            command = [sys.executable, "-m", "gantrymq", "ingest", *words, *FOLLOW]
            job = subprocess.Popen(command, stdout=subprocess.PIPE)
            try:
                for n in range(SENT_A_ROUND):
                    producer.send_oneway(f"t{n % 3}", b"%d" % n, tag="a")
                poll_until(
                    lambda: position_of(out) > 0 or job.poll() is not None,
                    "the ingest is on its way",
                    PATIENCE_S,
                )
                assert job.poll() is None
                for n in range(SENT_A_ROUND):
                    producer.send_oneway(f"t{n % 3}", b"%d" % n, tag="b")
                job.send_signal(signal.SIGTERM)
                shown, _ = job.communicate(timeout=PATIENCE_S)
            finally:
                end(job)
        assert job.returncode == os.EX_OK
        *_, last = [json.loads(line) for line in shown.splitlines()]
        assert (last["event"], last["position"]) == ("end", position_of(out))
        found = require_equal(out, store, includeActive="true", endOffset=str(last["position"]))
        assert found.count == last["table_rows"] > 0
