"""A dying agent: what it says, and that it waits for nobody who does not listen."""

from __future__ import annotations

import json

from gantrymq.shm.codes import ExitCode
from tests.support.forked import run_program

#: An agent dies at its start, of an error whose text is not UTF-8 (as the name of a file may be);
#: standard error is a pipe that is full, and that nobody reads. A library warns there, too.
PROGRAM = r"""
import json, os, types, warnings
from gantrymq.brokerd import children
from gantrymq.brokerd.config import Settings
from gantrymq.shm import layout, wire
from gantrymq.shm.board import Board, format_board
from gantrymq.shm.clock import SystemClock
from gantrymq.shm.codes import Role

reads, writes = os.pipe()
os.set_blocking(writes, False)
try:
    while True:
        os.write(writes, b"x" * 65536)
except BlockingIOError:
    os.set_blocking(writes, True)
os.dup2(writes, 2)

class Storage:
    def __getattr__(self, name):
        warnings.warn("of a library")
        raise OSError(5, "Input/output error", "/home/\udcff/" + "x" * 100_000)

memory = memoryview(bytearray(layout.board_bytes(16, 64)))
format_board(memory, epoch=1, boot_id=bytes(16), topics_max=16, queues_max=64,
             segment_bytes=4096, cq_bytes=200, started_ms=0, wall_ahead_ns=0)
bells = types.SimpleNamespace()
env = children.AgentEnv(Storage(), SystemClock(), Board(memory), bells, Settings())
child = children.fork_child([Role.GROUPS], env, [])
channel = child.outbox.channel
channel.setblocking(True)
frame, _descriptors = wire.receive(channel)
_pid, status = os.waitpid(child.pid, 0)
print(json.dumps([frame.event, frame.fields, os.waitstatus_to_exitcode(status)]))
"""


def test_an_agent_that_dies_beside_a_full_pipe_says_why_and_is_gone() -> None:
    """Its traceback waited for room in the pipe for ever, and no successor could come."""
    ended = run_program(PROGRAM)
    assert ended.returncode == 0, ended.stderr
    event, fields, code = json.loads(ended.stdout)
    assert event == "agent_failed"
    assert "Input/output error" in fields["error"]
    assert code == ExitCode.IO_ERROR
