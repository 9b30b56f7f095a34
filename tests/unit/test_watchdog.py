"""The watchdog: pats only while every agent's heartbeat goes on."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gantrymq.brokerd.log import Log
from gantrymq.brokerd.notify import ServiceManager
from gantrymq.brokerd.serve import _progress
from gantrymq.brokerd.watchdog import SILENT_NS, Watchdog
from gantrymq.shm import layout
from gantrymq.shm.board import Board, format_board
from gantrymq.shm.codes import BrokerState, Role
from tests.support.trials import mends

ROLES = (Role.WRITER, Role.FLUSHER)
PERIOD_US = 4_000_000
HALF_NS = PERIOD_US * 500


class Rig:
    """A board, a manager's socket, and a watchdog at a virtual time."""

    def __init__(self, folder: Path) -> None:
        memory = memoryview(bytearray(layout.board_bytes(16, 64)))
        format_board(
            memory, epoch=1, boot_id=bytes(16), topics_max=16, queues_max=64,
            segment_bytes=4096, cq_bytes=200, started_ms=0, wall_ahead_ns=0,
        )  # fmt: skip
        self.board = Board(memory)
        self.board.set_half(layout.BOARD_STATE, BrokerState.READY)
        for role in ROLES:
            self.board.set_half(self.board.process_at(role), 100 + role)
        self.heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.heard.bind(str(folder / "notify"))
        self.heard.setblocking(False)
        self.text = io.StringIO()
        self.manager = ServiceManager(str(folder / "notify"), PERIOD_US)
        self.watchdog = Watchdog(self.board, ROLES, self.manager, Log("info", self.text))
        self.now_ns = 10**12

    def beat(self, *roles: Role) -> None:
        for role in roles:
            at = self.board.process_at(role) + layout.PROCESS_HEARTBEAT
            self.board.set_word(at, self.board.word(at) + 1)

    def look_after(self, ns: int) -> list[str]:
        """What the manager hears of a look at a later time."""
        self.now_ns += ns
        self.watchdog.look(self.now_ns)
        said = []
        while True:
            try:
                said.append(self.heard.recv(1000).decode())
            except BlockingIOError:
                return said

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.text.getvalue().splitlines()]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.heard.close()


def test_it_pats_while_all_beat(rig: Rig) -> None:
    rig.beat(*ROLES)
    assert "WATCHDOG=1" in rig.look_after(0)
    for _ in range(5):
        rig.beat(*ROLES)
        assert "WATCHDOG=1" not in rig.look_after(HALF_NS - 1)
        assert "WATCHDOG=1" in rig.look_after(1)


def test_an_agent_that_hangs_stops_the_pats(rig: Rig) -> None:
    rig.beat(*ROLES)
    rig.look_after(0)
    for _ in range(5):
        rig.beat(Role.FLUSHER)
        assert "WATCHDOG=1" not in rig.look_after(HALF_NS)
    rig.beat(Role.WRITER)
    assert "WATCHDOG=1" in rig.look_after(HALF_NS)


def test_a_dead_agent_is_the_supervisors_to_replace(rig: Rig) -> None:
    rig.beat(*ROLES)
    rig.look_after(0)
    rig.board.set_half(rig.board.process_at(Role.WRITER), 0)
    rig.beat(Role.FLUSHER)
    assert "WATCHDOG=1" in rig.look_after(HALF_NS)


def test_silence_is_told_once_and_taken_back(rig: Rig) -> None:
    """In the log, and in the line of `systemctl status`."""
    rig.beat(*ROLES)
    rig.look_after(0)
    rig.beat(Role.FLUSHER)
    said = rig.look_after(SILENT_NS + 1)
    rig.beat(Role.FLUSHER)
    rig.look_after(SILENT_NS)
    assert rig.events() == ["agent_silent"]
    assert any("does not go on: writer" in text for text in said)
    rig.beat(*ROLES)
    said = rig.look_after(1)
    assert rig.events() == ["agent_silent", "agent_beats_again"]
    assert any(text.startswith("STATUS=ready") for text in said)


def test_without_a_manager_nothing_is_sent(tmp_path: Path) -> None:
    manager = ServiceManager("", PERIOD_US)
    assert manager.watchdog_ns == 0
    manager.tell(READY=1)
    ServiceManager(str(tmp_path / "nobody"), PERIOD_US).tell(READY=1)


def fill(address: str) -> None:
    """Send until its socket has no more room."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, suppress(BlockingIOError):
        other.setblocking(False)
        while True:
            other.sendto(b"STATUS=before", address)


@mends("S193")
def test_what_a_manager_has_no_room_for_is_told_later(rig: Rig) -> None:
    """One that stands still for a moment would wait for READY, and then kill a ready broker."""
    address = rig.heard.getsockname()
    fill(address)
    rig.manager.extend("starting: log", 30)
    rig.manager.tell(READY=1, STATUS="ready")
    rig.manager.tell(STOPPING=1)
    said = rig.look_after(0)  # which it does before there is room
    assert set(said) == {"STATUS=before"}
    (told,) = rig.look_after(500_000_000)
    assert {"EXTEND_TIMEOUT_USEC=30000000", "READY=1", "STOPPING=1"} <= set(told.split("\n"))
    assert rig.look_after(500_000_000) == []


@mends("S192")
@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("/a/\udcff: not yours", "STATUS=/a/\\udcff: not yours"),
        ("first\nREADY=1\r\nlast", "STATUS=first READY=1 last"),
        ("\N{GRINNING FACE}" * 5000, "STATUS=" + "\N{GRINNING FACE}" * 1000),
    ],
)
def test_a_status_is_one_line_that_a_manager_takes(rig: Rig, why: str, told: str) -> None:
    """Whatever file an error names; more than 4,096 bytes a manager drops."""
    rig.manager.show(why)
    assert rig.heard.recv(10_000).decode() == told


def test_a_long_start_is_told_once_a_second(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many steps are done, of how many; the manager hears of each kernel and gives time."""
    times = iter((10.0, 10.9, 11.2, 11.5, 12.3, 12.4))
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    say = _progress(Log("info", rig.text), ServiceManager(str(tmp_path / "notify")))
    for done, what in enumerate(("a", "b", "c", "log 5 %", "log 6 %")):
        say(done, 9, what)
    told = [json.loads(line) for line in rig.text.getvalue().splitlines()]
    assert [(line["event"], line["done"], line["total"], line["what"]) for line in told] == [
        ("starting", 1, 9, "b"), ("starting", 3, 9, "log 5 %"),
    ]  # fmt: skip
    heard = [text for text in rig.look_after(0) if text.startswith("EXTEND")]
    steps = [("a", 0), ("b", 1), ("c", 2), ("log 5 %", 3)]
    assert heard == [
        f"EXTEND_TIMEOUT_USEC=120000000\nSTATUS=starting: {what} ({done} of 9)"
        for what, done in steps
    ]
