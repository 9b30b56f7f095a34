"""Open transactions of a real RocketMQ's stores are finished by a broker of ours, once each."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from gantrymq.brokerd.handover.coming import adopt
from gantrymq.brokerd.verify import verify
from gantrymq.cli.tx_show import look
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.transactions.resolution import TransactionResolution
from tests.support.brokers import ServingBroker
from tests.support.golden import dump_lines, unpack
from tests.support.watchdog import poll_until

OPEN = ("pending31", "pending33", "pending35")
GIVEN_UP = 4


@pytest.mark.parametrize("name", ["tx", "tx-533"])
def test_a_golden_set_is_taken_over_and_finished(tmp_path: Path, name: str) -> None:
    """HO-41, HO-82, TX-46: put-backs count once, what is decided or given up is not asked for."""
    golden = unpack(name, tmp_path / "golden")
    home = tmp_path / "home"
    shutil.copytree(golden.store, home / "store")
    assert adopt(home / "store").open_halves == len(OPEN)
    before = look(home).read()
    assert sorted(d.properties["KEYS"] for d in before if d.state == "open") == list(OPEN)
    assert sum(d.state == "given_up" for d in before) == GIVEN_UP
    asked: set[str] = set()

    def check(message: Message) -> TransactionResolution:
        asked.add(message.keys[0])
        decided = message.keys[0] != OPEN[0]
        return TransactionResolution.COMMIT if decided else TransactionResolution.ROLLBACK

    sizes = {
        "mapped_file_size_commit_log": golden.segment_bytes,
        "mapped_file_size_consume_queue": int(golden.settings["mappedFileSizeConsumeQueue"]),
    }
    sizes |= {"board_queues_max": 8192, "transaction_timeout_s": 1}
    sizes["transaction_check_interval_s"] = 1
    sizes["file_reserved_time"] = 24 * 3650  # or age ends the halves before anybody is asked
    with ServingBroker(home, **sizes, profile="temporary") as broker:
        broker.wait_until_ready()
        with Producer(home, producer_group="PG_tx", transaction_checker=check):
            poll_until(lambda: len(look(home).read()) == GIVEN_UP, "all are decided", 30.0)
        keys = [
            line["properties"]["KEYS"]
            for line in dump_lines(name, "record")
            if line["topic"] == "Tx"
        ]
        wanted = Counter([*keys, *OPEN[1:]])
        first = ConsumeFrom.FIRST_OFFSET
        found: Counter[str] = Counter()
        with PullConsumer("all", ["Tx"], home=home, consume_from=first) as consumer:
            while found.total() < wanted.total():
                batch = list(consumer.poll(timeout=10.0))
                assert batch, found
                found.update(message.keys[0] for message in batch)
        broker.stop()
    assert found == wanted
    assert asked == set(OPEN), "each of them; again what takes longer to answer than a second"
    assert verify(home / "store").ok, str(verify(home / "store"))
    assert len(look(home).read()) == GIVEN_UP
