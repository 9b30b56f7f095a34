"""A disk that fails or is full (P1, P3, F7, F9, F10)."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from gantrymq import ConsumeFrom
from gantrymq.clients.consumer import PullConsumer
from gantrymq.clients.home import store_of
from gantrymq.clients.message import Message, SendReceipt
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.shm import layout
from gantrymq.shm.codes import BrokerState, ExitCode, Role
from gantrymq.shm.configfile import parse_config
from gantrymq.shm.errors import DiskFull, StoreFailed
from gantrymq.shm.indexnote import NOTE_FILE
from tests.support.agents import restarts_of, wait_until_shown
from tests.support.brokers import command
from tests.support.faulty_broker import FaultyBroker, fault, stall
from tests.support.loads import Load
from tests.support.push import FIRST, LEVELS, Seen, send
from tests.support.stores import require_once, require_sound, require_true
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S, poll_until

#: Heartbeats, about one a second at least, that a device stalls for; `make soak` has five.
STALL_S = int(os.environ.get("GANTRYMQ_TEST_STALL_S", "1"))
SMALL = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 2000}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., FaultyBroker]]:
    with ExitStack() as stack:

        def begin(**settings: object) -> FaultyBroker:
            broker = FaultyBroker(tmp_path / "home", **(SMALL | settings))
            return stack.enter_context(broker).wait_until_ready()

        yield begin


def send_until_refused(producer: Producer) -> list[tuple[SendReceipt, bytes]]:
    """Durable sends until one raises StoreFailed; receipts of those before it."""
    told: list[tuple[SendReceipt, bytes]] = []
    while True:
        body = b"during-%d" % len(told)
        try:
            told.append((producer.send("payments", body, durability="durable"), body))
        except StoreFailed:
            return told


def poll_for_ever(consumer: PullConsumer) -> None:
    """Until a poll raises."""
    while True:
        consumer.poll(timeout=PATIENCE_S)


FINAL = [
    fault("sync", errno.EIO, "commitlog/"),
    fault("sync", errno.ENOSPC, "commitlog/"),
    fault("write", errno.EIO, "commitlog/"),
    fault("write", errno.EIO, "commitlog/", half=True),
    fault("write", errno.ENOSPC, "commitlog/"),
]


@pytest.mark.parametrize("failing", FINAL, ids=lambda f: f"{f['kind']}-{f['errno']}-{f['half']}")
def test_a_failed_write_or_sync_is_final(
    start: Callable[..., FaultyBroker], failing: dict[str, object]
) -> None:
    """P3: it happens once; nothing is tried again or acknowledged; a restart recovers."""
    broker = start(flush_interval_commit_log=60_000)
    board = broker.board
    with Load(broker.home, "before") as load:
        load.round()
        load.finish()
        with ThreadPoolExecutor(1) as threads:
            other = Producer(broker.home, timeout=PATIENCE_S)
            beside = threads.submit(send_until_refused, other)
            broker.fail(failing)
            send_until_refused(load.producer)
            told = beside.result(PATIENCE_S)
        assert board.half(layout.BOARD_STATE) == BrokerState.FAILED
        for late in (load.producer, other):
            with pytest.raises(StoreFailed):
                late.send("orders", b"late")
        load.producer._link.end()
        other._link.end()
    code, _lines = broker.end()
    assert code == ExitCode.IO_ERROR
    assert len(broker.failed) == 1, "nothing is tried again"
    broker.fail()
    broker.again().wait_until_ready()
    with Producer(broker.home) as producer:
        receipt = producer.send("orders", b"after", durability="durable")
    wait_until_shown(broker.home)
    assert broker.stop()[0] == ExitCode.OK
    records = require_sound(store_of(broker.home))
    require_true([*load.receipts, *told, (receipt, b"after")], records)
    kept = [item for item in records if not item.record.body.startswith(b"during")]
    require_once([*load.bodies, b"after"], kept)


@mends("S305")
def test_why_a_store_failed_is_its_exit_code_whatever_its_end_meets(
    start: Callable[..., FaultyBroker],
) -> None:
    """A service manager judges by it whether to start the broker again."""
    broker = start()
    with Producer(broker.home) as producer:
        producer.send("orders", b"before", keys=["k"])
    broker.stop()
    assert (store_of(broker.home) / NOTE_FILE).exists()
    broker.again().wait_until_ready()
    no_index = fault("unlink", errno.EPERM, NOTE_FILE)
    broker.fail(fault("sync", errno.EIO, "commitlog/"), no_index)
    with Producer(broker.home) as producer:
        send_until_refused(producer)
    assert broker.end()[0] == ExitCode.IO_ERROR
    assert f"unlink {NOTE_FILE}" in broker.failed


def test_clients_go_on_with_the_broker_that_follows_a_failed_store(
    start: Callable[..., FaultyBroker],
) -> None:
    """What was open is told StoreFailed, and stays so; the same objects find the next broker."""
    broker = start(flush_interval_commit_log=60_000)
    with (
        Producer(broker.home, timeout=PATIENCE_S, producer_group="pay") as producer,
        PullConsumer("g", ["orders"], home=broker.home, consume_from=FIRST) as consumer,
    ):
        producer.send("orders", b"before", durability="durable")
        assert [message.body for message in consumer.poll(timeout=PATIENCE_S)] == [b"before"]
        consumer.commit()
        paid = producer.begin_transaction()
        producer.send("orders", b"paid", transaction=paid)
        paid.commit_async().result(PATIENCE_S)
        broker.fail(fault("sync", errno.EIO, "commitlog/"))
        asked, watched = (
            producer.send_async("payments", b"lost", durability="durable") for _ in range(2)
        )
        told = threading.Event()
        watched.add_done_callback(lambda _: told.set())
        with pytest.raises(StoreFailed):
            asked.result(PATIENCE_S)
        assert told.wait(PATIENCE_S)
        for future in (asked, watched):
            assert future.done()
            assert isinstance(future.exception(0), StoreFailed)
        with pytest.raises(StoreFailed, match="start the broker again"):
            producer.send("orders", b"late")
        with pytest.raises(StoreFailed):
            producer.send_async("orders", b"late").result(PATIENCE_S)
        with pytest.raises(StoreFailed):
            poll_for_ever(consumer)
        broker.end()
        broker.fail()
        broker.again().wait_until_ready()
        bodies = [b"after", b"transacted", b"last"]
        producer.send("orders", bodies[0])
        with producer.transaction() as transaction:
            producer.send("orders", bodies[1], transaction=transaction)
        producer.send_async("orders", bodies[2], durability="durable").result(PATIENCE_S)
        got = list[bytes]()
        while not set(bodies) <= set(got):
            got += [bytes(message.body) for message in consumer.poll(timeout=PATIENCE_S)]
        assert b"late" not in got
        assert isinstance(asked.exception(0), StoreFailed)
    assert broker.stop()[0] == ExitCode.OK
    require_sound(store_of(broker.home))


def test_a_device_that_stalls_holds_up_who_waits_for_it(
    start: Callable[..., FaultyBroker],
) -> None:
    """F25: durable receipts and messages wait, written ones go on; then all are true (P1, P4)."""
    broker = start()
    with Load(broker.home, "stall") as load, Producer(broker.home, timeout=PATIENCE_S) as other:
        load.round()
        load.finish()
        wait_until_shown(broker.home)
        durable = broker.board.word(layout.BOARD_DURABLE)
        broker.fail(stall("commitlog/"))
        waiting = [(body, other.send_async("payments", body, durability="durable"))
                   for body in (b"stalled-%d" % number for number in range(20))]  # fmt: skip
        beat = broker.board.process(Role.READER)["heartbeat"]
        for number in range(200):
            body = b"beside-%d" % number
            load.receipts.append((load.producer.send("orders", body), body))
            load.bodies.append(body)
        poll_until(
            lambda: broker.board.process(Role.READER)["heartbeat"] > beat + STALL_S, "time goes by"
        )
        assert not any(future.done() for _body, future in waiting)
        assert broker.board.word(layout.BOARD_DURABLE) == durable
        assert b"stalled-0" not in consumed(broker.home)
        broker.fail()
        told = [(future.result(PATIENCE_S), body) for body, future in waiting]
        load.finish()
        wait_until_shown(broker.home)
    assert set(restarts_of(broker.home).values()) == {0}
    assert broker.stop()[0] == ExitCode.OK
    records = require_sound(store_of(broker.home))
    require_once([*load.bodies, *(body for _receipt, body in told)], records)
    require_true([*load.receipts, *told], records)


FULL = [fault(kind, errno.ENOSPC, "gantry/spare") for kind in ("create", "allocate")]
#: Whatever is not preallocated: queue files, sidecars, snapshots, spare segments.
EVERYWHERE = [
    *FULL,
    fault("create", errno.ENOSPC, "gantry/segments/"),
    fault("create", errno.ENOSPC, "gantry/producers"),
    fault("create", errno.ENOSPC, "gantry/queues.json"),
    fault("create", errno.ENOSPC, "consumequeue/"),
    fault("write", errno.ENOSPC, "consumequeue/"),
]


@pytest.mark.parametrize("faults", [FULL, EVERYWHERE], ids=["spare", "everywhere"])
def test_a_full_disk_refuses_sends_until_there_is_room(
    start: Callable[..., FaultyBroker], faults: list[dict[str, object]]
) -> None:
    """F7: DiskFull where the log rolls, reads go on, no agent dies, and later sends work again."""
    broker = start()
    with Load(broker.home, "full") as load:
        load.round()
        load.finish()
        wait_until_shown(broker.home)
        shown = len(load.bodies)
        broker.fail(*faults)
        stored = send_until_full(load)
        with pytest.raises(DiskFull):
            load.producer.send_batch([Message("orders", b"no") for _ in range(3)])
        load.producer.send_async("orders", b"a receipt beside").exception(PATIENCE_S)
        load.producer.send_oneway("orders", b"nor this")
        with pytest.raises(DiskFull):
            load.producer.flush()
        assert len(consumed(broker.home)) >= shown
        broker.fail()
        poll_until(lambda: is_stored(load.producer), "there is room again")
        load.round()
        load.finish()
        wait_until_shown(broker.home)
    assert set(restarts_of(broker.home).values()) == {0}
    assert broker.stop()[0] == ExitCode.OK
    records = require_sound(store_of(broker.home))
    again = [b"again"] * sum(item.record.body == b"again" for item in records)
    require_once([*load.bodies, *stored, *again], records)
    require_true(load.receipts, records)


#: `topics.json` and what is deleted, once with half of the bytes on the disk.
TOPICS_FULL = [
    fault("write", errno.ENOSPC, "config/topics.json", half=True),
    fault("write", errno.ENOSPC, "gantry/deleted_topics.json"),
]


@pytest.mark.parametrize("faults", [TOPICS_FULL, TOPICS_FULL[:1], TOPICS_FULL[1:]])
def test_topics_are_not_changed_on_a_full_disk_and_the_broker_goes_on(
    start: Callable[..., FaultyBroker], faults: list[dict[str, object]]
) -> None:
    """F7: who asks is refused, all others notice nothing; the files are what they were."""
    broker = start()
    topic = ("topic", "create", "kept", "--home", broker.home)
    assert command(*topic).returncode == ExitCode.OK
    file = store_of(broker.home) / "config/topics.json"
    broker.fail(*faults)
    deleted = command("topic", "delete", "kept", "--home", broker.home)
    assert (deleted.returncode, "disk" in deleted.stderr) == (ExitCode.IO_ERROR, True)
    made = command("topic", "create", "new", "--home", broker.home)
    wanted = ExitCode.IO_ERROR if faults != TOPICS_FULL[1:] else ExitCode.OK
    assert made.returncode == wanted
    assert parse_config(file.read_text())["topicConfigTable"].keys() >= {"kept"}
    with Producer(broker.home, timeout=PATIENCE_S) as producer:
        producer.send("kept", b"it is there")
    broker.fail()
    assert command("topic", "delete", "kept", "--home", broker.home).returncode == ExitCode.OK
    assert command("topic", "create", "new", "--home", broker.home).returncode == ExitCode.OK
    assert set(restarts_of(broker.home).values()) == {0}
    assert broker.stop()[0] == ExitCode.OK
    assert parse_config(file.read_text())["topicConfigTable"].keys() >= {"new"}
    require_sound(store_of(broker.home))


def test_a_request_whose_write_fails_is_refused_and_the_broker_goes_on(
    start: Callable[..., FaultyBroker],
) -> None:
    """F6: not the log's; the log of events tells."""
    broker = start()
    with Producer(broker.home, timeout=PATIENCE_S) as producer:
        producer.send("orders", b"before")
        broker.fail(fault("write", errno.EIO, "config/"), fault("create", errno.EIO, "config/"))
        refused = command("topic", "create", "new", "--home", broker.home)
        assert refused.returncode == ExitCode.STORE
        assert "Traceback" not in refused.stderr
        producer.send("orders", b"beside")
        broker.fail()
        assert command("topic", "create", "new", "--home", broker.home).returncode == ExitCode.OK
    assert broker.stop()[0] == ExitCode.OK


@mends("S19")
def test_a_stop_that_cannot_be_marked_as_clean_leaves_nothing_but_the_store(
    start: Callable[..., FaultyBroker],
) -> None:
    """F7: it says what it could not write; the next start is one as after a kill."""
    broker = start()
    with Load(broker.home, "full") as load:
        load.round()
        load.finish()
        wait_until_shown(broker.home)
        broker.fail(fault("create", errno.ENOSPC, "gantry/ranges.json"))
        board = broker.board.name
        code, lines = broker.stop()
        assert code == ExitCode.IO_ERROR
        told = [line for line in lines if line["event"] == "failed"]
        assert ["gantry/ranges.json" in line["why"] for line in told] == [True]
        assert lines[-1]["event"] == "stopped"
        assert lines[-1]["clean"] is False
        assert not Path(f"/dev/shm{board}").exists()
        assert not list((broker.home / "run").iterdir())
        broker.fail()
        broker.again().wait_until_ready()
        load.round()
        load.finish()
    assert broker.stop()[0] == ExitCode.OK
    require_once(load.bodies, require_sound(store_of(broker.home)))


def send_until_full(load: Load) -> list[bytes]:
    """Bodies that were stored before the first that was not."""
    stored: list[bytes] = []
    for number in range(2000):
        body = b"until-full-%d" % number
        try:
            receipt = load.producer.send("orders", body)
        except DiskFull:
            return stored
        load.receipts.append((receipt, body))
        stored.append(body)
    raise AssertionError("the log never came to its segment's end")


def is_stored(producer: Producer) -> bool:
    try:
        producer.send("orders", b"again")
    except DiskFull:
        return False
    return True


def consumed(home: Path) -> list[bytes]:
    """What a group that begins now can read."""
    bodies: list[bytes] = []
    with PullConsumer(
        "late", ["orders", "payments"], home=home, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        while batch := consumer.poll(timeout=0.5):
            bodies += [bytes(message.body) for message in batch]
    return bodies


def test_what_fails_while_the_disk_is_full_comes_again_when_there_is_room(
    start: Callable[..., FaultyBroker],
) -> None:
    """F7: a push consumer goes on by itself; every failure is one retry, nothing is lost."""
    broker = start(message_delay_level=LEVELS)
    send(broker, "orders", range(60))
    filling = threading.Lock()
    is_full = threading.Event()

    def answer(message: Message) -> ConsumeResult | None:
        with filling:  # one of the listener's threads fills the disk, before any of them goes on
            if not is_full.is_set():
                broker.fail(fault("write", errno.ENOSPC, "gantry/ledger"))
                is_full.set()
        failed = message.delivery_attempt == 1 and int(bytes(message.body)) % 2 == 0
        return ConsumeResult.FAILURE if failed else None

    seen = Seen(answer)
    with PushConsumer("full", ["orders"], seen, home=broker.home, consume_from=FIRST):
        seen.wait_for(60)
        assert is_full.wait(PATIENCE_S)
        poll_until(lambda: broker.failed, "the ledger met the full disk", PATIENCE_S)
        broker.fail()
        seen.wait_for(90)
    assert Counter(seen.bodies) == {n: 1 + (n % 2 == 0) for n in range(60)}
    assert set(restarts_of(broker.home).values()) == {0}
    assert broker.stop()[0] == ExitCode.OK


def test_a_file_that_cannot_be_read_is_named_by_whoever_ends_of_it(
    start: Callable[..., FaultyBroker],
) -> None:
    """Its agent dies at each start; the broker's last word names the file."""
    broker = start()
    broker.fail(fault("read", errno.EIO, "gantry/ledger"))
    os.kill(broker.pid_of(Role.GROUPS), signal.SIGKILL)
    code, lines = broker.end()
    assert code == ExitCode.STORE
    ended = [line["error"] for line in lines if line["event"] == "agent_ended"]
    assert ended[0] == "signal SIGKILL"
    assert all("gantry/ledger" in error for error in ended[1:])
    (failed,) = [line["why"] for line in lines if line["event"] == "failed"]
    assert "groups died 6 times in a row" in failed
    assert "Input/output error: 'gantry/ledger'" in failed
