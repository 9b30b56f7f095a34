"""`kill -9` of everything under load, and of a broker that recovers (P1, P2, P5, P11, F2, F3)."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from gantrymq.clients.home import store_of
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.shm.codes import Role
from gantrymq.shm.errors import BrokerGone, StoreFailed
from gantrymq.shm.marks import MARKS
from gantrymq.temporary import Broker
from tests.support import reached
from tests.support.agents import AGENTS, pid_of, wait_until_shown
from tests.support.forked import start_program
from tests.support.loads import BackgroundLoad, Load
from tests.support.stores import Stored, require_sound, require_whole
from tests.support.watchdog import PATIENCE_S, poll_until

RECOVERY_MARKS = sorted(name for name in MARKS if name.startswith("recovery."))
#: In the suite; a round of `make soak` has a hundred.
KILLS = int(os.environ.get("GANTRYMQ_TEST_KILLS", "30"))
#: Share of the kills that take the whole broker.
WHOLE = 0.3


def kill(broker: Broker) -> None:
    """SIGKILL to the supervisor; the kernel sends it to its children, too."""
    pids = [pid_of(broker.home, role) for role in AGENTS]
    broker.process.kill()
    broker.process.wait()
    poll_until(lambda: not any(map(_lives, pids)), "its children are gone")


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def stopped_store(broker: Broker) -> list[Stored]:
    """Stop cleanly and read what is there."""
    wait_until_shown(broker.home)
    broker.stop()
    assert broker.process.returncode == 0
    return require_sound(store_of(broker.home))


def struck(broker: Broker, role: Role) -> bool:
    """Kill an agent; False if the one on the board is dead and its successor is not up yet."""
    try:
        os.kill(pid_of(broker.home, role), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def test_a_producer_outlives_random_kills(start_broker: Callable[..., Broker], seed: int) -> None:
    """F3: any agent or all of the broker, at any time, several within one another's restarts.

    One producer with sends of every kind in flight, some for later: each is in the log once, each
    receipt true.
    """
    dice = random.Random(seed)
    broker = start_broker()
    with Load(broker.home, "outlives", parks=True) as load:
        background = BackgroundLoad(load)
        for _ in range(KILLS):
            goal = background.count + dice.randrange(1, 200)
            background.wait_for(goal)
            if dice.random() < WHOLE:
                kill(broker)
                broker.start()
            else:
                role = dice.choice(AGENTS)
                poll_until(partial(struck, broker, role), f"a {role.name} to kill")
        goal = background.count + 100
        background.wait_for(goal)
        background.stop()
        load.finish()
    load.require_kept(stopped_store(broker))


@pytest.mark.parametrize("name", RECOVERY_MARKS)
def test_a_killed_recovery_can_be_done_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_broker: Callable[..., Broker]
) -> None:
    """P11: whatever recovery had done, the next one comes to the same end."""
    broker = start_broker()
    with Load(broker.home, name) as load:
        background = BackgroundLoad(load)
        poll_until(lambda: background.count > 300, "some load")
        kill(broker)
        monkeypatch.setenv("GANTRYMQ_MARK", name)
        monkeypatch.setenv("GANTRYMQ_MARKS_REACHED", str(tmp_path))
        with pytest.raises(StoreFailed, match="ended with -9"):
            broker.start()
        assert (tmp_path / name).exists()
        reached.record(name)
        broker.start()
        goal = background.count + 100
        background.wait_for(goal)
        background.stop()
        load.finish()
    load.require_kept(stopped_store(broker))


SENDER = """
import os, sys
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
home, acks = sys.argv[1:]
with Producer(home) as producer:
    log = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(1_000_000):
        body = b"one-%d" % number
        receipt = producer.send("orders", body)
        os.write(log, b"%s %s\\n" % (receipt.message_id.encode(), body))
        bodies = [b"batch-%d-%d" % (number, index) for index in range(5)]
        for body, receipt in zip(bodies, producer.send_batch(Message("t", b) for b in bodies)):
            os.write(log, b"%s %s\\n" % (receipt.message_id.encode(), body))
"""


def test_what_was_acknowledged_survives_the_kill_of_all(
    tmp_path: Path, start_broker: Callable[..., Broker]
) -> None:
    """P2: broker and sender die at one moment; every acknowledged message is there, once."""
    broker = start_broker()
    acks = tmp_path / "acks"
    with start_program(SENDER, broker.home, acks) as sender:
        poll_until(lambda: acks.exists() and acks.read_bytes().count(b"\n") > 500, "acks come")
        sender.kill()
        kill(broker)
    told = [line.split(maxsplit=1) for line in acks.read_bytes().splitlines()]
    broker.start()
    records = stopped_store(broker)
    bodies = {item.message_id.encode(): item.record.body for item in records}
    assert [bodies.get(key) for key, _body in told] == [body for _key, body in told]
    last = int(told[-1][1].split(b"-")[1])
    numbers = range(last + 2)
    batches = [[b"batch-%d-%d" % (number, index) for index in range(5)] for number in numbers]
    require_whole(batches, records)


def test_a_batch_in_flight_is_taken_over_whole(start_broker: Callable[..., Broker]) -> None:
    """Entries that wait in the ring when the broker dies reach the next one all at once."""
    broker = start_broker()
    with Producer(broker.home, timeout=PATIENCE_S) as producer:
        producer.send("orders", b"first")
        os.kill(pid_of(broker.home, Role.WRITER), signal.SIGSTOP)
        singles = [producer.send_async("orders", b"single-%d" % index) for index in range(5)]
        batch = [b"batch-%d" % index for index in range(50)]
        threads = ThreadPoolExecutor(1)
        sending = threads.submit(producer.send_batch, [Message("orders", body) for body in batch])
        poll_until(lambda: producer._link.lane.seq == 56, "the batch is in the ring")
        for index in range(20):
            producer.send_oneway("orders", b"oneway-%d" % index)
        flying = [[b"flying-%d-%d" % (number, index) for index in range(30)] for number in range(3)]
        futures = [producer.send_batch_async("orders", bodies) for bodies in flying]
        kill(broker)
        broker.start()
        producer.flush()
        assert {future.result().durability for future in singles} == {"written"}
        receipts = sending.result(PATIENCE_S)
        threads.shutdown()
        flown = [future.result(PATIENCE_S) for future in futures]
        producer.send_batch([Message("orders", b"afterwards")] * 2)
    records = stopped_store(broker)
    assert len(records) == 1 + 5 + 50 + 20 + 90 + 2
    require_whole([batch, *flying], records)
    by_id = {item.message_id: item for item in records}
    for bodies, told in zip([batch, *flying], [receipts, *flown], strict=True):
        assert [by_id[receipt.message_id].record.body for receipt in told] == bodies


def test_without_a_broker_a_producer_says_so_and_goes_on_later(
    start_broker: Callable[..., Broker],
) -> None:
    """BrokerGone after the timeout loses nothing: what was handed over is submitted later."""
    broker = start_broker()
    producer = Producer(broker.home, timeout=0.2)
    producer.send("orders", b"first", timeout=PATIENCE_S)
    os.kill(pid_of(broker.home, Role.WRITER), signal.SIGSTOP)
    future = producer.send_async("orders", b"second")
    producer.send_oneway("orders", b"third")
    kill(broker)
    for _ in range(3):
        with pytest.raises(BrokerGone):
            producer.flush()
        with pytest.raises(BrokerGone):
            future.result()
    broker.start()
    assert future.result(PATIENCE_S).queue_offset >= 0
    producer.flush(PATIENCE_S)
    producer.close()
    bodies = sorted(item.record.body for item in stopped_store(broker))
    assert bodies == [b"first", b"second", b"third"]
