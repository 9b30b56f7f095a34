"""The broker as processes: start, stop, death of each part, and who may hold the store."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gantrymq.brokerd import lock
from gantrymq.brokerd.agents import SENDERS
from gantrymq.brokerd.children import name_of
from gantrymq.brokerd.signals import _heard
from gantrymq.clients.home import read_board_file
from gantrymq.clients.producer import Producer
from gantrymq.clients.running import find_board
from gantrymq.clients.session import Session
from gantrymq.shm import layout, wire
from gantrymq.shm.arena import LanePlan
from gantrymq.shm.board import attach_board
from gantrymq.shm.codes import BrokerState, ExitCode, Role
from gantrymq.shm.errors import BrokerGone, Closed, Evicted, GantryError, StoreFailed
from gantrymq.temporary import Broker
from tests.support.brokers import ServingBroker, abort_file, command, descriptors_of, is_alive
from tests.support.door import opened
from tests.support.forked import start_program
from tests.support.trials import mends
from tests.support.watchdog import poll_until

AGENTS = tuple(role for role in Role if role is not Role.SUPERVISOR)


def soon() -> int:
    """A deadline far enough for any answer."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 60_000_000_000


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingBroker]:
    with ServingBroker(tmp_path_factory.mktemp("serving") / "home") as broker:
        yield broker.wait_until_ready()
        code, _lines = broker.stop()
        assert code == ExitCode.OK


def test_each_agent_is_a_process_of_its_own(serving: ServingBroker) -> None:
    pids = serving.pids()
    assert set(pids) == {Role.SUPERVISOR, *AGENTS}
    assert len(set(pids.values())) == 1 + len(AGENTS)
    assert pids[Role.SUPERVISOR] == serving.process.pid


def test_children_keep_only_what_they_were_allowed(serving: ServingBroker) -> None:
    lock = str(serving.home / "store" / "lock")
    for role in AGENTS:
        there = descriptors_of(serving.pid_of(role))
        assert there.count(lock) == 1
        assert sum(name.startswith("socket:") for name in there) == 1, there
        assert not [name for name in there if "control.sock" in name]
        # The bells are all it shares with others, and those of sessions that it serves (the agents'
        # own among them); epoll and its own files come on top.
        errors = os.readlink(f"/proc/{serving.pid_of(role)}/fd/2")
        bells = sum(name.startswith("pipe:") and name != errors for name in there)
        assert len(AGENTS) <= bells <= len(AGENTS) + len(SENDERS)


@pytest.mark.parametrize("role", AGENTS, ids=lambda role: role.name.lower())
def test_a_killed_agent_is_replaced_alone(serving: ServingBroker, role: Role) -> None:
    before = serving.pids()
    restarts = serving.board.process(role)["restarts"]
    with Session(serving.home, secret=os.urandom(10), groups=True) as session:
        lane = session.plan.groups if role == Role.GROUPS else session.plan.writer
        poll_until(lambda: adoptions(session, lane) == 1, "its agent serves the session")
        os.kill(before[role], signal.SIGKILL)
        poll_until(lambda: serving.pid_of(role) not in (0, before[role]), "it is replaced")
        if role in (Role.WRITER, Role.GROUPS):
            poll_until(lambda: adoptions(session, lane) == 2, "the successor serves the session")
        session.look()
    after = serving.pids()
    assert {r: p for r, p in after.items() if r != role} == {
        r: p for r, p in before.items() if r != role
    }
    assert serving.board.process(role)["restarts"] == restarts + 1
    assert serving.board.half(layout.BOARD_STATE) == BrokerState.READY


def adoptions(session: Session, lane: LanePlan) -> int:
    """How many agents have taken the lane over so far."""
    at = lane.control + layout.LANE_ADOPTED
    return int(session.arena[at : at + 8].view("<u8")[0])


def test_agents_do_not_heed_what_a_terminal_sends_to_all(serving: ServingBroker) -> None:
    """Ctrl-C reaches the whole group; the supervisor alone knows the order of a stop."""
    before = serving.pids()
    beats = serving.board.process(Role.WRITER)["heartbeat"]
    for role in AGENTS:
        os.kill(before[role], signal.SIGINT)
        os.kill(before[role], signal.SIGTERM)
    session = Session(serving.home, secret=os.urandom(10))
    poll_until(lambda: serving.board.process(Role.WRITER)["heartbeat"] > beats, "it works on")
    session.close()
    assert serving.pids() == before


def test_a_broken_ring_costs_its_owner_the_session(serving: ServingBroker) -> None:
    """P12: impossible cursors end that session, and nobody else's."""
    good = Session(serving.home, secret=os.urandom(10))
    bad = Session(serving.home, secret=os.urandom(10))
    at = bad.plan.writer.control + layout.LANE_UP_TAIL
    bad.arena[at : at + 8] = 0xFF
    bad.writer_bell.ring()
    with pytest.raises(Evicted):
        bad.wait(soon(), lambda: False)
    with pytest.raises(Evicted):
        bad.open_topic("t")
    good.look()
    assert good.open_topic("after-eviction").queues == 4
    good.close()
    bad.close()


def test_a_forked_child_has_no_session(serving: ServingBroker) -> None:
    session = Session(serving.home, secret=os.urandom(10))
    child = os.fork()
    if child == 0:
        try:
            session.check()
        except Closed:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    session.look()
    session.close()
    with pytest.raises(Closed):
        session.check()


def test_several_threads_wait_on_one_session(serving: ServingBroker) -> None:
    with Session(serving.home) as session, ThreadPoolExecutor(4) as threads:
        flags = [threading.Event() for _ in range(4)]
        waits = [threads.submit(session.wait, soon(), flag.is_set) for flag in flags]
        for flag, done in zip(flags, waits, strict=True):
            assert not done.done()
            flag.set()
            session.bell.ring()  # as an agent does
            assert done.result(60.0)
        assert session.wait(0, lambda: False) is False


def test_closing_wakes_who_waits(serving: ServingBroker) -> None:
    session = Session(serving.home)
    with ThreadPoolExecutor(1) as threads:
        looked = threading.Event()

        def ready() -> bool:
            looked.set()
            return False

        waiting = threads.submit(session.wait, soon(), ready)
        assert looked.wait(60.0)
        session.close()
        with pytest.raises(Closed):
            waiting.result(60.0)


def test_the_end_of_a_process_ends_its_session(serving: ServingBroker) -> None:
    count = layout.BOARD_SESSION_COUNT
    poll_until(lambda: serving.board.half(count) == 0, "earlier sessions have ended")
    code = (
        "import os, signal, sys; from gantrymq.clients.session import Session;"
        f"s = Session({str(serving.home)!r}, secret=bytes(10)); print('up', flush=True);"
        "signal.pause()"
    )
    with start_program(code, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert serving.board.half(count) == 1
        process.kill()
    poll_until(lambda: serving.board.half(count) == 0, "the session is over")


def test_a_second_broker_is_turned_away(serving: ServingBroker) -> None:
    """F18: exit code 75, and the first goes on."""
    with ServingBroker(serving.home, lock_timeout=0) as second:
        code, lines = second.end()
    assert code == ExitCode.STORE_BUSY
    assert lines[-1]["error"] == "StoreBusy"
    Session(serving.home).close()


def test_a_clean_stop_leaves_the_store_alone(tmp_path: Path) -> None:
    with ServingBroker(tmp_path / "home") as broker:
        broker.wait_until_ready()
        board = broker.board
        assert abort_file(broker.home).exists()
        session = Session(broker.home, secret=os.urandom(10), groups=True)
        session.open_topic("orders")
        code, lines = broker.stop()
        assert code == ExitCode.OK
        assert lines[-1]["event"] == "stopped"
        assert lines[-1]["clean"] is True
        assert not abort_file(broker.home).exists()
        assert not (broker.home / "run" / "control.sock").exists()
        assert board.half(layout.BOARD_STATE) == BrokerState.STOPPED
        with pytest.raises(BrokerGone):
            attach_board(board.name)
        with pytest.raises(BrokerGone, match="gantrymq serve"):
            session.wait(soon(), lambda: False)
        session.close()
        broker.again().wait_until_ready()
        with_topic = Session(broker.home)
        assert with_topic.open_topic("orders", create=False).queues == 4
        assert with_topic.epoch & 0xFFFF == (board.epoch & 0xFFFF) + 1
        with_topic.close()
        assert broker.stop()[0] == ExitCode.OK


def test_children_follow_a_killed_supervisor_and_the_next_life_starts(tmp_path: Path) -> None:
    with ServingBroker(tmp_path / "home") as broker:
        broker.wait_until_ready()
        board, pids = broker.board, broker.pids()
        session = Session(broker.home)
        session.open_topic("orders")
        broker.kill_all()
        poll_until(lambda: not any(map(is_alive, pids.values())), "all are gone")
        with pytest.raises(BrokerGone):
            session.wait(soon(), lambda: False)
        session.close()
        broker.again().wait_until_ready(not_epoch=board.epoch)
        with pytest.raises(BrokerGone):
            attach_board(board.name)  # the new life has removed it
        after = Session(broker.home)
        assert after.open_topic("orders", create=False).queues == 4
        after.close()
        assert broker.stop()[0] == ExitCode.OK


def test_a_signal_before_it_is_ready_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServingBroker, "forked", False)
    home = tmp_path / "home"
    with ServingBroker(home) as broker:
        poll_until((home / "store" / "gantry" / "store.json").exists, "it has begun")
        assert broker.stop()[0] == ExitCode.OK
        monkeypatch.undo()
        broker.again().wait_until_ready()
        assert broker.stop()[0] == ExitCode.OK


def test_an_agent_that_cannot_live_ends_the_broker(tmp_path: Path) -> None:
    """Backoff has an end: exit code 70, and the log says who died."""
    with ServingBroker(tmp_path / "home") as broker:
        broker.wait_until_ready()
        (broker.home / "store" / "gantry" / "ledger").unlink()
        (broker.home / "store" / "gantry" / "ledger").mkdir()
        os.kill(broker.pid_of(Role.GROUPS), signal.SIGKILL)
        code, lines = broker.end()
    assert code == ExitCode.STORE
    deaths = [line for line in lines if line["event"] == "agent_ended"]
    assert {line["agent"] for line in deaths} == {"groups"}
    assert [line for line in lines if line["event"] == "agent_failed"]
    assert "died 6 times" in next(line["why"] for line in lines if line["event"] == "failed")


def test_a_failed_write_is_final(tmp_path: Path) -> None:
    """P3: what waits fails, the process ends with the code of an I/O error, nothing is retried."""
    with ServingBroker(tmp_path / "home") as broker:
        broker.wait_until_ready()
        producer = Producer(broker.home)
        assert producer.send("orders", b"before").queue_offset == 0
        no_more = (0, resource.RLIM_INFINITY)
        resource.prlimit(broker.pid_of(Role.WRITER), resource.RLIMIT_FSIZE, no_more)
        with pytest.raises(StoreFailed):
            producer.send("orders", b"never")
        with pytest.raises(GantryError):
            producer.send("orders", b"nor this")
        with pytest.raises(StoreFailed):
            producer.close()
        code, lines = broker.end()
        assert code == ExitCode.IO_ERROR
        assert abort_file(broker.home).exists()
        assert len([line for line in lines if line["event"] == "failed"]) == 1
        broker.again().wait_until_ready()
        with Producer(broker.home) as producer:
            topic_offsets = {producer.send("orders", b"after").queue_offset for _ in range(4)}
        assert topic_offsets == {0, 1}  # four queues, one of which has the first message
        assert broker.stop()[0] == ExitCode.OK


def test_a_stop_waits_for_no_flush_interval(tmp_path: Path) -> None:
    """Agents that stop before the flusher wait for what they have counted to be durable."""
    with ServingBroker(tmp_path / "home", flush_interval_commit_log=60_000) as broker:
        broker.wait_until_ready()
        with Producer(broker.home) as producer:
            producer.send("orders", b"written")
        assert broker.stop()[0] == ExitCode.OK


def test_a_stop_that_hangs_is_cut_short(tmp_path: Path) -> None:
    """SIGTERM ends within stop_timeout, and the exit code says that it was not clean."""
    with ServingBroker(tmp_path / "home", stop_timeout=1) as broker:
        broker.wait_until_ready()
        pids = broker.pids()
        os.kill(pids[Role.READER], signal.SIGSTOP)
        code, lines = broker.stop()
        assert code == ExitCode.STORE
        assert "reader" in next(line["why"] for line in lines if line["event"] == "failed")
        assert abort_file(broker.home).exists()
        poll_until(lambda: not any(map(is_alive, pids.values())), "all are gone")
        del broker.settings["stop_timeout"]  # a loaded machine may need longer
        broker.again().wait_until_ready()
        assert broker.stop()[0] == ExitCode.OK


@pytest.fixture
def heard_hangups() -> Iterator[None]:
    """SIGHUP as a terminal's programs have it, also where these tests run below `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@mends("S320")
@pytest.mark.usefixtures("heard_hangups")
def test_a_terminal_that_is_closed_stops_its_broker(tmp_path: Path) -> None:
    """SIGHUP was as a kill of it, with no word in the log."""
    with ServingBroker(tmp_path / "home") as broker:
        broker.wait_until_ready()
        broker.process.send_signal(signal.SIGHUP)
        poll_until(lambda: not abort_file(broker.home).exists(), "it stops, and says so")
        code, lines = broker.stop()
    assert code == ExitCode.OK
    assert "SIGHUP" in next(line["why"] for line in lines if line["event"] == "stopping")


@mends("S320")
def test_nohup_has_a_broker_go_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in _heard()
        assert {signal.SIGTERM, signal.SIGINT} == set(_heard())
    finally:
        signal.signal(signal.SIGHUP, before)


@mends("S123")
def test_a_killed_life_is_not_taken_for_the_one_that_starts(tmp_path: Path) -> None:
    """Its board is named until the next life has one; who has the lock meanwhile is not ready."""
    with ServingBroker(tmp_path / "home") as broker:
        broker.wait_until_ready()
        broker.kill_all()
        with lock.acquire(broker.home / "store", 60.0):  # as a start does first
            assert read_board_file(broker.home)["board"]
            assert find_board(broker.home) is None
            status = command("status", "--home", broker.home)
            assert status.returncode == ExitCode.NO_BROKER, status
            backup = command("store", "backup", tmp_path / "copy", "--home", broker.home)
            assert "starting" in backup.stderr
        broker.again().wait_until_ready()
        assert broker.stop()[0] == ExitCode.OK


@mends("S119")
@pytest.mark.parametrize("killed", [AGENTS, *((role,) for role in AGENTS)], ids=name_of)
def test_agents_that_die_amid_a_stop_have_successors(
    tmp_path: Path, killed: tuple[Role, ...]
) -> None:
    """They finish what was accepted: the stop is clean, and nothing waits for `stop_timeout`."""
    with ServingBroker(tmp_path / "home", stop_timeout=600) as broker:
        broker.wait_until_ready()
        board, pids = broker.board, broker.pids()
        with Producer(broker.home) as producer:
            producer.send("orders", b"stored")
        os.kill(pids[Role.SCHEDULER], signal.SIGSTOP)  # the first to be told, and waited for
        broker.process.send_signal(signal.SIGTERM)
        poll_until(
            lambda: board.half(layout.BOARD_STATE) == BrokerState.STOPPING, "the stop has begun"
        )
        for role in killed:
            os.kill(pids[role], signal.SIGKILL)
        if Role.SCHEDULER not in killed:
            os.kill(pids[Role.SCHEDULER], signal.SIGCONT)
        code, lines = broker.stop()
    assert code == ExitCode.OK
    assert not abort_file(broker.home).exists()
    replaced = {line["agent"] for line in lines if line["event"] == "agent_replaced"}
    assert replaced == {name_of([role]) for role in killed}


@mends("S119")
def test_a_failure_amid_a_stop_does_not_wait_for_its_whole_time(tmp_path: Path) -> None:
    """Nobody comes after the agents then, and those that wait for them wait in vain."""
    with opened(tmp_path / "home", stop_timeout=600) as door:
        supervisor = door.supervisor
        supervisor.stop("of this test")
        supervisor.fail(ExitCode.STORE, "of this test")
        now_ns = supervisor._clock.monotonic_ns()
        assert supervisor._stop_deadline_ns <= now_ns + 10_000_000_000


def test_one_child_can_host_all_agents(tmp_path: Path) -> None:
    with ServingBroker(tmp_path / "home", profile="small") as broker:
        broker.wait_until_ready()
        pids = broker.pids()
        assert len(set(pids.values())) == 2
        session = Session(broker.home, secret=os.urandom(10), groups=True)
        os.kill(pids[Role.WRITER], signal.SIGKILL)
        poll_until(
            lambda: broker.pid_of(Role.WRITER) not in (0, pids[Role.WRITER]), "it is replaced"
        )
        session.look()
        session.close()
        assert broker.stop()[0] == ExitCode.OK


def test_a_temporary_broker_leaves_nothing() -> None:
    with Broker.temporary() as broker:
        session = Session(broker.home)
        name = session.board.name
        pids = session.request(wire.ShowSettings())
        assert isinstance(pids, wire.Settings)
        assert set(pids.pids.values()) == {broker.process.pid}
        session.close()
        broker.stop()
        assert (broker.home / "store" / "lock").exists()
        broker.start()
        Session(broker.home).close()
    assert not broker.home.exists()
    with pytest.raises(BrokerGone):
        attach_board(name)


def test_a_temporary_broker_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import os, signal; from gantrymq.temporary import Broker;"
        "b = Broker.temporary(); print(b.home, b.process.pid, flush=True); signal.pause()"
    )
    with start_program(code, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        home, pid = process.stdout.readline().split()
        process.kill()
    poll_until(lambda: not is_alive(int(pid)), "the broker has ended")
    assert not Path(home).exists()


@mends("H11")
@pytest.mark.parametrize("role", [Role.WRITER, Role.GROUPS])
def test_an_agent_that_hangs_is_killed_and_replaced(
    tmp_path: Path, unique_name: str, role: Role
) -> None:
    """Without a service manager; clients go on, and the log says what happened."""
    with ServingBroker(tmp_path / "home", hung_agent_timeout=1) as broker:
        broker.wait_until_ready()
        others = {r: pid for r, pid in broker.pids().items() if r != role}
        with Producer(broker.home) as producer:
            producer.send(unique_name, b"before")
            hung = broker.pid_of(role)
            os.kill(hung, signal.SIGSTOP)
            poll_until(lambda: broker.pid_of(role) not in (0, hung), "it is replaced")
            producer.send(unique_name, b"behind")
        assert {r: pid for r, pid in broker.pids().items() if r != role} == others
        code, lines = broker.stop()
    assert code == ExitCode.OK
    told = [line for line in lines if line["event"] in ("agent_hung", "agent_ended")]
    assert [(line["event"], line["agent"]) for line in told] == [
        ("agent_hung", role.name.lower()), ("agent_ended", role.name.lower()),
    ]  # fmt: skip
