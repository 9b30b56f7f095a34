"""Many who ask the broker for something at one moment: connections, sessions, topics, groups."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gantrymq.clients.control import look_at
from gantrymq.clients.home import connect, socket_address, store_of
from gantrymq.clients.member import GroupMember
from gantrymq.clients.session import Session
from gantrymq.shm import wire
from gantrymq.shm.codes import Role
from gantrymq.shm.configfile import read_config
from gantrymq.shm.errors import Timeout
from gantrymq.shm.groupwire import ConsumeFrom
from gantrymq.shm.storage import PosixStorage
from tests.support.brokers import ServingBroker
from tests.support.trials import mends
from tests.support.watchdog import poll_until

#: Sessions, topics or groups of one moment.
MANY = 32
#: Memory for a few consumers' sessions at a time.
FEW_SESSIONS = 4 << 20


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingBroker]:
    home = tmp_path_factory.mktemp("many") / "home"
    with ServingBroker(home, session_memory_max=64 << 20) as broker:
        yield broker.wait_until_ready()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that stands still meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        stat = Path(f"/proc/{pid}/stat")
        poll_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it stands still")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def fill_backlog(home: Path, stack: ExitStack) -> None:
    """Connect until the socket of a stopped broker has no room for one more."""
    with socket_address(home) as address:
        while True:
            channel = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            channel.setblocking(False)
            try:
                channel.connect(address)
            except BlockingIOError:
                return


def written(broker: ServingBroker, name: str) -> dict[str, Any]:
    """What a file of config/ holds."""
    content: dict[str, Any] = read_config(PosixStorage(str(store_of(broker.home))), name) or {}
    return content


def versions(broker: ServingBroker, name: str) -> int:
    """How often a file of config/ was written."""
    return int((written(broker, name).get("dataVersion") or {}).get("counter", 0))


@mends("R7.5")
def test_who_finds_the_backlog_full_waits_for_a_turn(serving: ServingBroker) -> None:
    with ExitStack() as crowd, ThreadPoolExecutor(1) as pool:
        with stopped(serving.process.pid):
            fill_backlog(serving.home, crowd)
            with pytest.raises(Timeout, match="others wait for it as well"):
                connect(serving.home, 0.05)
            late = pool.submit(look_at, serving.home)
        late.result().close()


@mends("R7.6")
def test_consumers_that_come_and_go_wait_for_groups(serving: ServingBroker, tmp_path: Path) -> None:
    """`groups` stands still: the memory of sessions that have ended stays with it."""
    with ServingBroker(tmp_path / "home", session_memory_max=FEW_SESSIONS) as broker:
        broker.wait_until_ready()
        done: list[int] = []
        with Session(serving.home, groups=True) as alike:
            size = alike.plan.size

        def come_and_go() -> None:
            for number in range(MANY):
                Session(broker.home, groups=True).close()
                done.append(number)

        with ThreadPoolExecutor(1) as pool:
            with stopped(broker.pid_of(Role.GROUPS)):
                coming = pool.submit(come_and_go)
                poll_until(
                    lambda: coming.done() or (len(done) + 1) * size > FEW_SESSIONS, "no more room"
                )
            coming.result()
        assert len(done) == MANY


@mends("R7.7")
def test_topics_of_one_moment_are_one_write(serving: ServingBroker, unique_name: str) -> None:
    """The supervisor finds all requests at once; each is answered, all topics are in the file."""
    before = versions(serving, "topics.json")
    with ExitStack() as stack:
        looks = [stack.enter_context(look_at(serving.home)) for _ in range(MANY)]
        with stopped(serving.process.pid):
            for number, look in enumerate(looks):
                wire.send(look.channel, wire.CreateTopic(f"{unique_name}-{number}", 1, "written"))
        answers = [wire.receive(look.channel) for look in looks]
    named = [answer[0].name for answer in answers if answer]  # type: ignore[union-attr]
    assert named == [f"{unique_name}-{number}" for number in range(MANY)]
    content = written(serving, "topics.json")
    assert set(named) <= content["topicConfigTable"].keys()
    assert versions(serving, "topics.json") - before <= 2


@mends("R7.8")
def test_groups_of_one_moment_are_few_writes(serving: ServingBroker, unique_name: str) -> None:
    before = versions(serving, "subscriptionGroup.json")
    groups = [f"{unique_name}-{number}" for number in range(MANY)]
    with ExitStack() as stack:
        sessions = [stack.enter_context(Session(serving.home, groups=True)) for _ in groups]
        slot = sessions[0].open_topic(unique_name).slot
        with stopped(serving.process.pid):
            for group, session in zip(groups, sessions, strict=True):
                GroupMember(session, group, {slot: unique_name}).join(ConsumeFrom.LAST_OFFSET, {})

        def is_written() -> bool:
            content = read_config(
                PosixStorage(str(store_of(serving.home))), "subscriptionGroup.json"
            )
            return set(groups) <= ((content or {}).get("subscriptionGroupTable") or {}).keys()

        poll_until(is_written, "all groups are in the file")
    assert versions(serving, "subscriptionGroup.json") - before < MANY // 4
