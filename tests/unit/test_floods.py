"""Floods, storms, silence, and no room: what they cost those who are attached (P12, F8, F16)."""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from gantrymq.brokerd import control, epoch
from gantrymq.brokerd.access import DESCRIPTORS_KEPT, Peer
from gantrymq.brokerd.attachpace import BURST, PERIOD_NS, AttachPace
from gantrymq.brokerd.children import Outbox, socket_pair
from gantrymq.brokerd.control import LOOKS_MAX, SILENT_MAX, SILENT_NS
from gantrymq.brokerd.sessions import Sessions
from gantrymq.clients.home import connect
from gantrymq.shm import layout, wire
from gantrymq.shm.bell import EventBell
from gantrymq.workers.channel import EpollWaiter
from tests.support import otherselves
from tests.support.adversary import Victim
from tests.support.door import Door, descriptors, error_of, opened
from tests.support.otherselves import become_nobody
from tests.support.trials import mends
from tests.support.watchdog import PATIENCE_S, poll_until

HELLO = wire.Hello(os.getpid(), layout.FINGERPRINT)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with opened(tmp_path / "home") as door:
        yield door


def has_come(channel: socket.socket) -> bool:
    """Whether an answer, or the end, is there to be read."""
    return bool(select.select([channel], [], [], 0)[0])


def ended(channel: socket.socket) -> bool:
    """Whether the broker has ended a connection, without an answer."""
    return has_come(channel) and channel.recv(1, socket.MSG_PEEK) == b""


# -------------------------------------------------------------------------------- floods, and slow


def test_a_connection_that_never_says_hello_is_ended(door: Door) -> None:
    with door.connect() as good, door.connect() as silent:
        door.attach(good)
        door.server.look(1)
        door.server.look(SILENT_NS)
        assert not ended(silent)
        door.server.look(SILENT_NS + 1)
        assert ended(silent)
        door.server.look(10 * SILENT_NS)
        assert isinstance(door.ask(good, wire.ShowSettings())[0], wire.Settings)  # type: ignore[index]


def test_so_many_silent_connections_and_no_more(door: Door) -> None:
    """The newest count: whoever means it says Hello at once."""
    with ExitStack() as stack:
        channels = []
        for _ in range(SILENT_MAX + 5):
            channels.append(stack.enter_context(door.connect()))
            door.turn()
        assert [ended(channel) for channel in channels] == [True] * 5 + [False] * SILENT_MAX
        with door.connect() as good:
            door.attach(good)
        assert door.sessions() == 0


def test_so_many_command_lines_and_no_more(door: Door) -> None:
    look = wire.Hello(os.getpid(), layout.FINGERPRINT, "look")
    with ExitStack() as stack:
        for _ in range(LOOKS_MAX):
            door.attach(stack.enter_context(door.connect()), kind="look")
        door.server.look(BURST * PERIOD_NS)  # as many again may come
        late = stack.enter_context(door.connect())
        assert error_of(door.ask(late, look)) == "Unavailable"
        door.attach(stack.enter_context(door.connect()))  # a session has room of its own
    with door.connect() as channel:
        door.turn()
        door.attach(channel, kind="look")


def test_a_storm_of_clients_that_come_and_go(door: Door) -> None:
    before = descriptors()
    failed: list[BaseException] = []

    def storm() -> None:
        try:
            for _ in range(25):
                with connect(door.home, PATIENCE_S) as channel:
                    wire.send(channel, HELLO)
                    answer = wire.receive(channel)
                    assert answer is not None
                    for descriptor in answer[1]:
                        os.close(descriptor)
                    assert isinstance(answer[0], wire.Welcome)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=storm) for _ in range(8)]
    times = count(1, BURST * PERIOD_NS)
    with door.connect() as good:
        door.attach(good)
        for thread in threads:
            thread.start()

        def is_over() -> bool:
            door.server.look(next(times))
            assert isinstance(door.ask(good, wire.ShowSettings())[0], wire.Settings)  # type: ignore[index]
            return not any(thread.is_alive() for thread in threads)

        poll_until(is_over, "the storm is over")
        assert failed == []
        assert door.sessions() == 1
    assert door.sessions() == 0
    assert descriptors() == before


def greet(door: Door, kind: str) -> socket.socket:
    """A connection that has said Hello."""
    channel = door.connect()
    wire.send(channel, wire.Hello(os.getpid(), layout.FINGERPRINT, kind))
    door.turn()
    return channel


@pytest.mark.parametrize("kind", ["client", "look"])
def test_one_process_opens_a_few_sessions_at_once_and_the_others_in_turn(
    door: Door, kind: str
) -> None:
    """Each is work for all agents. Another process does not wait for these."""
    now_ns = 1_000_000_000
    door.server.look(now_ns)
    with ExitStack() as stack:
        for _ in range(BURST):
            with greet(door, kind) as channel:
                assert has_come(channel)
            door.turn()
        late = [stack.enter_context(greet(door, kind)) for _ in range(3)]
        assert [has_come(channel) for channel in late] == [False] * 3
        assert door.server.wait_ns(now_ns) == PERIOD_NS
        for served in range(1, 3):
            now_ns += PERIOD_NS
            door.server.look(now_ns - 1)
            assert [has_come(channel) for channel in late] == [n < served - 1 for n in range(3)]
            door.server.look(now_ns)
            assert [has_come(channel) for channel in late] == [n < served for n in range(3)]
        late[2].close()
        door.server.look(now_ns + PERIOD_NS)
        assert door.server.wait_ns(now_ns) is None


def test_each_process_has_its_own_pace() -> None:
    pace, mine, other = AttachPace(), Peer(1, 2, 3), Peer(4, 2, 3)
    turns = []
    for _ in range(BURST + 2):
        turns.append(pace.turn_ns(mine, 5))
        pace.take(mine, 5)
    assert turns == [5] * BURST + [5 + PERIOD_NS, 5 + 2 * PERIOD_NS]
    assert pace.turn_ns(other, 5) == 5
    assert pace.turn_ns(mine, 5 + 2 * BURST * PERIOD_NS) == 5 + 2 * BURST * PERIOD_NS


def test_more_than_a_bound_do_not_wait_for_their_turn(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PACED_MAX", 2)
    with ExitStack() as stack:
        channels = [stack.enter_context(greet(door, "client")) for _ in range(BURST + 5)]
        assert [has_come(c) for c in channels[BURST:]] == [False, False, True, True, True]
        assert error_of(wire.receive(channels[-1])) == "Unavailable"
        assert door.server.wait_ns(0) == PERIOD_NS, "who is refused takes nobody's turn"


@contextmanager
def only_so_many_more(count: int) -> Iterator[None]:
    """A limit of descriptors that leaves room for so many, and what is kept for agents."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]  # numbers may have gaps
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(room) + 1 + DESCRIPTORS_KEPT, hard))
    for descriptor in room:
        os.close(descriptor)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_when_descriptors_run_out_newcomers_are_refused_and_agents_have_some(door: Door) -> None:
    with ExitStack() as stack:
        good = stack.enter_context(door.connect())
        door.attach(good)
        waiting = [stack.enter_context(door.connect()) for _ in range(30)]
        with only_so_many_more(20):
            door.turn()
            refused = 0
            for channel in waiting:
                if has_come(channel):
                    assert error_of(wire.receive(channel)) == "Unavailable"
                    refused += 1
                    continue
                answer = door.ask(channel, HELLO)
                assert answer is not None
                for descriptor in answer[1]:
                    os.close(descriptor)
                if isinstance(answer[0], wire.Refused):
                    assert error_of(answer) == "Unavailable"
                    assert "LimitNOFILE" in answer[0].text
            assert refused > 5
            spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(DESCRIPTORS_KEPT // 2)]
            for descriptor in spare:
                os.close(descriptor)
            assert isinstance(door.ask(good, wire.ShowSettings())[0], wire.Settings)  # type: ignore[index]
    with door.connect() as late:
        door.turn()
        door.attach(late)


def test_no_memory_for_a_session_is_a_refusal(door: Door) -> None:
    """F8: no arena can be made: RLIMIT_FSIZE bounds memfds too."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with door.connect() as good, door.connect() as late:
        door.attach(good)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            before = descriptors()
            assert error_of(door.ask(late, HELLO)) == "Unavailable"
            assert descriptors() <= before
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert door.sessions() == 1
    with door.connect() as again:
        door.attach(again)


def test_descriptors_beside_a_packet_of_no_bytes(tmp_path: Path) -> None:
    """It looks as the end of the connection does, and leaves nothing open."""
    ours, theirs = socket_pair()
    with ours, theirs:
        before = descriptors()
        socket.send_fds(ours, [b""], [0, 1, 2])
        with pytest.raises(ValueError, match="truncated"):
            wire.receive(theirs)
        assert descriptors() == before
        socket.send_fds(ours, [wire.encode(wire.Stop())], [0, 1, 2])
        assert wire.receive_alone(theirs) == wire.Stop()
        assert descriptors() == before


def send_until_refused(channel: socket.socket, count: int) -> int | None:
    """Send so many descriptors; the error's number if the kernel takes no more."""
    try:
        socket.send_fds(channel, [b"x"], [0] * count)
    except OSError as error:
        return error.errno
    return None


def test_descriptors_on_their_way_hold_no_news_from_an_agent() -> None:
    """A flood of descriptors in flight, of any process of this user, makes others wait."""

    def work() -> None:
        become_nobody()  # whoever may exceed limits is not bounded by this one
        record = Sessions(1, 4 << 20, 2).open(HELLO, Peer(1, 1, 1))
        (flood, unread), (ours, theirs) = socket_pair(), socket_pair()
        outbox = Outbox(ours)
        limit = max(int(name) for name in os.listdir("/proc/self/fd")) + 8
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        assert errno.ETOOMANYREFS in {send_until_refused(flood, 8) for _ in range(limit)}
        outbox.tell(record.added(), record)
        outbox.tell(wire.SessionRemoved(9))
        assert outbox.behind
        unread.close()
        outbox.flush()
        assert not outbox.behind, "the flood is over"
        first, second = wire.receive(theirs), wire.receive(theirs)
        assert first is not None
        assert second is not None
        assert (first[0], len(first[1])) == (record.added(), 2)
        assert second == (wire.SessionRemoved(9), [])

    assert Victim(work).end() == 0


def test_a_bell_that_a_client_has_filled_rings_again() -> None:
    """Bells are shared: one client's mischief costs the others a sleep's length at most."""
    bell, (ours, theirs) = EventBell(), socket_pair()
    waiter = EpollWaiter([bell], [theirs])
    with ours, theirs:
        os.eventfd_write(bell.fileno(), 2**64 - 2)
        waiter.wait(0)
        bell.ring()  # lost: there is no room in the counter
        waiter.wait(20_000_000)
        bell.ring()
        assert bell.wait(0), "the counter has room again"
        waiter.close()


# ------------------------------------------------------------------------------ no room for a board


def test_no_room_for_the_board_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    """F8: a /dev/shm that is too small: no broker, no SIGBUS, no file, and what to do."""

    def work() -> None:
        otherselves.enter_namespaces()
        otherselves.mount("tmpfs", "/dev/shm", "size=256k")
        for topics in (16, 256):
            with pytest.raises(OSError, match=r"bytes of /dev/shm.*lower topics_max"):
                Door(tmp_path / "home", topics_max=topics)
            assert os.listdir("/dev/shm") == []
        with opened(tmp_path / "home", topics_max=16, board_queues_max=64) as door:
            assert epoch.boards_of(door.home) == [door.board.name]
            door.board.array().copy()

    assert Victim(work).end() == 0


@mends("S97")
def test_a_board_larger_than_a_file_may_be_is_a_refusal(tmp_path: Path) -> None:
    """F8: the limit on sizes of files bounds shared memory, too."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(OSError, match="ulimit -f") as failed:
            Door(tmp_path / "home")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert failed.value.errno == errno.EFBIG
    assert epoch.boards_of(tmp_path / "home") == []
