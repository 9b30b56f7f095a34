"""Whoever sends a batch of staged rows is killed at random, the broker too; each row is there once.

A few kills here; GANTRYMQ_TEST_WRITES asks for more (the soak has 200).
"""

from __future__ import annotations

import multiprocessing
import os
import random
from pathlib import Path

import pyarrow as pa

from gantrymq import Broker
from gantrymq.clients.home import store_of
from gantrymq.clients.session import Session
from gantrymq.clients.spark.sink.ledger import StagingFolder
from gantrymq.clients.spark.sink.sending import Target, send_batch
from gantrymq.clients.spark.sink.staging import Staged, stage
from gantrymq.shm import layout, wire
from tests.support.spark_rows import rows_of
from tests.support.watchdog import PATIENCE_S, poll_until

KILLS = int(os.environ.get("GANTRYMQ_TEST_WRITES", "4"))
ROWS, FILES = 6_000, 3


def staged_rows(folder: str, batch: int) -> tuple[Staged, ...]:
    found = []
    for number in range(FILES):
        names = [b"%d-%d-%d" % (batch, number, n) for n in range(ROWS // FILES)]
        bodies = [name.ljust(20 + n % 180, b".") for n, name in enumerate(names)]
        tags = [("a", "b", None)[n // 50 % 3] for n in range(len(bodies))]
        rows = pa.record_batch({"body": pa.array(bodies), "tag": pa.array(tags, pa.string())})
        made = stage(folder, "orders", [rows])
        assert made is not None
        found.append(made)
    return tuple(found)


def appended(home: Path) -> int:
    with Session(home) as session:
        return session.board.word(layout.BOARD_APPENDED)


def test_each_row_is_in_the_log_once(tmp_path: Path, seed: int) -> None:
    sample, forks = random.Random(seed), multiprocessing.get_context("fork")
    broken_off = batch = middle = 0
    with Broker.temporary() as broker:
        with Session(broker.home) as session:
            session.request(wire.CreateTopic("orders", 4, "written"))
        folder = StagingFolder(str(tmp_path / "staged"))
        target = Target(str(broker.home), PATIENCE_S)
        while broken_off < KILLS:
            files = staged_rows(folder.root, batch)
            while folder.load().done < batch:
                before = appended(broker.home)
                sender = forks.Process(target=send_batch, args=(target, folder, batch, files))
                sender.start()
                with Session(broker.home) as session:
                    aim = before + sample.randrange(ROWS * 300)
                    board = session.board
                    poll_until(
                        lambda: (
                            board.word(layout.BOARD_APPENDED) >= aim  # noqa: B023
                            or not sender.is_alive()  # noqa: B023
                        ),
                        "the sender is on its way, or ready",
                    )
                sender.kill()
                sender.join()
                broken_off += sender.exitcode != 0
                pending = folder.load().pending
                middle += pending is not None and pending.position < appended(broker.home)
                if sample.random() < 0.25:
                    broker.process.kill()
                    broker.process.wait()
                    broker.start()
                files = staged_rows(folder.root, batch)  # Spark does its tasks again
            batch += 1
        found = [
            row["body"].rstrip(b".")
            for row in rows_of(store_of(broker.home), includeActive="true", topic="orders")
        ]
    sent = [
        b"%d-%d-%d" % (b, f, n)
        for b in range(batch)
        for f in range(FILES)
        for n in range(ROWS // FILES)
    ]
    assert sorted(found) == sorted(sent)
    print(f"killed {broken_off} times, {middle} of them in the middle of {batch} batches")
