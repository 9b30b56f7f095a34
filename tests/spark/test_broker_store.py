"""A store of our own broker: the sidecars that its reader writes, and Spark's rows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gantrymq import Broker, Producer
from gantrymq.clients.spark import planning
from gantrymq.clients.spark.logfiles import used_segments
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.tail import checkpoint_of
from gantrymq.shm import sidecar, storage
from tests.support.spark_rows import everything, rows_of, sealed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")  # Spark's own, about versions and sockets
SEGMENT_BYTES = 1 << 19
SENT = 6_000


def segments(store: Path) -> list[Path]:
    return sorted((store / sidecar.DIRECTORY).glob("[0-9]" * 20))


def told_durable(files: storage.PosixStorage) -> int:
    found = checkpoint_of(files)
    return found.durable if found else 0


@pytest.fixture
def store(poll_until: Callable[..., object]) -> Iterator[Path]:
    """A running broker's store with two sealed segments and an active one."""
    with Broker.temporary(mapped_file_size_commit_log=SEGMENT_BYTES) as broker:
        root = Path(broker.home) / "store"
        with Producer(home=broker.home) as producer:
            for number in range(SENT):
                body = b"%d" % number + b"x" * (number % 90)
                producer.send_oneway(f"t{number % 3}", body, tag="a", keys=[f"k{number}"])
            producer.flush(timeout=30.0)
        poll_until(lambda: len(segments(root)) >= 2, "two segments have sidecars")
        yield root


def test_spark_reads_what_was_sent(store: Path, spark: SparkSession) -> None:
    for path in segments(store):
        written = sidecar.parse(path.read_bytes())
        view = np.frombuffer((store / "commitlog" / path.name).read_bytes(), np.uint8)
        walked = sidecar.build_from_segment(view, int(path.name))
        assert np.array_equal(written.bounds(), walked.bounds())
        assert np.array_equal(written.block_crcs, walked.block_crcs)
        assert (written.first_ms, written.last_ms) == (walked.first_ms, walked.last_ms)
        topics = [written.names[number] for number in written.topic_numbers]
        assert topics == [walked.names[number] for number in walked.topic_numbers]
    rows = everything(store)
    assert sorted(int(row["body"].rstrip(b"x")) for row in rows) == list(range(SENT))
    assert all(row["keys"] == [f"k{int(row['body'].rstrip(b'x'))}"] for row in rows)
    sealed = [row["physical_offset"] for row in sealed_rows(store)]
    assert 0 < len(sealed) < SENT
    whole = [row["physical_offset"] for row in rows_of(store)]
    assert len(whole) == SENT
    for places, active in ((sealed, "false"), (whole, "true")):
        options = {"store": str(store), "includeActive": active}
        data = spark.read.format("gantrymq").options(**options).load()
        assert sorted(row[0] for row in data.select("physical_offset").collect()) == places


def test_what_is_sent_amid_a_look_is_no_damage(
    unique_name: str, monkeypatch: pytest.MonkeyPatch, poll_until: Callable[..., object]
) -> None:
    """The broker writes on between the look at the segments and that at what is durable.

    A receipt may come before the checkpoint's file says the same: it is a lower bound.
    """
    monkeypatch.setattr(storage, "_MAPPED_MIN", 1 << 40)  # a look that is not live is a copy

    with Broker.temporary() as broker, Producer(home=broker.home) as producer:
        bodies = [b"%d" % number for number in range(9)]
        for body in bodies[:3]:
            producer.send(unique_name, body, durability="durable")

        def looked(*arguments: Any) -> Any:  # noqa: ANN401 - whatever it is given
            found = used_segments(*arguments)
            for body in bodies[3:]:
                producer.send(unique_name, body, durability="durable")
            log = used_segments(*arguments)[0][-1]
            end = log.base + int(sidecar.walk(log.view, log.base)[-1])
            files = storage.PosixStorage(f"{broker.home}/store")
            poll_until(lambda: told_durable(files) >= end, "all that was sent is told as durable")
            return found

        monkeypatch.setattr(planning, "used_segments", looked)
        options = ReadOptions.parse({"store": f"{broker.home}/store", "topic": unique_name})
        found = planning.survey(options, durable_only=True)
        assert found.pieces[-1].open is not None
        assert len(found.pieces[-1].open) == len(bodies) + 1
