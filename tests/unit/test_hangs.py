"""Which processes of agents hang: real processes, looked at by a virtual clock."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from gantrymq.brokerd.children import Child, Outbox
from gantrymq.brokerd.watchdog import Hangs
from gantrymq.shm import layout
from gantrymq.shm.board import Board, format_board
from gantrymq.shm.codes import Role
from tests.support.forked import start_program
from tests.support.trials import mends
from tests.support.watchdog import poll_until

LIMIT_S = 30
#: How often a supervisor looks.
LOOK_NS = 500_000_000
LOOKS = 2 * LIMIT_S + 2

ASLEEP = "import signal; print('here', flush=True); signal.pause()"
BUSY = "print('here', flush=True)\nwhile True: pass"
#: Its parent waits for it in the kernel, as for a device, until it ends or begins a program.
IN_THE_KERNEL = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
if libc.vfork():
    os._exit(1)
print('here', flush=True)
signal.pause()
"""


class Rig:
    """A board, and processes that stand for agents."""

    def __init__(self, stack: ExitStack, limit_s: int = LIMIT_S) -> None:
        memory = memoryview(bytearray(layout.board_bytes(16, 64)))
        format_board(
            memory, epoch=1, boot_id=bytes(16), topics_max=16, queues_max=64,
            segment_bytes=4096, cq_bytes=200, started_ms=0, wall_ahead_ns=0,
        )  # fmt: skip
        self.board = Board(memory)
        self.hangs = Hangs(self.board, limit_s)
        self.now_ns = 10**12
        self._stack = stack

    def start(self, program: str, *roles: Role) -> Child:
        process = self._stack.enter_context(start_program(program, stdout=-1))
        self._stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline()
        ours, theirs = socket.socketpair()
        theirs.close()
        child = Child(roles, Outbox(ours), process.pid, os.pidfd_open(process.pid), 0)
        self._stack.callback(child.close)
        self._stack.callback(self._end_children_of, process.pid)
        return child

    def _end_children_of(self, pid: int) -> None:
        with suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)

    def beat(self, role: Role) -> None:
        at = self.board.process_at(role) + layout.PROCESS_HEARTBEAT
        self.board.set_word(at, self.board.word(at) + 1)

    def look(self, *children: Child, after_ns: int = LOOK_NS) -> list[int]:
        """Processes that hang, at a later look."""
        self.now_ns += after_ns
        return [child.pid for child, _ns in self.hangs.look(children, self.now_ns)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def state_of(child: Child) -> str:
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]


@mends("H11")
@pytest.mark.parametrize("number", [None, signal.SIGSTOP])
def test_who_sleeps_or_is_stopped_for_so_long_hangs(
    stack: ExitStack, number: signal.Signals | None
) -> None:
    rig = Rig(stack)
    child = rig.start(ASLEEP, Role.WRITER)
    if number is not None:
        os.kill(child.pid, number)
    poll_until(lambda: state_of(child) == ("S" if number is None else "T"), "it rests")
    found = [rig.look(child) for _ in range(LOOKS)]
    assert found[: LOOKS // 2] == [[]] * (LOOKS // 2)
    assert found[-1] == [child.pid]


def test_a_heartbeat_of_any_of_its_agents_clears_a_process(stack: ExitStack) -> None:
    rig = Rig(stack)
    child = rig.start(ASLEEP, Role.WRITER, Role.READER)
    for _ in range(LOOKS):
        rig.beat(Role.READER)
        assert rig.look(child) == []


def test_time_in_which_nobody_looked_hardly_counts(stack: ExitStack) -> None:
    """The whole broker was stopped, or the machine suspended."""
    rig = Rig(stack)
    child = rig.start(ASLEEP, Role.WRITER)
    for _ in range(LIMIT_S // 2):
        assert rig.look(child, after_ns=3_600 * 10**9) == []


def test_who_gets_no_processor_does_not_hang(stack: ExitStack) -> None:
    """By the virtual clock hours pass, in which it had a processor for moments."""
    rig = Rig(stack)
    child = rig.start(BUSY, Role.WRITER)
    assert not any(rig.look(child) for _ in range(10 * LOOKS))


def test_who_waits_for_a_device_does_not_hang(stack: ExitStack) -> None:
    rig = Rig(stack)
    child = rig.start(IN_THE_KERNEL, Role.FLUSHER)
    poll_until(lambda: state_of(child) == "D", "it is in the kernel")
    assert not any(rig.look(child) for _ in range(LOOKS))


def test_nobody_hangs_where_that_is_switched_off(stack: ExitStack) -> None:
    rig = Rig(stack, 0)
    child = rig.start(ASLEEP, Role.WRITER)
    assert not any(rig.look(child) for _ in range(LOOKS))
