"""A continuous ingest and the broker are killed at random; the table is what was sent, once.

Two rounds here; GANTRYMQ_TEST_INGESTS asks for more (20 in the soak).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from clients.home import store_of
from clients.spark.table.files import TableFiles
from clients.spark.table.manifest import load_manifest
from gantrymq import Broker, Producer
from tests.support.tables import require_equal, table_rows

ROUNDS = int(os.environ.get("GANTRYMQ_TEST_INGESTS", "2"))
SENT_A_ROUND = 3_000


def start(store: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    words = ["--store", str(store), "--out", str(out), "--no-spark", "--active", *more]
    return subprocess.Popen([sys.executable, "-m", "gantrymq", "ingest", *words])


def position_of(out: Path) -> int:
    known = load_manifest(TableFiles(str(out)))
    return known.position if known else -1


def test_a_table_outlives_kills(
    tmp_path: Path, poll_until: Callable[..., object], seed: int
) -> None:
    out, sample = tmp_path / "table", random.Random(seed)
    sent: list[bytes] = []
    with Broker.temporary(mapped_file_size_commit_log=1 << 18) as broker:
        store = store_of(broker.home)
        for number in range(ROUNDS):
            before = position_of(out)
            job = start(store, out, "--continuous", "--every", "0.1")
            try:
                with Producer(home=broker.home) as producer:
                    for n in range(SENT_A_ROUND):
                        sent.append(b"%d-%d" % (number, n) + b"x" * (n % 80))
                        producer.send_oneway(f"t{n % 3}", sent[-1], tag="a")
                    producer.flush(timeout=30.0)
                target = before + sample.randrange(1 << 17)
                poll_until(lambda: position_of(out) > target, "the ingest is on its way")  # noqa: B023
            finally:
                job.kill()
                job.wait()
            if number % 2:
                broker.process.kill()
                broker.process.wait()
                broker.start()
        last = start(store, out, "--json")
        assert last.wait(60) == 0
        broker.stop()
        job = start(store, out)
        assert job.wait(60) == 0
        require_equal(out, store, includeActive="true")
        bodies = sorted(row["body"] for row in table_rows(out))
    assert bodies == sorted(sent)
