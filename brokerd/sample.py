"""One look at everything that moves, and the rates between two of them. Loads no numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psutil

from gantrymq.brokerd.delays import Delays
from gantrymq.brokerd.lags import Offsets, lags
from gantrymq.shm import layout
from gantrymq.shm.codes import BrokerState, Role

if TYPE_CHECKING:
    from gantrymq.shm.board import Board

#: An idle agent beats once a second.
_BEAT_S: Final = 1.5


@dataclass(slots=True)
class TopicCount:
    """Records of a topic: `sent` by next offsets, `shown` by max offsets, `kept` of them."""

    queues: int = 0
    sent: int = 0
    shown: int = 0
    kept: int = 0


@dataclass(slots=True)
class GroupCount:
    """A group in a topic: offsets added up over its queues."""

    queues: int = 0
    offset: int = 0
    lag: int = 0


@dataclass(slots=True)
class AgentCount:
    """An agent's counters, and what its process took."""

    pid: int
    restarts: int
    work: int
    bytes: int
    heartbeat: int
    cpu_s: float = 0.0
    memory: int = 0


@dataclass(slots=True)
class Sample:
    """What was seen at `time_s` (monotonic)."""

    time_s: float
    state: str
    sessions: int
    appended: int
    durable: int
    dispatched: int
    indexed: int
    open_halves: int = 0
    given_up: int = 0
    delayed: int = 0
    delivered: int = 0
    late_p99_ms: int | None = None
    topics: dict[str, TopicCount] = field(default_factory=dict)
    groups: dict[tuple[str, str], GroupCount] = field(default_factory=dict)
    agents: dict[str, AgentCount] = field(default_factory=dict)


def take(board: Board, offsets: Offsets, time_s: float) -> Sample:
    """Look at the board, at committed offsets, and at the broker's processes."""
    sample = Sample(
        time_s,
        BrokerState(board.half(layout.BOARD_STATE)).name.lower(),
        board.half(layout.BOARD_SESSION_COUNT),
        board.word(layout.BOARD_APPENDED),
        board.word(layout.BOARD_DURABLE),
        board.word(layout.BOARD_DISPATCHED),
        board.word(layout.BOARD_INDEXED),
        board.word(layout.BOARD_OPEN_HALVES),
        board.word(layout.BOARD_GIVEN_UP),
    )
    delays = Delays.of(board)
    sample.delayed, sample.delivered = delays.levels + delays.timers, delays.delivered
    sample.late_p99_ms = delays.late_within_ms(0.99)
    for topic in board.topics():
        if topic.perm and not topic.system:
            sample.topics[topic.name] = _topic(board, topic.queue_base, topic.queue_count)
    for row in lags(board, offsets):
        group = sample.groups.setdefault((row.group, row.topic), GroupCount())
        group.queues += 1
        group.offset += row.offset
        group.lag += row.lag
    for role in Role:
        slot = board.process(role)
        if slot["started_ms"]:
            sample.agents[role.name.lower()] = _agent(slot)
    return sample


def _topic(board: Board, base: int, count: int) -> TopicCount:
    found = TopicCount(count)
    for queue in range(base, base + count):
        at = board.queue_at(queue)
        shown = board.word(at + layout.QUEUE_MAX_OFFSET)
        found.sent += board.word(at + layout.QUEUE_NEXT_OFFSET)
        found.shown += shown
        found.kept += shown - board.word(at + layout.QUEUE_MIN_OFFSET)
    return found


def _agent(slot: Mapping[str, int]) -> AgentCount:
    names = ("pid", "restarts", "work", "bytes", "heartbeat")
    found = AgentCount(**{name: slot[name] for name in names})
    if found.pid:
        try:
            process = psutil.Process(found.pid)
            times = process.cpu_times()
            found.cpu_s = times.user + times.system
            found.memory = process.memory_info().rss
        except psutil.Error:
            found.pid = 0  # it has just ended, or is another user's
    return found


def rates(before: Sample, now: Sample) -> dict[str, Any]:
    """What `top` shows: plain values; rates are per second, `cpu` in percent of one processor.

    `beats` is None where the interval is too short to tell.
    """
    seconds = max(now.time_s - before.time_s, 1e-9)

    def rate(new: int, old: int) -> float:
        return round(max(0, new - old) / seconds, 1)

    topics = []
    for name, topic in sorted(now.topics.items()):
        old = before.topics.get(name, topic)
        row = {"topic": name, "queues": topic.queues, "messages": topic.kept}
        topics.append(row | {"sent_per_s": rate(topic.sent, old.sent)})
    groups = []
    for key, group in sorted(now.groups.items()):
        past = before.groups.get(key, group)
        row = {"group": key[0], "topic": key[1], "queues": group.queues, "lag": group.lag}
        groups.append(row | {"committed_per_s": rate(group.offset, past.offset)})
    agents = []
    for name, agent in now.agents.items():
        was = before.agents.get(name, agent)
        row = {"agent": name, "pid": agent.pid, "restarts": agent.restarts}
        beats = agent.heartbeat != was.heartbeat or name == "supervisor"
        row |= {"beats": beats if beats or seconds >= _BEAT_S else None}
        row |= {"work_per_s": rate(agent.work, was.work)}
        row |= {"bytes_per_s": rate(agent.bytes, was.bytes), "rss_bytes": agent.memory}
        cpu = 100 * max(0.0, agent.cpu_s - was.cpu_s) / seconds if agent.pid == was.pid else 0.0
        agents.append(row | {"cpu": round(cpu, 1)})
    return {
        "seconds": round(seconds, 3),
        "state": now.state,
        "sessions": now.sessions,
        "log": {
            "appended": now.appended,
            "appended_per_s": rate(now.appended, before.appended),
            "durable_lag_bytes": now.appended - now.durable,
            "dispatch_lag_bytes": now.appended - now.dispatched,
            "index_lag_bytes": None if now.indexed < 0 else now.appended - now.indexed,
        },
        "transactions": {"open": now.open_halves, "given_up": now.given_up},
        "delayed": {
            "waiting": now.delayed,
            "delivered_per_s": rate(now.delivered, before.delivered),
            "late_p99_ms": now.late_p99_ms,
        },
        "topics": topics,
        "groups": groups,
        "agents": agents,
    }
