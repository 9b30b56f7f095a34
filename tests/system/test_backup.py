"""A back-up of a live store, and what a broker makes of it on another directory."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.brokerd import backup as backup_module
from gantrymq.brokerd import storefiles
from gantrymq.brokerd.backup import backup
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.producer import Producer
from gantrymq.shm import layout
from gantrymq.shm.board import Board
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import Corrupt, Rejected
from gantrymq.shm.storage import Storage, read_file
from gantrymq.shm.topicfiles import DELETED
from gantrymq.temporary import Broker
from tests.support.adversary import Victim
from tests.support.brokers import ServingBroker, command
from tests.support.trials import mends
from tests.support.watchdog import poll_until

SEGMENT = 1 << 18
SEGMENTS = {"mapped_file_size_commit_log": SEGMENT}
#: Some hundreds of these fill two segments.
BODY = b"%0900d"
#: Sizes that a temporary broker's store was made with.
TEMPORARY = {"mapped_file_size_commit_log": 16 << 20, "mapped_file_size_consume_queue": 600_000}


def drain(home: Path, group: str, topic: str, count: int) -> list[bytes]:
    """So many bodies of a topic, from where the group is."""
    bodies: list[bytes] = []
    first = ConsumeFrom.FIRST_OFFSET
    with PullConsumer(group, [topic], home=home, consume_from=first) as consumer:

        def more() -> bool:
            batch = consumer.poll(max_messages=count - len(bodies), timeout=0.5)
            bodies.extend(bytes(body) for body in batch.bodies)
            return len(bodies) >= count

        poll_until(more, f"{count} messages of {topic}")
        consumer.commit()
    return bodies


def leave_unfinished(home: Path, destination: Path) -> None:
    """A back-up that is killed amid the copy."""

    def die(*_progress: object) -> None:
        os._exit(9)

    def work() -> None:
        backup(home, destination, die)

    assert Victim(work).end() == 9


def verify(store: Path) -> None:
    ran = command("store", "verify", store)
    assert ran.returncode == 0, ran


class Load:
    """Sends to `load` until told to stop."""

    def __init__(self, home: Path) -> None:
        self.sent = 0
        self._home = home
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with Producer(self._home) as producer:
            while not self._over.is_set():
                futures = [producer.send_async("load", BODY % (self.sent + n)) for n in range(50)]
                for future in futures:
                    future.result()
                self.sent += len(futures)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()


def shown(board: Board, name: str) -> int:
    """How many messages of a topic consumers may see."""
    topic = next(topic for topic in board.topics() if topic.name == name)
    queues = range(topic.queue_base, topic.queue_base + topic.queue_count)
    return sum(board.queue(queue)["max_offset"] for queue in queues)


def test_a_live_store_is_backed_up_and_restored(tmp_path: Path) -> None:
    """Under load, over several segments: the copy starts, is whole, and goes on."""
    home, copy = tmp_path / "home", tmp_path / "copy"
    with ServingBroker(home, **SEGMENTS) as broker:
        board = broker.wait_until_ready().board
        with Producer(home) as producer:
            for number in range(20):
                producer.send("kept", b"kept-%d" % number)
        assert len(drain(home, "g", "kept", 8)) == 8
        with Load(home) as load:
            poll_until(lambda: board.word(layout.BOARD_APPENDED) > 2 * SEGMENT, "two segments")
            sent_before = load.sent
            ran = command("store", "backup", copy, "--home", home, "--json")
            assert ran.returncode == 0, ran
            copied = json.loads(ran.stdout)
        assert broker.stop()[0] == ExitCode.OK
    verify(home / "store")
    assert (copied["low"], copied["segments"]) == (0, -(-copied["durable"] // SEGMENT))
    assert not (copy / "store" / "consumequeue").exists()
    assert not (tmp_path / "copy.partial").exists()

    with ServingBroker(copy, **SEGMENTS) as broker:
        board = broker.wait_until_ready().board
        assert board.word(layout.BOARD_APPENDED) == copied["durable"]
        poll_until(
            lambda: board.word(layout.BOARD_DISPATCHED) == copied["durable"], "queues are made"
        )
        # The group goes on where it was, and the other messages are there in order.
        rest = drain(copy, "g", "kept", 12)
        there = shown(board, "load")
        assert there >= sent_before
        loaded = drain(copy, "all", "load", there)
        assert sorted(set(loaded)) == [BODY % n for n in range(len(loaded))]
        with Producer(copy) as producer:
            assert producer.send("kept", b"new").queue_offset == 5
        assert broker.stop()[0] == ExitCode.OK
    assert len(set(rest)) == 12
    verify(copy / "store")


@mends("S317")
def test_a_back_up_is_put_back_where_its_broker_was_killed(tmp_path: Path) -> None:
    """In the same folder, on the same boot: what that broker had in memory is of another end."""
    with ServingBroker(tmp_path / "home") as broker:
        broker.wait_until_ready()
        with Producer(broker.home) as producer:
            producer.send("orders", b"kept", durability="durable")
            backup(broker.home, tmp_path / "copy", lambda *_: None)
            producer.send("orders", b"lost with the store", durability="durable")
            broker.kill_all()
        store = broker.home / "store"
        for path in store.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(tmp_path / "copy" / "store", store, dirs_exist_ok=True)
        broker.again().wait_until_ready()
        with Producer(broker.home) as producer:
            producer.send("orders", b"later")
        assert drain(broker.home, "g", "orders", 2) == [b"kept", b"later"]
        assert broker.stop()[0] == ExitCode.OK
    verify(store)


def damage_ledger(home: Path) -> bytes:
    """Spoil an entry amid it; what it was."""
    path = home / "store" / "gantry" / "ledger"
    whole = path.read_bytes()
    middle = len(whole) // 16 * 8
    path.write_bytes(whole[:middle] + bytes(16) + whole[middle + 16 :])
    return whole


@mends("S159", "S160")
def test_a_damaged_ledger_is_neither_backed_up_nor_started_on(tmp_path: Path) -> None:
    """Also where the end is gone: a start would forget what the group had committed."""
    with Broker.temporary() as broker:
        home = broker.home
        with Producer(home) as producer:
            for number in range(8):
                producer.send("kept", b"kept-%d" % number)
        drain(home, "g", "kept", 8)
        broker.stop()
        ledger = home / "store" / "gantry" / "ledger"
        whole = damage_ledger(home)
        with pytest.raises(Corrupt, match="gantry/ledger is damaged"):
            backup(home, tmp_path / "copy")
        for damaged in (ledger.read_bytes(), whole[: len(whole) // 2], b"", None):
            ledger.unlink(missing_ok=True)
            if damaged is not None:
                ledger.write_bytes(damaged)
            with pytest.raises(Corrupt, match="gantry/ledger is"):
                backup(home, tmp_path / "copy")
            ran = command("serve", "--home", home)
            assert ran.returncode == ExitCode.STORE, ran
            assert "gantry/ledger is" in ran.stderr
            assert (ledger.read_bytes() if ledger.exists() else None) == damaged
        ledger.write_bytes(whole)
        backup(home, tmp_path / "copy")


@mends("S160")
def test_a_ledger_damaged_at_work_makes_no_back_up(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with ServingBroker(home, **SEGMENTS) as broker:
        broker.wait_until_ready()
        with Producer(home) as producer:
            producer.send("kept", b"kept")
        drain(home, "g", "kept", 1)
        assert broker.stop()[0] == ExitCode.OK
        broker.again().wait_until_ready()
        whole = damage_ledger(home)
        ran = command("store", "backup", tmp_path / "copy", "--home", home)
        assert ran.returncode == ExitCode.STORE, ran
        assert not (tmp_path / "copy").exists()
        (home / "store" / "gantry" / "ledger").write_bytes(whole)
        assert broker.stop()[0] == ExitCode.OK


def test_a_stopped_store_and_one_without_a_message(tmp_path: Path) -> None:
    with Broker.temporary() as broker:
        empty = backup(broker.home, tmp_path / "empty")
        assert (empty.low, empty.durable) == (0, 0)
        with Producer(broker.home) as producer:
            producer.send("t", b"x")
        broker.stop()
        stopped = backup(broker.home, tmp_path / "stopped")
    for copied, count in ((empty, 0), (stopped, 1)):
        home = Path(copied.home)
        with ServingBroker(home, **TEMPORARY, profile="small") as again:
            board = again.wait_until_ready().board
            assert board.word(layout.BOARD_APPENDED) == copied.durable
            if count:
                assert drain(again.home, "g", "t", count) == [b"x"]
            assert again.stop()[0] == ExitCode.OK


def test_a_folder_among_the_config_files_is_passed_over(tmp_path: Path) -> None:
    """No broker has made it; the copy has all files."""
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            producer.send("t", b"x")
        (broker.home / "store" / "config" / "bk.partial").mkdir()
        ran = command("store", "backup", broker.home / "store" / "bk", "--home", broker.home)
        assert (ran.returncode, "Name a directory outside" in ran.stderr) == (ExitCode.USAGE, True)
        backup(broker.home, tmp_path / "copy")
    config = tmp_path / "copy" / "store" / "config"
    assert (config / "topics.json").is_file()
    assert not (config / "bk.partial").exists()


@mends("S200")
@pytest.mark.parametrize("stopped", [False, True])
def test_config_files_that_are_no_json_are_copied_as_they_are(
    tmp_path: Path, stopped: bool
) -> None:
    """A RocketMQ and `gantrymq handover` leave `timercheck` there, and nobody takes it away."""
    left = {
        "timercheck": bytes.fromhex("000001a1fd768770") + bytes(4088),
        "timermetrics": b"",
        "broker.properties": "brokerName=b\xf6se\n".encode("latin-1"),
    }
    with Broker.temporary() as broker:
        for name, data in left.items():
            (broker.home / "store" / "config" / name).write_bytes(data)
        if stopped:
            broker.stop()
        copied = Path(backup(broker.home, tmp_path / "copy").home)
    there = copied / "store" / "config"
    assert {name: (there / name).read_bytes() for name in left} == left
    with ServingBroker(copied, **TEMPORARY, profile="small") as again:
        again.wait_until_ready()
        assert again.stop()[0] == ExitCode.OK
    verify(copied / "store")


def test_what_cannot_be_backed_up_is_refused(tmp_path: Path) -> None:
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            producer.send("t", b"x", durability="durable")
        (tmp_path / "there").mkdir()
        refused = command("store", "backup", tmp_path / "there", "--home", broker.home)
        assert refused.returncode == ExitCode.USAGE
        assert "new directory" in refused.stderr
        # Nobody's folder is removed; one that was broken off is replaced.
        theirs = tmp_path / "theirs.partial" / "kept"
        theirs.mkdir(parents=True)
        with pytest.raises(Rejected, match="no back-up that was broken off"):
            backup(broker.home, tmp_path / "theirs")
        assert theirs.is_dir()
        leave_unfinished(broker.home, tmp_path / "done")
        assert (tmp_path / "done.partial" / "store" / "gantry").is_dir()
        assert backup(broker.home, tmp_path / "done").durable > 0
        broker.process.kill()
        broker.process.wait()
        with pytest.raises(Rejected, match="not stopped cleanly"):
            backup(broker.home, tmp_path / "killed")
        assert not (tmp_path / "killed").exists()
    nothing = command("store", "backup", tmp_path / "new", "--home", tmp_path / "none")
    assert nothing.returncode == ExitCode.USAGE


@pytest.mark.parametrize("half_written", [True, False])
def test_config_files_are_read_whole(tmp_path: Path, *, half_written: bool) -> None:
    """As RocketMQ's steps leave one for a moment, half written or not there, its backup counts."""
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            producer.send("t", b"x")
        broker.stop()
        config = broker.home / "store" / "config"
        whole = (config / "topics.json").read_bytes()
        (config / "topics.json").rename(config / "topics.json.bak")
        if half_written:
            (config / "topics.json").write_bytes(whole[: len(whole) // 2])
        copied = Path(backup(broker.home, tmp_path / "copy").home)
        assert (copied / "store" / "config" / "topics.json").read_bytes() == whole


@mends("S18")
@pytest.mark.parametrize("stopped", [False, True])
def test_a_deleted_topic_is_deleted_in_the_copy(tmp_path: Path, stopped: bool) -> None:
    """Its messages are in the log, and nothing but `gantry/deleted_topics.json` tells."""
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            for topic in ("gone", "kept"):
                producer.send(topic, b"x")
        assert command("topic", "delete", "gone", "--home", broker.home).returncode == ExitCode.OK
        if stopped:
            broker.stop()
        source = set(os.listdir(broker.home / "store" / "gantry"))
        copied = Path(backup(broker.home, tmp_path / "copy").home)
    assert source <= storefiles.KNOWN.union(storefiles.UNDER_WAY)
    wanted = {*storefiles.TRUTH, *storefiles.OF_THE_LOG} & source
    assert wanted >= {"ledger", "deleted_topics.json"}
    assert set(os.listdir(copied / "store" / "gantry")) == wanted.union(storefiles.IDENTITY)
    with ServingBroker(copied, **TEMPORARY) as again:
        again.wait_until_ready()
        listed = command("topic", "list", "--home", copied)
        assert "kept" in listed.stdout
        assert "gone" not in listed.stdout
        assert again.stop()[0] == ExitCode.OK
    verify(copied / "store")


@mends("S201")
def test_a_topic_made_again_amid_a_back_up_does_not_bring_its_messages_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the looks at the topics and at those that are deleted it is in neither."""
    begun: list[str] = []

    def read(source: Storage, name: str) -> bytes:
        if name == DELETED and not begun:
            begun.append(name)
            made = command("topic", "create", "again", "--home", broker.home)
            assert made.returncode == ExitCode.OK
        return read_file(source, name)

    monkeypatch.setattr(backup_module, "read_file", read)
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            producer.send("again", b"old")
        assert command("topic", "delete", "again", "--home", broker.home).returncode == ExitCode.OK
        copied = Path(backup(broker.home, tmp_path / "copy").home)
    assert begun
    with ServingBroker(copied, **TEMPORARY) as restored:
        restored.wait_until_ready()
        with Producer(copied) as producer:
            producer.send("again", b"new")
        assert drain(copied, "g", "again", 1) == [b"new"]
        assert restored.stop()[0] == ExitCode.OK
    verify(copied / "store")


def records(lines: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in lines.splitlines()]
    return [row for row in rows if row["kind"] == "record"]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="other-disk-") as folder:
        if Path(folder).stat().st_dev == tmp_path.stat().st_dev:
            pytest.fail("/dev/shm is the disk of the tests' folder: name another by --basetemp")
        yield Path(folder)


def test_a_backup_holds_the_same_records(tmp_path: Path, elsewhere: Path) -> None:
    """`store dump` of all, byte for byte what it says of each record; on another disk too."""
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            for number in range(30):
                producer.send("same", b"%d" % number, durability="durable")
        backup(broker.home, tmp_path / "copy")
        backup(broker.home, elsewhere / "copy")
        ours = records(command("store", "dump", broker.home / "store").stdout)
    assert len(ours) == 30
    for place in (tmp_path, elsewhere):
        assert records(command("store", "dump", place / "copy" / "store").stdout) == ours
