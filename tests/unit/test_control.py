"""The control socket: attaching, quotas, and clients that break the rules (P12, F16)."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.clients.control import ControlChannel
from gantrymq.clients.home import SOCKET_NAME, run_of
from gantrymq.shm import layout, wire
from gantrymq.shm.arena import check_header, map_arena, plan_arena
from gantrymq.shm.errors import BrokerGone, Timeout, Unavailable
from tests.support.door import Door, descriptors, error_of, opened
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with opened(tmp_path / "home") as door:
        yield door


def test_attaching_gives_memory_of_ones_own(door: Door) -> None:
    with door.connect() as channel:
        hello = wire.Hello(os.getpid(), layout.FINGERPRINT, "client", b"p" * 10, True)
        answer = door.ask(channel, hello)
        assert answer is not None
        welcome, given_descriptors = answer
        assert isinstance(welcome, wire.Welcome)
        plan = plan_arena(*welcome.ring_bytes)
        assert len(given_descriptors) == 6
        header = check_header(map_arena(given_descriptors[0], plan.size))
        assert (header["session"], header["epoch"]) == (welcome.session, welcome.epoch)
        seals = fcntl.fcntl(given_descriptors[0], fcntl.F_GET_SEALS)
        assert seals & fcntl.F_SEAL_SHRINK
        with pytest.raises(PermissionError):
            os.ftruncate(given_descriptors[0], 0)
        assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in given_descriptors)
        for descriptor in given_descriptors:
            os.close(descriptor)
        assert door.sessions() == 1
    assert door.sessions() == 0


@mends("S79")
def test_the_socket_of_who_comes_when_it_is_heard_no_more_stays(door: Door) -> None:
    """Its file may have the same number: that of the one that is gone is free again."""
    server, path = door.server, run_of(door.home) / SOCKET_NAME
    listener = server._listener
    assert listener is not None

    class Followed(socket.socket):
        def close(self) -> None:
            super().close()
            path.write_text("another broker's")
            server._inode = path.stat().st_ino

    server._listener = Followed(fileno=listener.detach())
    server.stop_listening()
    assert path.read_text() == "another broker's"


def test_a_session_ends_with_its_connection_and_gives_back_all(door: Door) -> None:
    before = descriptors()
    for _ in range(5):
        with door.connect() as channel:
            door.attach(channel, secret=b"p" * 10)
    assert door.sessions() == 0
    assert descriptors() <= before  # an earlier test may still give some back


@mends("S166")
@mends("S296")
@pytest.mark.parametrize(("wait_s", "told"), [(0.0, "time"), (0.01, "time"), (0.1, r"0\.1 s")])
def test_a_wait_that_is_over_is_told_without_a_number(door: Door, wait_s: float, told: str) -> None:
    """What is left of a caller's wait, behind others of it."""
    with ControlChannel(door.home) as control:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.channel.close()
        control.channel = ours
        ours.settimeout(0.01)
        with pytest.raises(Timeout, match=f"did not answer in {told}: it is busy"):
            control.ask(wire.ShowSettings(), wait_s)
        theirs.close()


@pytest.mark.parametrize("is_heard", [False, True], ids=["before it asks", "as it asks"])
def test_a_refusal_without_a_hearing_is_told(door: Door, is_heard: bool) -> None:
    """The broker ends the connection of who comes when it has no descriptors left."""
    control = ControlChannel(door.home)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.channel.close()
    control.channel = ours
    ours.settimeout(PATIENCE_S)
    wire.send(theirs, wire.Refused("Unavailable", "no descriptors left"))
    if is_heard:
        wire.send(ours, wire.ShowSettings())  # what is never read makes the end a reset
    theirs.close()
    with pytest.raises(Unavailable, match="no descriptors left"):
        control.ask(wire.ShowSettings())
    with pytest.raises(BrokerGone):
        control.ask(wire.ShowSettings())
    control.close()


def test_a_look_costs_no_session(door: Door) -> None:
    with door.connect() as channel:
        welcome = door.attach(channel, kind="look")
        assert (welcome.session, welcome.arena_bytes) == (0, 0)
        assert door.sessions() == 0
        answer = door.ask(channel, wire.ShowSettings())
        assert answer is not None
        assert isinstance(answer[0], wire.Settings)
        assert answer[0].values["topics_max"] == 256
        assert answer[0].origins["profile"] == "given"


def test_topics_are_made_by_frames(door: Door) -> None:
    with door.connect() as channel:
        door.attach(channel, kind="look")
        answer = door.ask(channel, wire.CreateTopic("orders", 3, "durable"))
        assert answer is not None
        assert answer[0] == wire.TopicOpened(0, "orders", 0, 3, 3, 1)
        assert door.ask(channel, wire.OpenTopic("orders")) == answer
        assert error_of(door.ask(channel, wire.OpenTopic("no such"))) == "MessageIllegal"
        assert error_of(door.ask(channel, wire.OpenTopic("none", create=False))) == "TopicNotFound"
        assert door.ask(channel, wire.DeleteTopic("orders")) == (wire.Done(), [])


def test_the_socket_is_its_owners_alone(door: Door) -> None:
    run = run_of(door.home)
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert stat.S_IMODE((run / "control.sock").stat().st_mode) == 0o600


def test_a_home_longer_than_a_socket_address(tmp_path: Path) -> None:
    with opened(tmp_path / ("long" * 30) / ("path" * 30)) as door, door.connect() as channel:
        assert door.attach(channel).session == 1


def test_another_version_is_refused(door: Door) -> None:
    with door.connect() as channel:
        hello = wire.Hello(os.getpid(), layout.FINGERPRINT ^ 1)
        assert error_of(door.ask(channel, hello)) == "Incompatible"
        assert channel.recv(1) == b""


@pytest.mark.parametrize(
    "frame", [wire.OpenTopic("a"), wire.StopBroker(), wire.Stop(), wire.Done()]
)
def test_the_first_frame_is_hello(door: Door, frame: wire.Frame) -> None:
    with door.connect() as channel:
        assert error_of(door.ask(channel, frame)) == "Rejected"
        assert channel.recv(1) == b""
    assert not door.supervisor.finished


def test_agents_frames_are_not_a_clients(door: Door) -> None:
    with door.connect() as channel:
        door.attach(channel)
        for frame in (wire.CutOff(1, "x"), wire.Failed(5, "x"), wire.SessionRemoved(1)):
            assert error_of(door.ask(channel, frame)) == "Rejected"
        assert door.sessions() == 1


def test_a_second_hello_ends_the_session(door: Door) -> None:
    with door.connect() as channel:
        door.attach(channel)
        hello = wire.Hello(os.getpid(), layout.FINGERPRINT)
        assert error_of(door.ask(channel, hello)) == "Rejected"
        assert door.sessions() == 0


def test_so_many_sessions_and_no_more(tmp_path: Path) -> None:
    with opened(tmp_path / "home", sessions_max=2) as door:
        channels = [door.connect() for _ in range(3)]
        door.attach(channels[0])
        door.attach(channels[1])
        hello = wire.Hello(os.getpid(), layout.FINGERPRINT)
        refused = door.ask(channels[2], hello)
        assert error_of(refused) == "Unavailable"
        assert "sessions_max" in refused[0].text  # type: ignore[index, union-attr]
        channels[0].close()
        with door.connect() as late:
            door.attach(late)
        for channel in channels:
            channel.close()


def test_so_much_memory_and_no_more(tmp_path: Path) -> None:
    with opened(tmp_path / "home", session_memory_max=4 << 20) as door:
        with door.connect() as first, door.connect() as second:
            door.attach(first, secret=b"p" * 10, up_bytes=1 << 21)
            hello = wire.Hello(
                os.getpid(), layout.FINGERPRINT, "client", b"q" * 10, up_bytes=1 << 21
            )
            refused = door.ask(second, hello)
            assert error_of(refused) == "Unavailable"
            assert "session_memory_max" in refused[0].text  # type: ignore[index, union-attr]
        with door.connect() as third:
            door.turn()
            door.attach(third, secret=b"q" * 10, up_bytes=1 << 21)


@pytest.mark.parametrize("fields", [{"up_bytes": 12_345}, {"secret": b"short"}])
def test_impossible_wishes_are_refused(door: Door, fields: dict[str, object]) -> None:
    with door.connect() as channel:
        hello = wire.Hello(os.getpid(), layout.FINGERPRINT, **{"secret": b"p" * 10} | fields)  # type: ignore[arg-type]
        assert error_of(door.ask(channel, hello)) == "Rejected"


@pytest.mark.parametrize("garbage", [b"\x00garbage", wire.encode(wire.OpenTopic("x" * 100_000))])
def test_garbage_ends_that_connection_only(door: Door, garbage: bytes) -> None:
    with door.connect() as good, door.connect() as bad:
        door.attach(good)
        bad.send(garbage)
        door.turn()
        assert error_of(wire.receive(bad)) == "Rejected"
        assert bad.recv(1) == b""
        assert isinstance(door.ask(good, wire.OpenTopic("t"))[0], wire.TopicOpened)  # type: ignore[index]


def test_descriptors_that_nobody_asked_for_are_closed(door: Door) -> None:
    with door.connect() as channel:
        door.attach(channel)
        before = descriptors()
        for _ in range(3):
            socket.send_fds(channel, [wire.encode(wire.OpenTopic("t"))], [0, 1, 2])
            socket.send_fds(channel, [wire.encode(wire.Stop())], [0])
        door.turn()
        assert descriptors() <= before  # an earlier test may still give some back
    with door.connect() as channel:
        socket.send_fds(channel, [b"no frame"], [0, 1, 2])
        door.turn()
    door.turn()
    assert descriptors() <= before


def test_a_client_that_does_not_read_loses_its_connection(door: Door) -> None:
    with door.connect() as good, door.connect() as deaf:
        door.attach(good)
        door.attach(deaf)
        deaf.setblocking(False)
        question = wire.encode(wire.ShowSettings())
        for _ in range(10_000):
            try:
                deaf.send(question)
            except BrokenPipeError:
                break
            except BlockingIOError:
                pass
            door.turn()
        assert door.sessions() == 1
        assert isinstance(door.ask(good, wire.ShowSettings())[0], wire.Settings)  # type: ignore[index]
