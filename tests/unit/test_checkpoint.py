"""RocketMQ's `checkpoint`, as a clean stop leaves it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from shm import layout
from tests.support.small_stores import RECORDS, send, small_broker
from tests.support.stores import read_log


def test_a_clean_stop_leaves_the_times_of_the_last_record(tmp_path: Path) -> None:
    """SF-84: 4096 bytes; log and queues hold all up to these times, so RocketMQ redoes little."""
    store = tmp_path / "store"
    with small_broker() as broker:
        send(broker)
        broker.stop()
        shutil.copytree(broker.home / "store", store)
    records = read_log(store)
    assert len(records) == RECORDS
    last = records[-1]
    content = (store / "checkpoint").read_bytes()
    assert len(content) == layout.CHECKPOINT_FILE_BYTES == 4096
    numbers = [int.from_bytes(content[at : at + 8], "big", signed=True) for at in range(0, 40, 8)]
    last_ms = last.record.store_timestamp
    end = last.position + last.record.total_size
    full_ms = json.loads((store / "gantry" / "index.json").read_text())["full_ms"]
    assert 0 < full_ms <= last_ms  # of the last index file that is full (SF-96)
    assert numbers == [last_ms, last_ms, full_ms, end, 0]
    assert not any(content[40:])
    assert not (store / "abort").exists()
