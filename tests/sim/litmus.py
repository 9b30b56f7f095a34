"""Small programs over the real ring kernels, to be run under the schedule explorer.

Run with NUMBA_DISABLE_JIT=1: `python -m tests.sim.litmus lane --seeds 0:200`. Prints the failing
seed and exits 1. `--plant` puts one of the known bugs in first, which must then be found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gantrymq.brokerd.lanes import Lane, LaneTable, take_cursors
from gantrymq.shm import atomics, layout
from gantrymq.shm.arena import plan_arena
from gantrymq.shm.board import Board
from gantrymq.shm.codes import AgentState, EntryFlag, Owed, Role, Stop
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.kernels import complete, drain, frames, ring
from gantrymq.workers.session import Session
from tests.sim import progress_litmus
from tests.support.lanes import lane_words
from tests.support.memory_sessions import memory_board, memory_session
from tests.support.schedules import Schedule, ScheduledBell

MESSAGES = 7
BODIES = [b"%d" % number * (20 + 15 * (number % 3)) for number in range(MESSAGES)]
PLAN = plan_arena(256, 256, 256, 256)
EXTRA = np.zeros(0, np.uint8)


class SendingLane:
    """A client that sends and an agent that drains, over one small writer lane."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.board = memory_board({"t": 1})
        self.client_bell, self.agent_bell = schedule.bell(), schedule.bell()
        self.session = memory_session(1, PLAN)
        self.arena, self.plan = self.session.arena, self.session.plan.writer
        self.sent: list[bytes] = []
        self.completed: list[int] = []
        self.staged: list[bytes] = []
        self.client_gone = False

    # ------------------------------------------------------------------------------------- client

    def client(self) -> None:
        """Send all, wait for room and for all receipts."""
        lane = lane_words(self.plan)
        out = np.zeros(4 * frames.COMPLETION_WORDS, np.int64)
        try:
            for number in range(MESSAGES):
                self._send(lane, out, b"%d" % number * (5 + 9 * (number % 3)))
            while len(self.completed) < MESSAGES:
                if not self._take(lane, out):
                    self._sleep(lane, layout.LANE_DOWN_TAIL, frames.DOWN_CURSOR)
        finally:
            self.client_gone = True
            # What the supervisor does when a session's socket ends.
            self.agent_bell.ring_from_outside()

    def _send(self, lane: np.ndarray, out: np.ndarray, body: bytes) -> None:
        form = np.array([EntryFlag.RECEIPT, 0, 0, 0, 0, 0], np.int64)
        self.sent.append(body)
        while True:
            lane[frames.RING] = 0
            done = ring.put(self.arena, lane, form, np.frombuffer(body, np.uint8), EXTRA)
            if lane[frames.RING]:
                self.agent_bell.ring()
            if done > 0:
                return
            assert done == ring.FULL, done
            if not self._take(lane, out):
                self._sleep(lane, layout.LANE_UP_HEAD, frames.UP_SEEN)

    def _take(self, lane: np.ndarray, out: np.ndarray) -> int:
        lane[frames.RING] = 0
        taken = int(ring.take_completions(self.arena, lane, out))
        if lane[frames.RING]:
            self.agent_bell.ring()
        for row in range(taken):
            self.completed.append(int(out[row * frames.COMPLETION_WORDS + frames.OUT_SEQ]))
        return taken

    def _sleep(self, lane: np.ndarray, word: int, seen: int) -> None:
        control = self.plan.control
        flag_at = control + layout.LANE_CLIENT_ARMED
        if ring.arm(self.arena, flag_at, 1, control + word, int(lane[seen])):
            self.client_bell.wait()
        atomics.store_release32(self.arena, flag_at, 0)

    # -------------------------------------------------------------------------------------- agent

    def agent(self) -> None:
        """Drain until the client is gone and nothing is left."""
        state = Drain(self.board, self.session)
        lane = state.lane
        control = self.plan.control
        while True:
            gone = self.client_gone
            if state.drain():
                self.staged += state.bodies()
                if state.tell() & Owed.RING_CLIENTS:
                    self.client_bell.ring()
                continue
            if gone:
                return
            flag_at = control + layout.LANE_AGENT_STATE
            tail_at = control + layout.LANE_UP_TAIL
            seen = int(lane[frames.UP_CURSOR])
            may_sleep = ring.arm(self.arena, flag_at, AgentState.ARMED, tail_at, seen)
            if may_sleep and not self.client_gone:
                self.agent_bell.wait()
            atomics.store_release32(self.arena, flag_at, AgentState.HOT)

    def check(self) -> None:
        """All that was sent, in order, whole, once; and a receipt for each."""
        assert self.staged == self.sent, (self.staged, self.sent)
        assert self.completed == list(range(1, MESSAGES + 1)), self.completed

    def check_after_death(self) -> None:
        """A prefix of what was sent, each entry whole."""
        assert self.staged == self.sent[: len(self.staged)], (self.staged, self.sent)


class Drain:
    """What the writer holds for one lane, small."""

    def __init__(self, board: Board, session: Session) -> None:
        self.board = board.array()
        words = take_cursors(session)
        assert words is not None, "fresh cursors are legal"
        self.owner = Lane(
            session, words, np.zeros(0, np.int64), np.zeros(frames.IDENTITY_BYTES, np.uint8),
            np.zeros(frames.ROUTE_WORDS, np.int64),
        )  # fmt: skip
        self.lane = words
        self.table = LaneTable()
        self.table.add(self.owner)
        self.staging = np.zeros(4096, np.uint8)
        self.batch = np.zeros(frames.BATCH_WORDS, np.int64)
        self.scratch = np.zeros(drain.SCRATCH_WORDS, np.int64)
        self.batch[frames.SEGMENT_END] = self.batch[frames.SEGMENT_BYTES] = 1 << 40
        self.batch[frames.STAGING_LIMIT], self.batch[frames.BODY_MAX] = 2048, 1024
        self.batch[frames.TAKEN_LIMIT] = 4
        self.batch[frames.QUEUES_AT] = board.queues_at
        self.batch[frames.PROCESS_AT] = board.process_at(Role.WRITER)

    def drain(self) -> int:
        """One batch; entries taken."""
        self.batch[frames.CYCLE_BEGINS] = 1
        drain.look_at_lanes(self.table.array, self.board, self.batch, 0, 1)
        stop = drain.drain_lanes(
            self.table.array, self.board, self.staging, self.batch, self.scratch, 0, 0, 1
        )
        assert stop == Stop.DONE, Stop(int(stop))
        return int(self.batch[frames.DRAINED_LANES])

    def tell(self) -> Owed:
        """Publish a drained batch; whom to ring."""
        return Owed(int(complete.tell_lanes(self.table.array, self.board, self.batch)))

    def bodies(self) -> list[bytes]:
        """Bodies of the records in staging."""
        found = []
        at = 0
        data = self.staging.tobytes()
        while at < self.batch[frames.FILLED]:
            head = layout.RECORD.unpack(data, at)
            start = at + layout.RECORD_HEAD_BYTES
            found.append(data[start : start + head["body_length"]])
            at += head["total_size"]
        return found


class Messages:
    """Control messages in both directions: each side asks, answers, and sleeps in between."""

    def __init__(self, schedule: Schedule) -> None:
        self.client_bell, self.agent_bell = schedule.bell(), schedule.bell()
        self.session = memory_session(1, PLAN)
        self.taken: dict[str, list[bytes]] = {"client": [], "agent": []}
        self.client_gone = False

    def client(self) -> None:
        """Ask, and wait for as many answers."""
        try:
            self._converse("client", End.CLIENT, self.client_bell, self.agent_bell)
        finally:
            self.client_gone = True
            self.agent_bell.ring_from_outside()

    def agent(self) -> None:
        """Answer each request."""
        self._converse("agent", End.AGENT, self.agent_bell, self.client_bell)

    def _converse(self, name: str, end: End, own: ScheduledBell, other: ScheduledBell) -> None:
        lane = ControlLane(self.session.arena, self.session.plan.groups, end)
        taken = self.taken[name]
        put = 0
        while put < MESSAGES or len(taken) < MESSAGES:
            if end is End.AGENT and self.client_gone:
                return
            may_put = put < MESSAGES and (end is End.CLIENT or put < len(taken))
            worked = may_put and self._put(lane, put, other)
            put += worked
            body = lane.take()
            if lane.wants_bell or (end is End.AGENT and lane.publish_taken()):
                other.ring()
            if body is not None:
                taken.append(body)
            elif not worked:
                self._sleep(lane, own)

    def _put(self, lane: ControlLane, number: int, other: ScheduledBell) -> bool:
        done = lane.put(BODIES[number])
        if lane.wants_bell:
            other.ring()
        return done

    def _sleep(self, lane: ControlLane, own: ScheduledBell) -> None:
        gone = lane.end is End.AGENT and self.client_gone
        if lane.arm(AgentState.ARMED) and not gone:
            own.wait()
        lane.disarm()

    def check(self) -> None:
        """Both sides have got all."""
        assert self.taken["client"] == self.taken["agent"]
        assert len(self.taken["agent"]) == MESSAGES

    def check_after_death(self) -> None:
        """The agent has a prefix."""
        assert self.taken["agent"] == BODIES[: len(self.taken["agent"])]


PROGRAMS: dict[str, Callable[[Schedule], SendingLane | Messages | progress_litmus.Progress]] = {
    "lane": SendingLane,
    "messages": Messages,
    "progress": progress_litmus.Progress,
}


def no_fence() -> None:
    """The canary of the sleeping protocol."""
    atomics.fence = lambda: None


def tail_before_body() -> None:
    """The canary of publishing: the tail is stored before the entry is there."""
    fill = ring.fill_send

    def early(arena: Any, at: int, seq: int, form: Any, payload: Any) -> int:  # noqa: ANN401
        size = (layout.ENTRY_BYTES + payload[1] + payload[3] + 7) & ~7
        tail_at = layout.WRITER_LANE_AT + layout.LANE_UP_TAIL
        atomics.store_release(arena, tail_at, atomics.load_acquire(arena, tail_at) + size)
        atomics.load_acquire(arena, tail_at)
        return fill(arena, at, seq, form, payload)

    ring.fill_send = early


def no_second_look() -> None:
    """The canary of arming: the flag is raised, but the word is not looked at again."""
    arm = ring.arm

    def hasty(memory: np.ndarray, flag_at: int, flag: int, word_at: int, seen: int) -> int:
        arm(memory, flag_at, flag, word_at, seen)
        return 1

    ring.arm = hasty


PLANTS = {
    "no_fence": no_fence,
    "tail_before_body": tail_before_body,
    "no_second_look": no_second_look,
    "started_before_bits": progress_litmus.started_before_bits,
    "bits_before_started": progress_litmus.bits_before_started,
}


def run(name: str, seed: int, *, store_buffers: bool, kill_at: int = 0) -> int:
    """One schedule; returns the client's accesses. Raises what it finds."""
    schedule = Schedule(seed, store_buffers=store_buffers)
    program = PROGRAMS[name](schedule)
    schedule.thread("client", program.client, kill_at=kill_at)
    schedule.thread("agent", program.agent)
    schedule.run()
    if kill_at:
        program.check_after_death()
    else:
        program.check()
    return schedule.steps_of("client")


def main() -> None:
    """Run many schedules; or with --kill, one per access of the client at which it dies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--seeds", default="0:100")
    parser.add_argument("--kill", action="store_true", help="let the client die at every access")
    parser.add_argument("--plant", choices=PLANTS)
    wanted = parser.parse_args()
    if wanted.plant:
        PLANTS[wanted.plant]()
    first, last = (int(number) for number in wanted.seeds.split(":"))
    count = 0
    for seed in range(first, last):
        kill_at = 0
        while True:
            count += 1
            kill_at += wanted.kill
            try:
                steps = run(wanted.program, seed, store_buffers=seed % 2 == 1, kill_at=kill_at)
            except BaseException as error:
                plant = f" --plant {wanted.plant}" if wanted.plant else ""
                kill = " --kill" if wanted.kill else ""
                print(
                    f"seed {seed} fails (client killed at {kill_at}):"
                    f" {type(error).__name__}: {error}\n"
                    f"replay: NUMBA_DISABLE_JIT=1 python -m tests.sim.litmus {wanted.program}"
                    f" --seeds {seed}:{seed + 1}{kill}{plant}"
                )
                sys.exit(1)
            if not wanted.kill or steps < kill_at:
                break
    print(f"{count} schedules")


if __name__ == "__main__":
    main()
