"""What other users may do with a broker's files and memory, and what clients with its bells."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.clients.home import SOCKET_NAME, read_board_file, run_of, store_of
from gantrymq.clients.producer import Producer
from gantrymq.shm import board, layout
from gantrymq.shm.codes import ExitCode
from gantrymq.temporary import Broker
from tests.support import otherselves
from tests.support.adversary import Hand, Victim
from tests.support.forked import run_forked
from tests.support.otherselves import become_nobody, is_root
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    before = os.umask(0)  # the most careless one to start a broker with
    try:
        started = Broker.temporary(profile="standard", flush_interval_commit_log=10)
    finally:
        os.umask(before)
    with started, Producer(started.home, timeout=PATIENCE_S) as producer:
        producer.send("orders", b"x", keys=["k"], durability="durable")
        yield started


def belongings(broker: Broker) -> list[Path]:
    """All of store and run directory, and the board."""
    inside = [path for root in (store_of(broker.home), run_of(broker.home)) for path in walk(root)]
    return [*inside, Path("/dev/shm") / read_board_file(broker.home)["board"][1:]]


def walk(root: Path) -> list[Path]:
    return [root, *sorted(root.rglob("*"))]


def stats(paths: list[Path]) -> dict[Path, os.stat_result]:
    """What lstat says of each; agents write some under another name first, which is gone soon."""
    found = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.lstat()
    return found


def test_everything_belongs_to_the_owner_alone(broker: Broker) -> None:
    found = stats(belongings(broker))
    names = {path.name for path in found}
    assert {"commitlog", "topics.json", "ledger", "control.sock", "board", "lock"} <= names
    rights = {path: stat.S_IMODE(of.st_mode) for path, of in found.items()}
    wanted = {p: 0o700 if stat.S_ISDIR(of.st_mode) else 0o600 for p, of in found.items()}
    assert {p: oct(mode) for p, mode in rights.items() if mode != wanted[p]} == {}
    assert {of.st_uid for of in found.values()} == {os.geteuid()}


def test_another_user_opens_none_of_it(broker: Broker) -> None:
    """Tried with a second uid by root; nobody else can be somebody else, and looks at rights."""
    found = belongings(broker)
    pids = [broker.process.pid]
    if not is_root():
        roots = [store_of(broker.home), run_of(broker.home)]
        assert [root for root in roots if root.stat().st_mode & 0o077] == []
        return

    def work() -> None:
        become_nobody()
        for path in [*found, *(Path(f"/proc/{pid}/mem") for pid in pids)]:
            with pytest.raises(PermissionError):
                os.open(path, os.O_RDONLY)
            with pytest.raises((PermissionError, IsADirectoryError)):
                os.open(path, os.O_WRONLY)
        for pid in pids:
            with pytest.raises(PermissionError):
                os.listdir(f"/proc/{pid}/fd")

    broker.home.chmod(0o755)
    assert Victim(work).end() == 0


def fill(bell: int) -> None:
    """Ring it until it takes no more."""
    with contextlib.suppress(BlockingIOError):
        while os.write(bell, bytes(8)):
            pass


@mends("S164")
def test_a_client_whose_bells_block_blocks_nobody_else(broker: Broker) -> None:
    """What it sets of its descriptors holds for none of the broker's, nor for other clients'."""
    with Producer(broker.home, timeout=PATIENCE_S) as producer:
        producer.send("orders", b"before")
        hand = Hand(broker.home)
        session = hand.session
        bells = [session.bell, session.writer_bell, session.groups_bell]
        bells += [session.scheduler_bell, session.checker_bell]
        numbers = [bell.fileno() for bell in bells]
        for number in numbers:
            fill(number)
        for number in numbers:
            os.set_blocking(number, True)
        assert os.get_blocking(numbers[1])
        assert not os.get_blocking(producer._link.session.writer_bell.fileno())
        receipts = [producer.send("orders", b"after %d" % number) for number in range(3)]
        # It is cut off, for which the supervisor rings it; whoever comes then is served.
        at = layout.WRITER_LANE_AT
        session.arena[at : at + 512] = 0xA5
        with Producer(broker.home, timeout=PATIENCE_S) as another:
            receipts.append(another.send("orders", b"another"))
        for number in numbers:
            os.set_blocking(number, False)
        hand.close()
    assert len({(r.message_queue, r.queue_offset) for r in receipts}) == 4


def test_a_client_that_fills_the_bells_delays_others_and_no_more(broker: Broker) -> None:
    """Bells only wake: agents look by themselves, and clear a bell that rings no more."""
    with Producer(broker.home, timeout=PATIENCE_S) as producer:
        producer.send("orders", b"before")
        hand = Hand(broker.home)
        for bell in (hand.session.writer_bell, hand.session.groups_bell):
            fill(bell.fileno())
        receipts = [producer.send("orders", b"after %d" % number) for number in range(3)]
        hand.close()
    assert len({(r.message_queue, r.queue_offset) for r in receipts}) == 3


@mends("S97")
def test_serve_that_may_make_no_segment_says_so(tmp_path: Path) -> None:
    """F8: exit code 74, what to do on standard error, nothing left."""

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = run_forked(["serve", "--home", str(tmp_path / "home")], prepare=small_files)
    assert done.returncode == ExitCode.IO_ERROR, done.stderr
    assert "ulimit -f" in done.stderr
    assert not (run_of(tmp_path / "home") / "board").exists()


class _NoInode(socket.socket):
    """Of a file system that has none left."""

    def bind(self, _address: object, /) -> None:
        """As the kernel says it: a socket's error names no file."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@mends("S180")
@pytest.mark.parametrize("profile", ["standard", "temporary"])
def test_serve_without_room_for_its_socket_says_so(tmp_path: Path, profile: str) -> None:
    """Exit code 74; file and mend in the event of a start that was refused."""
    home = tmp_path / "home"

    def no_inode() -> None:
        socket.socket = _NoInode  # type: ignore[misc]

    done = run_forked(
        ["serve", "--home", str(home), "--set", f"profile={profile}"], prepare=no_inode
    )
    assert done.returncode == ExitCode.IO_ERROR, done.stderr
    (event,) = [line for line in done.stderr.splitlines() if "not_started" in line]
    assert str(run_of(home) / SOCKET_NAME) in event
    assert "make room" in event
    assert '"failed"' not in done.stderr


@mends("S181")
def test_serve_that_may_open_too_little_for_clients_says_so(tmp_path: Path) -> None:
    """It would be ready, and refuse each of them."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

    done = run_forked(["serve", "--home", str(tmp_path / "home")], prepare=few)
    assert done.returncode == ExitCode.IO_ERROR, done.stderr
    assert "not_started" in done.stderr
    assert "RLIMIT_NOFILE 100" in done.stderr
    assert "LimitNOFILE=" in done.stderr
    assert not (tmp_path / "home").exists()


@mends("S178")
@pytest.mark.parametrize("way", ["serve", "serve --check", "doctor"])
def test_a_home_that_no_client_could_be_told_is_refused(tmp_path: Path, way: str) -> None:
    """Its path is not UTF-8: a broker there would be ready, and nobody could attach."""
    home = Path(f"{tmp_path}/{os.fsdecode(b'home' + bytes([0xFF]))}")
    done = run_forked([*way.split(), "--home", str(home)])
    code = ExitCode.DOES_NOT_HOLD if way == "doctor" else ExitCode.USAGE
    assert done.returncode == code, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "is not UTF-8" in said
    assert "udcff" in said
    assert "choose another home" in said
    assert not home.exists()


def test_serve_without_room_for_the_board_says_so(tmp_path: Path) -> None:
    """F8: exit code 74, what to do on standard error, nothing left; with less it starts."""

    def small_shared_memory() -> None:
        otherselves.enter_namespaces()
        otherselves.mount("tmpfs", "/dev/shm", "size=64k")

    done = run_forked(["serve", "--home", str(tmp_path / "home")], prepare=small_shared_memory)
    assert done.returncode == ExitCode.IO_ERROR, done.stderr
    assert "lower topics_max" in done.stderr
    assert not (run_of(tmp_path / "home") / "board").exists()


@mends("S190")
@pytest.mark.parametrize("case", ["missing", "not for this user"])
def test_serve_that_may_make_no_board_says_so(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event of a start that was refused says what to do; there was a traceback, and 70."""
    with tempfile.TemporaryDirectory(prefix="gantrymq-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        home, regions = folder / "home", folder / "regions"
        home.mkdir(mode=0o700)
        if case != "missing":
            regions.mkdir(mode=0o555)
        if is_root():
            os.chown(home, otherselves.OTHER_UID, otherselves.OTHER_UID)
        monkeypatch.setattr(board, "_REGIONS", regions)
        done = run_forked(["serve", "--home", str(home)], prepare=become_nobody)
        assert "Traceback" not in done.stderr
        (event,) = [line for line in done.stderr.splitlines() if "not_started" in line]
        assert "mount a tmpfs at /dev/shm" in event
        code = ExitCode.IO_ERROR if case == "missing" else ExitCode.NOT_PERMITTED
        assert done.returncode == code, done.stderr
        assert not (store_of(home) / "abort").exists()
