"""A store refused at start as damaged: salvaged, it starts, and all that is whole is read."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from gantrymq import Broker, ConsumeFrom, Producer, PullConsumer
from gantrymq.brokerd.salvage.plan import TAG
from gantrymq.clients.home import store_of
from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.planning import plan
from gantrymq.clients.spark.scan import read_rows
from gantrymq.shm import layout
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import StoreFailed
from tests.support.brokers import command
from tests.support.planting import Planter
from tests.support.small_stores import RECORDS, flip, send, small_broker
from tests.support.trials import mends

PATIENCE_S = 30.0
TOPICS = ["orders", "audit", "other"]


def read(broker: Broker, group: str, count: int, tags: str = "*") -> list[tuple[str | None, bytes]]:
    """Tags and bodies that a group gets, until there are so many."""
    found: list[tuple[str | None, bytes]] = []
    with PullConsumer(
        group, dict.fromkeys(TOPICS, tags), home=broker.home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        while len(found) < count:
            batch = consumer.poll(timeout=PATIENCE_S)
            assert len(batch), f"{len(found)} of {count} came"
            found += [(message.tag, bytes(message.body)) for message in batch]
            consumer.commit()
    return found


def test_a_damaged_store_is_salvaged_and_goes_on() -> None:
    """Offsets of groups stay true; new messages go behind what there was."""
    with small_broker() as broker:
        send(broker)
        done = read(broker, "early", 300)
        broker.stop()
        store = store_of(broker.home)
        planter = Planter(store, 5)
        for name in (planter.segments[1], planter.segments[-1]):
            for place, _size in planter.records[name][3:8]:
                planter.flip(name, place + 100)
        with pytest.raises(StoreFailed, match=r"store verify.*--salvage"):
            broker.start()

        saved = broker.home / "saved"
        told = command("store", "verify", store, "--salvage", saved)
        assert told.returncode == ExitCode.OK, told.stderr
        assert f"{RECORDS - 10} records" in told.stdout
        assert "10 known to be lost" in told.stdout
        assert "(10 stand for lost ones)" in told.stdout
        shutil.rmtree(store)
        saved.rename(store)

        broker.start()
        missing = lost_bodies(planter)
        wanted = {b"%06d" % number * 40 for number in range(RECORDS)} - missing
        rest = read(broker, "early", len(wanted - {body for _tag, body in done}))
        assert {body for _tag, body in done + rest} >= wanted
        assert sorted(body for _tag, body in read(broker, "late", len(wanted))) == sorted(wanted)
        lost = read(broker, "asks", len(missing), TAG)
        assert [(tag, set(body)) for tag, body in lost] == [(TAG, {0})] * 10
        options = ReadOptions(str(store), include_active=True)
        assert spark_rows(options) == len(wanted)
        assert spark_rows(replace(options, include_lost=True)) == RECORDS
        with Producer(broker.home) as producer:
            assert producer.send("orders", b"new", queue_id=0).queue_offset == RECORDS // 3
        assert read(broker, "late", 1) == [(None, b"new")]


@mends("H2")
def test_a_damaged_ledger_is_refused_by_name_and_salvaged() -> None:
    """Its consumers' offsets were durable: to go on without them would deliver all anew."""
    with small_broker() as broker:
        send(broker)
        done = read(broker, "early", 300)
        broker.stop()
        store = store_of(broker.home)
        flip(store / "gantry/ledger", layout.LEDGER.size + 3)
        with pytest.raises(StoreFailed, match=r"gantry/ledger is damaged at byte .*--salvage"):
            broker.start()
        saved = broker.home / "saved"
        told = command("store", "verify", store, "--salvage", saved)
        assert told.returncode == ExitCode.OK, told.stderr
        assert "gantry/ledger" in told.stdout
        shutil.rmtree(store)
        saved.rename(store)
        broker.start()
        with Producer(broker.home) as producer:
            producer.send("orders", b"new")
        rest = read(broker, "early", RECORDS - len(done) + 1)
        assert (None, b"new") in rest  # queues come in any order
        assert not set(done) & set(rest), "by RocketMQ's file of offsets"


def spark_rows(options: ReadOptions) -> int:
    """Rows that Spark would read."""
    return sum(len(rows.records) for part in plan(options) for rows in read_rows(part, options))


def lost_bodies(planter: Planter) -> set[bytes]:
    """Bodies of the records that were damaged."""
    found = set()
    for name in (planter.segments[1], planter.segments[-1]):
        for place, size in planter.records[name][3:8]:
            data = planter.kept[name][place : place + size]
            count = int.from_bytes(data[84:88], "big")
            found.add(data[88 : 88 + count])
    return found
