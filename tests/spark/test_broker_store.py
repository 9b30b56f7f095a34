"""A store of our own broker: the sidecars that its reader writes, and Spark's rows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gantrymq import Broker, Producer
from gantrymq.shm import sidecar
from tests.support.spark_rows import everything, rows_of, sealed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")  # Spark's own, about versions and sockets
SEGMENT_BYTES = 1 << 19
SENT = 6_000


def segments(store: Path) -> list[Path]:
    return sorted((store / sidecar.DIRECTORY).glob("[0-9]" * 20))


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
