"""Who gets in, what each may ask for, and who somebody is (P12, F14, F16, F22)."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.brokerd.access import Access, Peer, started_of
from gantrymq.brokerd.sessions import Sessions
from gantrymq.clients.home import board_file, connect, read_board_file, run_of, socket_address
from gantrymq.shm import layout, wire
from gantrymq.shm.arena import create_arena, plan_arena
from gantrymq.shm.board import attach_board
from gantrymq.shm.clock import SystemClock
from gantrymq.shm.errors import Incompatible, NotPermitted, Unavailable
from tests.support import otherselves
from tests.support.adversary import Victim
from tests.support.door import Door, error_of, opened
from tests.support.otherselves import OTHER_UID, become_nobody, is_root
from tests.support.watchdog import PATIENCE_S, poll_until

HELLO = wire.Hello(os.getpid(), layout.FINGERPRINT)
ADMIN = (
    wire.CreateTopic("made", 1), wire.DeleteTopic("made"), wire.DeleteGroup("made"),
    wire.ShowSettings(), wire.ShowMembers(), wire.StopBroker(),
)  # fmt: skip


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with opened(tmp_path / "home") as door:
        yield door


def turn_until(door: Door, victim: Victim) -> int:
    """Let the broker work until a process has ended; its exit code."""
    status: list[int] = []

    def is_over() -> bool:
        door.turn()
        pid, found = os.waitpid(victim.pid, os.WNOHANG)
        status[:] = [os.waitstatus_to_exitcode(found)] if pid else []
        return bool(status)

    poll_until(is_over, "it has ended")
    return status[0]


# ------------------------------------------------------------------------------------------- uids


def test_another_user_does_not_get_as_far_as_the_socket(door: Door) -> None:
    """The run directory is its owner's alone; nothing but it stands in the way here."""
    for folder in (door.home.parent, door.home):
        folder.chmod(0o711)
    run = run_of(door.home)
    (run / "control.sock").chmod(0o666)
    mode = stat.S_IMODE(run.stat().st_mode)
    assert mode == 0o700
    if not is_root():
        run.chmod(0o600)  # what it is to others: no way through

    def work() -> None:
        become_nobody()
        with pytest.raises(NotPermitted, match="another user"):
            connect(door.home, PATIENCE_S)

    try:
        assert turn_until(door, Victim(work)) == 0
    finally:
        run.chmod(mode)


def test_another_user_who_reaches_the_socket_is_refused(tmp_path: Path) -> None:
    """SO_PEERCRED decides, whatever the rights of files say. Tried with a second uid by root."""
    access = Access(os.geteuid() if is_root() else OTHER_UID)
    with opened(tmp_path / "home", access) as door:
        run = run_of(door.home)
        run.chmod(0o711)
        (run / "control.sock").chmod(0o666)

        def work() -> None:
            os.chdir(run)
            become_nobody()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                channel.settimeout(PATIENCE_S)
                channel.connect("control.sock")
                assert error_of(wire.receive(channel)) == "NotPermitted"
                assert channel.recv(1) == b""

        assert turn_until(door, Victim(work)) == 0
        assert door.sessions() == 0


@pytest.mark.parametrize("owner", [OTHER_UID, 4_000_000_000])
def test_root_and_the_broker_s_user_are_owners_nobody_else_is(owner: int) -> None:
    access = Access(owner)
    assert [uid for uid in (0, 1, 1000, OTHER_UID - 1, owner) if access.may_connect(uid)] == [
        0,
        owner,
    ]
    assert access.is_owner(owner)
    assert access.is_owner(0)
    assert Access(owner, frozenset([7])).may_connect(7)
    assert not Access(owner, frozenset([7])).is_owner(7)


def test_frames_that_change_the_broker_are_its_owner_s(tmp_path: Path) -> None:
    """A guest attaches and opens topics; the rest is refused, and the session lives on."""
    assert set(wire.OWNERS_ONLY) == {type(frame) for frame in ADMIN}
    me = os.geteuid()
    guest = OTHER_UID if is_root() else me
    with opened(tmp_path / "home", Access(me if is_root() else me + 1, frozenset([guest]))) as door:
        run_of(door.home).chmod(0o711)
        (run_of(door.home) / "control.sock").chmod(0o666)

        def work() -> None:
            os.chdir(run_of(door.home))
            become_nobody()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                channel.settimeout(PATIENCE_S)
                channel.connect("control.sock")
                for allowed in (HELLO, wire.OpenTopic("t")):
                    wire.send(channel, allowed)
                    answer = wire.receive(channel)
                    assert answer is not None
                    assert isinstance(answer[0], wire.Welcome | wire.TopicOpened)
                for frame in ADMIN:
                    wire.send(channel, frame)
                    assert error_of(wire.receive(channel)) == "NotPermitted"

        assert turn_until(door, Victim(work)) == 0
        assert [topic.name for topic in door.board.topics()] == ["t"]
        assert not door.supervisor.finished


def test_what_one_uid_takes_is_not_missing_to_another() -> None:
    sessions = Sessions(1, 4 << 20, 2)
    mine, yours = Peer(10, 1, 5), Peer(11, 2, 5)
    records = [sessions.open(HELLO, mine), sessions.open(HELLO, mine)]
    with pytest.raises(Unavailable, match="sessions_max"):
        sessions.open(HELLO, mine)
    large = wire.Hello(1, 0, "client", b"p" * 10, up_bytes=1 << 21)
    records.append(sessions.open(large, yours))
    with pytest.raises(Unavailable, match="session_memory_max"):
        sessions.open(wire.Hello(1, 0, "client", b"q" * 10, up_bytes=1 << 21), yours)
    for record in records:
        sessions.close(record.session)


# --------------------------------------------------------------------------------------- identity


def test_a_process_is_its_number_and_its_start() -> None:
    """F14: the same number with another start is somebody else; unknown is never the same."""
    me = Peer(os.getpid(), 0, started_of(os.getpid()))
    assert me.is_same_process(Peer(os.getpid(), 0, started_of(os.getpid())))
    assert not me.is_same_process(Peer(os.getpid(), 0, me.started + 1))
    assert not Peer(5, 0, 0).is_same_process(Peer(5, 0, 0))
    assert not Peer(0, 0, 0).is_same_process(Peer(0, 0, 0))
    assert started_of(2**22 + 1) == 0


def test_a_reused_pid_is_not_taken_for_the_old_process(tmp_path: Path) -> None:
    """F14: the kernel gives a number again; who has it may not send in the old one's name."""

    def in_own_namespace() -> None:
        otherselves.enter_namespaces(pids=True)
        assert Victim(lambda: _reuse_a_pid(tmp_path / "home")).end() == 0

    assert Victim(in_own_namespace).end() == 0


def _reuse_a_pid(home: Path) -> None:
    """As the first process of a namespace: old and new process 77 at one broker."""
    otherselves.mount("proc", "/proc")
    hello = wire.Hello(77, layout.FINGERPRINT, "client", b"p" * 10)
    ours, theirs = socket.socketpair()
    with opened(home) as door, ours, theirs:

        def old() -> None:
            with door.connect() as channel:
                wire.send(channel, hello)
                answer = wire.receive(channel)
                assert answer is not None
                assert isinstance(answer[0], wire.Welcome)
                socket.send_fds(theirs, [b"kept"], [channel.fileno()])

        def new() -> None:
            with door.connect() as channel:
                wire.send(channel, hello)
                assert error_of(wire.receive(channel)) == "Rejected"

        first = otherselves.fork_as(77, old)
        started = started_of(77)
        assert turn_until(door, first) == 0
        _data, kept, _flags, _address = socket.recv_fds(ours, 10, 1)
        assert door.sessions() == 1, "somebody holds the connection of the dead process open"
        ticks_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        clock = SystemClock()
        poll_until(lambda: clock.monotonic_ns() // ticks_ns > started + 1, "a tick has passed")
        assert turn_until(door, otherselves.fork_as(77, new)) == 0
        os.close(kept[0])
        assert door.sessions() == 0


# ----------------------------------------------------------------------------------------- rights


def test_memory_of_a_session_keeps_its_size_for_ever() -> None:
    descriptor = create_arena(plan_arena(4096, 4096, 4096, 4096), 1, 1)
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        size = os.fstat(descriptor).st_size
        for wanted in (0, size - 1, size + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, wanted)
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        os.close(descriptor)


def test_clients_see_the_board_and_cannot_write_it(door: Door) -> None:
    region = Path("/dev/shm") / door.board.name[1:]
    assert stat.S_IMODE(region.stat().st_mode) == 0o600
    board = attach_board(door.board.name)
    assert board.memory.readonly
    with pytest.raises(TypeError):
        board.set_word(layout.BOARD_APPENDED, 1)
    assert not board.array().flags.writeable
    lines = Path("/proc/self/maps").read_text().splitlines()
    rights = sorted(line.split()[1] for line in lines if line.endswith(str(region)))
    assert rights == ["r--s", "rw-s"], "the client's, the broker's"


@pytest.mark.skipif(not is_root(), reason="gives shared memory to another user")
def test_shared_memory_of_another_user_is_no_board(door: Door) -> None:
    """It has the name of ours: its owner could cut it short while it is read."""
    region = Path("/dev/shm") / door.board.name[1:]
    os.chown(region, OTHER_UID, OTHER_UID)
    with pytest.raises(NotPermitted, match="belongs to user 65534"):
        attach_board(door.board.name)
    assert attach_board(door.board.name, owner=OTHER_UID).epoch == door.board.epoch
    os.chown(region, 0, 0)
    region.chmod(0o622)
    with pytest.raises(NotPermitted, match="others may write it"):
        attach_board(door.board.name)
    region.chmod(0o600)


@pytest.mark.skipif(not is_root(), reason="lets another user listen")
def test_a_client_says_nothing_to_another_users_broker(tmp_path: Path) -> None:
    """Who may write into the run directory could have put a socket of his own there."""
    run = tmp_path / "run"
    run.mkdir()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listener, socket_address(tmp_path) as address:
        listener.bind(address)
        os.seteuid(OTHER_UID)  # it is the one who listens that the kernel names
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(NotPermitted, match="a process of user 65534 answers"):
            connect(tmp_path, 5.0)
        accepted, _address = listener.accept()
        with accepted:
            assert accepted.recv(1) == b""
        os.chown(run, OTHER_UID, OTHER_UID)  # root that names another user's home means it
        connect(tmp_path, 5.0).close()


def test_a_note_that_names_a_board_is_not_read_by_way_of_a_link(tmp_path: Path) -> None:
    note = board_file(tmp_path)
    note.parent.mkdir()
    elsewhere = note.with_name("elsewhere")
    elsewhere.write_text('{"board": "/gantrymq-of-nobody"}')
    note.symlink_to(elsewhere)
    assert read_board_file(tmp_path) == {}
    elsewhere.rename(note)
    assert read_board_file(tmp_path) == {"board": "/gantrymq-of-nobody"}


# --------------------------------------------------------------------------------- mixed versions


def test_another_layout_is_refused_with_what_to_do(door: Door) -> None:
    """F22: at attaching, at a board, at an arena, at a store; none of them is touched."""
    with door.connect() as channel:
        answer = door.ask(channel, wire.Hello(1, layout.FINGERPRINT ^ 1, "client", b"p" * 10))
        assert error_of(answer) == "Incompatible"
        assert "restart" in answer[0].text  # type: ignore[index, union-attr]
    assert door.sessions() == 0
    at = layout.BOARD.offset("fingerprint")
    door.board.set_word(at, door.board.word(at) ^ 1)
    with pytest.raises(Incompatible, match="stop that broker first"):
        attach_board(door.board.name)


def test_a_hello_of_other_fields_is_refused_by_name(door: Door) -> None:
    """F22: a field more is no matter, one of another kind is said to be no frame of ours."""
    newer = {"type": "Hello", "pid": 1, "fingerprint": layout.FINGERPRINT ^ 1, "new": [1]}
    with door.connect() as channel:
        channel.send(_packed(newer))
        door.turn()
        assert error_of(wire.receive(channel)) == "Incompatible"
    with door.connect() as channel:
        channel.send(_packed({"type": "Hello", "pid": 1, "fingerprint": "v2"}))
        door.turn()
        answer = wire.receive(channel)
        assert error_of(answer) == "Rejected"
        assert "fingerprint" in answer[0].text  # type: ignore[index, union-attr]


def _packed(value: object) -> bytes:
    import msgspec

    return msgspec.msgpack.encode(value)
