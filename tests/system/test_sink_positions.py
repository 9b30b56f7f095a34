"""An attempt of Spark's sink of which a power cut has left nothing, nor what was before it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from gantrymq.clients.session import Session
from gantrymq.clients.spark.sink.ledger import Ledger, Pending, StagingFolder
from gantrymq.clients.spark.sink.sending import Target, send_batch
from gantrymq.clients.spark.sink.staging import stage
from gantrymq.shm.errors import Incompatible
from gantrymq.temporary import Broker
from tests.support.trials import mends

FAR = 1 << 30


@mends("S274")
@pytest.mark.parametrize("store", ["this", "", "another"])
def test_a_log_that_ends_before_an_attempt_has_nothing_of_it(tmp_path: Path, store: str) -> None:
    """Of the same store: of one without an id, or with another, that is not known."""
    column = pa.array([b"one", b"two"], pa.binary())
    one = stage(str(tmp_path), "rows", [pa.RecordBatch.from_pydict({"body": column})])
    assert one is not None
    folder = StagingFolder(str(tmp_path))
    with Broker.temporary() as broker:
        session = Session(broker.home)
        known = {"this": session.store_id, "": "", "another": "5" * 32}[store]
        session.close()
        begun = Pending(0, (one,), identity="ab" * 10, position=FAR, store=known)
        folder.save(Ledger(pending=begun))
        target = Target(str(broker.home), 30.0)
        if store == "this":
            assert send_batch(target, folder, 0, (one,)) == 2
            assert folder.load() == Ledger(done=0)
        else:
            with pytest.raises(Incompatible):
                send_batch(target, folder, 0, (one,))
