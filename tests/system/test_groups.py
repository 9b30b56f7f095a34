"""Groups of a real broker: where they begin by time, and RocketMQ's file of them."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd.subscriptions import default_group
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.shm.codes import Role
from gantrymq.shm.configfile import read_config
from gantrymq.shm.storage import PosixStorage
from gantrymq.temporary import Broker
from tests.support.brokers import ServingBroker
from tests.support.watchdog import poll_until

PATIENCE_S = 30.0


def send(broker: Broker | ServingBroker, topic: str, bodies: range) -> None:
    with Producer(home=broker.home) as producer:
        for body in bodies:
            producer.send_oneway(topic, b"%d" % body)
        producer.flush(timeout=PATIENCE_S)


def take(consumer: PullConsumer, count: int) -> list[int]:
    """Poll until there are so many bodies."""
    found: list[int] = []
    while len(found) < count:
        batch = consumer.poll(timeout=PATIENCE_S)
        assert len(batch), f"{len(found)} of {count} came"
        found += [int(bytes(body)) for body in batch.bodies]
    return found


def test_a_start_by_time_waits_for_the_units_of_what_is_in_the_log(
    tmp_path: Path, unique_name: str
) -> None:
    """CQ-33: the reader stands still, as it does behind in a rebuild; the place is right all the
    same."""
    with ServingBroker(tmp_path / "home") as serving:
        serving.wait_until_ready()
        send(serving, unique_name, range(8))
        reader = serving.pid_of(Role.READER)
        os.kill(reader, signal.SIGSTOP)
        send(serving, unique_name, range(8, 50))
        before_ms = time.time_ns() // 1_000_000
        poll_until(lambda: time.time_ns() // 1_000_000 > before_ms + 1, "the clock has gone on")
        moment = datetime.fromtimestamp(time.time_ns() // 1_000_000 / 1000, UTC)
        send(serving, unique_name, range(50, 100))
        with ThreadPoolExecutor(1) as threads:
            joined = threads.submit(
                PullConsumer, "g", [unique_name], home=serving.home,
                consume_from=ConsumeFrom.TIMESTAMP, consume_timestamp=moment,
            )  # fmt: skip
            with pytest.raises(TimeoutError):
                joined.result(timeout=0.3)
            os.kill(reader, signal.SIGCONT)
            with joined.result(PATIENCE_S) as consumer:
                assert sorted(take(consumer, 50)) == list(range(50, 100))


def test_a_group_that_is_joined_is_in_rocketmqs_file(unique_name: str) -> None:
    """CQ-110: as RocketMQ does on first use, with its defaults."""
    with Broker.temporary() as broker:
        send(broker, unique_name, range(1))
        group = "g-" + unique_name
        with PullConsumer(group, [unique_name], home=broker.home):
            storage = PosixStorage(str(store_of(broker.home)))

            def entry() -> Any:  # noqa: ANN401 - JSON
                content = read_config(storage, "subscriptionGroup.json") or {}
                return content.get("subscriptionGroupTable", {}).get(group)

            poll_until(entry, "it is written")
            assert entry() == default_group(group, retry_queues=8)
