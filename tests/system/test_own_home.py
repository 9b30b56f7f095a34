"""A broker writes into a home of its own only, follows no link there, and removes no other's."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gantrymq import ConsumeFrom, GantryError, Message, PushConsumer
from gantrymq.brokerd import temporaryhome
from gantrymq.brokerd.broker import make_directories
from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.clients.running import ready_board
from gantrymq.shm import layout
from gantrymq.shm.board import Board
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.queuenames import folder_of
from gantrymq.shm.storage import PosixStorage
from gantrymq.temporary import Broker
from tests.support.brokers import SMALL, ServingBroker, command
from tests.support.forked import run_forked, start_forked, start_program
from tests.support.golden import unpack
from tests.support.otherselves import OTHER_UID, is_root
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S, poll_until

FAR = timedelta(days=1)
FIRST = ConsumeFrom.FIRST_OFFSET


def serve(home: Path) -> subprocess.CompletedProcess[str]:
    """A start that ends by itself, for it is refused."""
    return run_forked(["serve", "--home", str(home), "--set", "profile=small"])


# -------------------------------------------------------------------------------- whose home it is


@mends("R6.1")
def test_serve_in_a_home_of_another_user_says_what_to_do(tmp_path: Path) -> None:
    """By root, who alone can give folders away; tests/unit/test_ownfiles.py is for everybody."""
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    if is_root():
        os.chown(home, OTHER_UID, OTHER_UID)
    else:
        home = Path("/")  # root's, in which nobody else makes anything
    done = serve(home)
    assert done.returncode == ExitCode.NOT_PERMITTED, done.stderr
    if is_root():
        assert "run it as that user" in done.stderr
        assert list(home.iterdir()) == []


@mends("R6.3")
def test_serve_in_a_home_that_others_may_write_says_what_to_do(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)
    done = serve(home)
    assert done.returncode == ExitCode.NOT_PERMITTED, done.stderr
    assert f"chmod 700 {home}" in done.stderr
    assert list(home.iterdir()) == []


# -------------------------------------------------------------------------- all names of a broker

#: A broker in this process, with a note of each name that is made, or opened to be written.
NOTING = """
import os, sys
home, notes = sys.argv[1:3]

def note(event, arguments):
    made = {"open": 0, "os.mkdir": 0, "os.rename": 1}.get(event)
    if made is None or not isinstance(arguments[made], str | bytes | os.PathLike):
        return
    if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return
    path = os.path.abspath(os.fsdecode(arguments[made]))
    if path.startswith(home + "/"):
        with open(notes, "a") as file:  # children keep no descriptors that they do not know
            file.write(f"{event} {os.path.relpath(path, home)}\\n")

sys.addaudithook(note)
from gantrymq.brokerd.__main__ import main
sys.argv[1:] = sys.argv[3:]
sys.exit(main())
"""


class Noted(ServingBroker):
    """A broker whose names are noted beside its home."""

    def _launch(
        self,
        arguments: list[str],
        **streams: Any,  # noqa: ANN401 - as Popen has them
    ) -> subprocess.Popen[str]:
        return start_program(NOTING, self.home, self.home.with_name("notes"), *arguments, **streams)


SETTINGS = {
    "profile": "small", "flush_interval_commit_log": 10, "metrics_textfile": "out.prom",
    "metrics_interval": 1,
}  # fmt: skip


def work(home: Path, timeout: float = PATIENCE_S) -> None:
    """Whatever makes files: topics, keys, tags, delays, transactions, groups, failures."""
    failed = threading.Event()

    def fail(_message: Message) -> None:
        failed.set()
        raise ValueError

    with Producer(home, timeout=timeout, producer_group="writers") as producer:
        producer.send("orders", b"x", keys=["k"], tag="a", durability="durable")
        producer.send(Message("orders", b"later", delay=FAR))
        producer.send(Message("orders", b"later", delay_level=18))
        transaction = producer.begin_transaction()
        producer.send(Message("orders", b"both"), transaction)
        transaction.commit()
    with PushConsumer("readers", ["orders"], fail, home=home, consume_from=FIRST):
        failed.wait(timeout)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory, warm_starts: None) -> dict[str, bool]:
    """Return what a broker makes in its home, and whether it is a folder."""
    home = tmp_path_factory.mktemp("noted") / "home"
    with Noted(home, **SETTINGS) as broker:
        work(broker.wait_until_ready().home)
        assert broker.stop()[0] == ExitCode.OK
    lines = home.with_name("notes").read_text().splitlines()
    return {line.partition(" ")[2]: line.startswith("os.mkdir") for line in lines}


@contextmanager
def victim(folder: Path, is_folder: bool, dangling: bool) -> Iterator[Path]:
    """What a link leads to, which is as it was in the end: what is there, or that there is none."""
    outside = folder / "outside"
    outside.mkdir()
    path = outside / "victim"
    if is_folder and not dangling:
        path.mkdir(mode=0o755)
        (path / ("0" * 20)).write_text("kept")
    elif not dangling:
        path.write_text("kept")
    before = seen(outside)
    yield path
    assert seen(outside) == before


def seen(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """All below a folder: mode, time of the last change, content."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode, path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [folder, *folder.rglob("*")]
    }  # fmt: skip


def live(home: Path) -> None:
    """A life of a broker as far as it comes."""
    with ServingBroker(home, **SETTINGS) as broker:
        process = broker.process
        poll_until(lambda: process.poll() is not None or seems_ready(home), "it lives or not")
        with suppress(GantryError, OSError):
            work(home, 3.0)
        if process.poll() is None:
            process.terminate()
        broker.end()


def seems_ready(home: Path) -> bool:
    with suppress(GantryError, OSError):
        return ready_board(home) is not None
    return False


@mends("R6.2")
def test_no_name_that_a_broker_makes_leads_out_of_its_home(
    tmp_path: Path, names: dict[str, bool]
) -> None:
    """Each is a link before the start, to what there is, or to nothing."""
    wanted = {"run/board.new", "run/board", "store/lock", "store/gantry/ledger", "store/config",
              "store/commitlog", ".out.prom.new"}  # fmt: skip
    assert wanted <= names.keys(), sorted(names)
    for number, (name, is_folder) in enumerate(sorted(names.items())):
        folder = tmp_path / str(number)
        home = folder / "home"
        PosixStorage(str(home)).make_directory(os.path.dirname(name))  # all private, as our own
        with victim(folder, is_folder, dangling=number % 2 == 1) as path:
            (home / name).symlink_to(path)
            live(home)
        shutil.rmtree(folder)


@mends("H9")
def test_a_link_in_the_way_of_the_textfile_is_replaced(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with victim(tmp_path, is_folder=False, dangling=False) as path:
        for name in ("out.prom", ".out.prom.new"):
            (home / name).symlink_to(path)
        with ServingBroker(home, **SETTINGS) as broker:
            broker.wait_until_ready()
            poll_until(lambda: not (home / "out.prom").is_symlink(), "it is written")
            assert broker.stop()[0] == ExitCode.OK
    assert (home / "out.prom").read_text().startswith("# HELP gantrymq_")
    assert stat.S_IMODE((home / "out.prom").stat().st_mode) == 0o644
    assert not os.path.lexists(home / ".out.prom.new")


# -------------------------------------------------------------------------- stores of other brokers


@mends("H8")
@pytest.mark.parametrize("name", ["plain", "plain-533"])
def test_an_adopted_store_becomes_private(tmp_path: Path, name: str) -> None:
    golden = unpack(name, tmp_path / "home")
    store = golden.store
    (tmp_path / "home").chmod(0o755)
    for path in [store, *store.rglob("*")]:
        path.chmod(0o775 if path.is_dir() else 0o664)
    with begin(tmp_path / "home", golden.sizes) as broker:
        broker.wait_until_ready()
        assert broker.stop()[0] == ExitCode.OK
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [store, *store.rglob("*")]}
    wanted = {path: 0o700 if path.is_dir() else 0o600 for path in modes}
    assert {path: oct(mode) for path, mode in modes.items() if mode != wanted[path]} == {}


def begin(home: Path, sizes: dict[str, int]) -> ServingBroker:
    """A broker on a golden store, whose topics have many queues."""
    given = {name: sizes[name] for name in SMALL if name in sizes} | {"board_queues_max": 8192}
    return ServingBroker(home, **given, profile="small")


def is_dispatched(board: Board) -> bool:
    return board.word(layout.BOARD_DISPATCHED) >= board.word(layout.BOARD_DURABLE)


@mends("H5")
def test_a_topic_of_an_adopted_log_leads_nowhere(tmp_path: Path) -> None:
    """Its records stay, as those of a topic that was deleted; all others are read."""
    golden = unpack("plain", tmp_path / "home")
    (tmp_path / "home").chmod(0o700)
    for path in (golden.store / "commitlog").iterdir():
        path.write_bytes(path.read_bytes().replace(b"\x06PlainA", b"\x06../../"))
    topics = golden.store / "config" / "topics.json"
    content = json.loads(topics.read_bytes())
    del content["topicConfigTable"]["PlainA"]
    topics.write_text(json.dumps(content))
    shutil.rmtree(golden.store / "consumequeue")
    before = {path.name for path in (tmp_path / "home").iterdir()}
    for _start in range(2):
        with begin(tmp_path / "home", golden.sizes) as broker:
            board = broker.wait_until_ready().board
            poll_until(partial(is_dispatched, board), "all is dispatched")
            slot, other = board.topic_named("../../"), board.topic_named("PlainB")
            assert slot is not None
            assert (slot.perm, slot.system) == (0, True)
            assert other is not None
            assert broker.stop()[0] == ExitCode.OK
        assert "../../" not in json.loads(topics.read_bytes())["topicConfigTable"]
        assert (golden.store / "consumequeue" / folder_of("../../") / "0").is_dir()
        assert {path.name for path in (tmp_path / "home").iterdir()} == before | {"run"}


def test_a_topic_that_is_no_text_stops_nobody(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, by two names that look the same: each has queues of its own."""
    golden = unpack("plain", tmp_path / "home")
    (tmp_path / "home").chmod(0o700)
    for path in (golden.store / "commitlog").iterdir():
        data = path.read_bytes().replace(b"\x06PlainA", b"\x06Plain\xff")
        path.write_bytes(data.replace(b"\x06PlainB", b"\x06Plain\xfe"))
    topics = golden.store / "config" / "topics.json"
    content = json.loads(topics.read_bytes())
    for name in ("PlainA", "PlainB"):
        del content["topicConfigTable"][name]
    topics.write_text(json.dumps(content))
    shutil.rmtree(golden.store / "consumequeue")
    for _start in range(2):
        with begin(tmp_path / "home", golden.sizes) as broker:
            board = broker.wait_until_ready().board
            poll_until(partial(is_dispatched, board), "all is dispatched")
            for name in ("Plain\udcff", "Plain\udcfe"):
                slot = board.topic_named(name)
                assert slot is not None
                assert (slot.perm, slot.system) == (0, True)
            listed = command("topic", "list", "--home", tmp_path / "home")
            assert listed.returncode == ExitCode.OK, listed.stderr
            assert broker.stop()[0] == ExitCode.OK
    names = {folder_of("Plain\udcff"), folder_of("Plain\udcfe")}
    assert len(names) == 2
    assert names <= {path.name for path in (golden.store / "consumequeue").iterdir()}


@mends("H5")
@pytest.mark.parametrize("name", ["../../escaped", "..", "a/b", "a\0b", "", "\ud800", "x" * 256])
@pytest.mark.parametrize("kind", ["NORMAL", "BatchCQ"])
def test_a_topic_of_adopted_settings_is_refused_if_it_leads_out(
    tmp_path: Path, name: str, kind: str
) -> None:
    home = tmp_path / "home"
    make_directories(home)
    attributes = {"queue.type": kind} if kind == "BatchCQ" else {}
    entry = {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "attributes": attributes}
    PosixStorage(str(store_of(home))).make_directory("config")
    text = json.dumps({"topicConfigTable": {name: entry}})
    (store_of(home) / "config" / "topics.json").write_text(text)
    done = serve(home)
    assert done.returncode == ExitCode.STORE, done.stderr
    assert "config/topics.json names a topic" in done.stderr
    assert "take that entry out" in done.stderr
    assert sorted(os.listdir(home)) == ["run", "store"]


# ---------------------------------------------------------------------------------- what is removed


def refused(home: Path, *arguments: str) -> int:
    """The exit code of a broker whose parent is gone before it began."""
    with start_forked(
        "brokerd", arguments, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=os.environ | {"GANTRYMQ_HOME": str(home)},
    ) as broker:  # fmt: skip
        assert broker.stdin is not None
        broker.stdin.close()
        return broker.wait(60)


@mends("H4")
def test_no_home_is_removed_that_was_not_made_for_that(tmp_path: Path) -> None:
    """By the default home, by a name, by a word that is no word of this home, by a link."""
    home = tmp_path / "home"
    with ServingBroker(home, **SMALL, profile="small") as broker:
        with Producer(broker.wait_until_ready().home, timeout=PATIENCE_S) as producer:
            producer.send("orders", b"kept", durability="durable")
        assert broker.stop()[0] == ExitCode.OK
    before = seen(home)
    temporary, word = temporaryhome.make()
    try:
        assert refused(home, "--lifeline") == 2, "a word lacks"
        for marked in (False, True):
            for given in (word, "", "x" * 32):
                named = [f"--lifeline={given}"] if given else ["--lifeline"]
                assert refused(home, *named) in (2, ExitCode.NOT_PERMITTED)
                assert refused(home, "--home", str(home), *named) in (2, ExitCode.NOT_PERMITTED)
            if not marked:
                assert seen(home) == before
                (home / temporaryhome.MARKER).symlink_to(temporary / temporaryhome.MARKER)
        (home / temporaryhome.MARKER).unlink()
        assert seen(home).keys() == before.keys()
        temporaryhome.remove(home, word)
        temporaryhome.remove(temporary, "")
        assert home.exists()
        assert temporary.exists()
        assert refused(temporary, "--lifeline", word) == ExitCode.OK, "that one may be removed"
        assert not temporary.exists()
    finally:
        temporaryhome.remove(temporary, word)


def test_a_broker_of_ones_own_removes_its_home_only(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with Broker.temporary() as broker:
        own = broker.home
        broker.home = tmp_path / "home"
        broker.stop()
        broker.close()
        assert (tmp_path / "home").is_dir()
        broker.home = own
    assert not own.exists()
