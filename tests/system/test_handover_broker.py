"""`gantrymq handover` and `adopt` as commands, with brokers before and after them."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

from gantrymq import ConsumeFrom, Message, Producer, PullConsumer
from gantrymq.brokerd.verify import verify
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.configfile import read_config
from gantrymq.shm.imported import read_imported
from gantrymq.shm.properties import TIMER_TOPIC
from gantrymq.shm.storage import PosixStorage
from tests.support.brokers import command
from tests.support.golden import unpack
from tests.support.small_stores import QUEUE_FILE_BYTES, small_broker

GOLDEN_SEGMENT_BYTES = 262_144
FAR = timedelta(days=30)


def run(*words: str) -> Any:  # noqa: ANN401 - JSON
    done = command(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def park(producer: Producer, count: int) -> None:
    for number in range(count):
        producer.send(Message("later", b"timer %d" % number, delay=FAR))
        producer.send(Message("later", b"level %d" % number, delay_level=18))
        producer.send("orders", b"%d" % number, tag="paid")


def test_a_store_that_was_handed_over_can_be_taken_back() -> None:
    """After a stop, after a kill, and again after a life in between; nothing of it is lost."""
    with small_broker() as broker:
        home, store = str(broker.home), broker.home / "store"
        with Producer(broker.home) as producer:
            park(producer, 5)
        with PullConsumer(
            "readers", ["orders"], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer:
            assert len(consumer.poll(timeout=30.0))
            consumer.commit()
        for words in (("handover", "--home", home), ("adopt", str(store), "--dry-run")):
            assert command(*words).returncode == ExitCode.STORE_BUSY
        broker.stop()
        told = run("handover", "--home", home, "--dry-run")
        first = run("handover", "--home", home, "--timer-log-bytes", "2000")
        assert told | {"dry_run": False} == first | {
            "settings": told["settings"], "start_before_ms": told["start_before_ms"]
        }  # fmt: skip
        assert (first["timers"], first["rolled"], first["levels"]) == (5, 5, {"18": [5, 0]})
        assert first["groups"]["readers"] >= 4
        assert verify(store).ok, str(verify(store))
        broker.start()
        with Producer(broker.home) as producer:
            park(producer, 3)
            broker.process.kill()
            broker.process.wait()
        second = run("handover", "--home", home, "--timer-log-bytes", "2000")
        assert (second["timers"], second["levels"]) == (8, {"18": [8, 0]})
        assert second["start_before_ms"] >= first["start_before_ms"]
        assert verify(store).ok, str(verify(store))
        assert not (store / "abort").exists()
        offsets = read_config(PosixStorage(str(store)), "delayOffset.json")["offsetTable"]
        assert offsets == {"18": 0}
        broker.start()
        with PullConsumer(
            "all", ["orders"], home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer:
            seen = [bytes(body) for body in consumer.poll(timeout=30.0).bodies]
        assert set(seen) <= {b"%d" % number for number in range(5)}
        assert seen


def test_a_rocketmqs_store_goes_on_with_us(tmp_path: Path) -> None:
    """Adopted, or merely started: the same is known to be settled."""
    adopted, started = (unpack("timer", tmp_path / name) for name in ("adopted", "started"))
    said = run("adopt", str(adopted.store))
    assert (said["timers"], said["recalls"], said["foreign"]) == (18, 3, 94)
    with small_broker_of_golden_sizes() as broker:
        home, store = broker.home, broker.home / "store"
        broker.stop()
        shutil.rmtree(store)
        shutil.copytree(started.store, store)
        broker.start()
        with PullConsumer(
            "all", ["Timer"], home=home, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer:
            assert len(consumer.poll(timeout=30.0))
        broker.stop()
        known = [read_imported(PosixStorage(str(root))) for root in (adopted.store, store)]
        assert known[0] == known[1]
        assert known[0] is not None
        assert known[0].first(TIMER_TOPIC, 0) == 4


def small_broker_of_golden_sizes() -> Any:  # noqa: ANN401 - Broker.temporary's
    from gantrymq import Broker

    return Broker.temporary(
        mapped_file_size_commit_log=GOLDEN_SEGMENT_BYTES,
        mapped_file_size_consume_queue=QUEUE_FILE_BYTES,
        max_hash_slot_num=500,
        max_index_num=1000,
    )
