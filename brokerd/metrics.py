"""The board as Prometheus metrics, by one collector that reads memory and asks nobody.

Groups' offsets come from `config/consumerOffset.json`, which is at most five seconds old.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gantrymq.brokerd.delays import Delays, dead_letters
from gantrymq.brokerd.lags import lags
from gantrymq.shm import layout
from gantrymq.shm.codes import BrokerState, Role
from gantrymq.shm.limits import LATENESS_MS
from gantrymq.workers.groups.offsetfile import read_offsets

if TYPE_CHECKING:
    from gantrymq.shm.board import Board
    from gantrymq.shm.storage import Storage

POSITIONS: Final = {
    "low": layout.BOARD_LOW,
    "appended": layout.BOARD_APPENDED,
    "settled": layout.BOARD_SETTLED,
    "durable": layout.BOARD_DURABLE,
    "dispatched": layout.BOARD_DISPATCHED,
    "indexed": layout.BOARD_INDEXED,
}
_AGENT_COUNTERS: Final = {
    "heartbeat": ("heartbeats", "Duty cycles; one that stands still is an agent that hangs."),
    "busy": ("busy_cycles", "Duty cycles that found work."),
    "work": ("work", "Units of work done: records, syncs, requests."),
    "refused": ("refused", "Entries or requests refused."),
    "bytes": ("handled_bytes", "Bytes of records handled."),
    "faults": (
        "cut_off_sessions",
        "Sessions cut off for a broken rule or an end of consume_timeout.",
    ),
    "restarts": ("restarts", "Times that it was replaced since the broker started."),
}


class BoardCollector(Collector):
    """Everything that a board shows; `storage` is the store behind it."""

    def __init__(self, board: Board, storage: Storage) -> None:
        self._board = board
        self._storage = storage

    def describe(self) -> Iterator[Metric]:
        """No names beforehand: to register would read the board once more for them."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All families, read now."""
        yield from self._broker()
        yield from self._log()
        yield from self._transactions()
        yield from self._delays()
        yield from self._dead_letters()
        yield from self._agents()
        yield from self._queues()
        yield from self._groups()

    def _broker(self) -> Iterator[Metric]:
        board = self._board
        state = GaugeMetricFamily("gantrymq_state", "1 for the broker's state.", labels=["state"])
        now = board.half(layout.BOARD_STATE)
        for each in BrokerState:
            state.add_metric([each.name.lower()], float(each == now))
        yield state
        numbers = {
            "failed_errno": ("errno behind the state failed.", layout.BOARD_FAILED_ERRNO),
            "sessions": ("Attached sessions.", layout.BOARD_SESSION_COUNT),
            "topic_slots": (
                "Topic slots that were ever used, of topics_max; deleted topics leave theirs.",
                layout.BOARD_TOPIC_COUNT,
            ),
            "queue_slots": (
                "Queue slots that were ever used, of board_queues_max; likewise.",
                layout.BOARD_QUEUE_COUNT,
            ),
        }
        for name, (text, offset) in numbers.items():
            yield GaugeMetricFamily(f"gantrymq_{name}", text, value=board.half(offset))
        yield GaugeMetricFamily(
            "gantrymq_start_time_seconds", "Unix time of the start.", value=board.started_ms / 1000
        )

    def _log(self) -> Iterator[Metric]:
        board = self._board
        place = GaugeMetricFamily(
            "gantrymq_log_position_bytes", "Positions in the log.", labels=["position"]
        )
        for name, offset in POSITIONS.items():
            if (position := board.word(offset)) >= 0:  # -1: no index is kept
                place.add_metric([name], position)
        yield place
        yield GaugeMetricFamily(
            "gantrymq_log_segments", "Segments of the log.", value=board.segments
        )
        yield GaugeMetricFamily(
            "gantrymq_index_files", "Index files.", value=len(self._storage.list("index"))
        )
        yield GaugeMetricFamily(
            "gantrymq_disk_free_bytes",
            "Space left for the broker on the store's disk.",
            value=self._storage.free_bytes(),
        )

    def _transactions(self) -> Iterator[Metric]:
        board = self._board
        yield GaugeMetricFamily(
            "gantrymq_open_halves",
            "Half messages that nobody has decided.",
            value=board.word(layout.BOARD_OPEN_HALVES),
        )
        oldest = GaugeMetricFamily(
            "gantrymq_oldest_open_half_timestamp_seconds", "Unix time at which it was stored."
        )
        if stored_ms := board.word(layout.BOARD_OLDEST_HALF_MS):
            oldest.add_metric([], stored_ms / 1000)
        yield oldest
        yield GaugeMetricFamily(
            "gantrymq_given_up_halves",
            "Half messages given up, and not settled by an operator.",
            value=board.word(layout.BOARD_GIVEN_UP),
        )
        yield CounterMetricFamily(
            "gantrymq_transaction_checks",
            "Checks sent to producers of open transactions, since the broker started.",
            value=board.word(layout.BOARD_CHECKS_SENT),
        )

    def _delays(self) -> Iterator[Metric]:
        delays = Delays.of(self._board)
        pending = GaugeMetricFamily(
            "gantrymq_delayed_messages", "Messages that wait for their time.", labels=["kind"]
        )
        pending.add_metric(["level"], delays.levels)
        pending.add_metric(["timer"], delays.timers)
        yield pending
        yield CounterMetricFamily(
            "gantrymq_delayed_delivered",
            "Delayed messages delivered since the broker started.",
            value=delays.delivered,
        )
        late = HistogramMetricFamily(
            "gantrymq_delivery_lateness_seconds",
            "From the time of a delayed message to its record in its topic.",
        )
        bounds = [*(str(bound / 1000) for bound in LATENESS_MS), "+Inf"]
        buckets = list(zip(bounds, accumulate(delays.counts), strict=True))
        late.add_metric([], buckets, delays.late_sum_ms / 1000)
        yield late
        yield GaugeMetricFamily(
            "gantrymq_delivery_lateness_max_seconds",
            "The most of it since the broker started.",
            value=delays.late_max_ms / 1000,
        )

    def _dead_letters(self) -> Iterator[Metric]:
        letters = GaugeMetricFamily(
            "gantrymq_dead_letters", "Dead letters that were not purged.", labels=["group"]
        )
        resent = GaugeMetricFamily(
            "gantrymq_dead_letters_resent", "Those of them sent again.", labels=["group"]
        )
        for row in dead_letters(self._board, self._storage):
            letters.add_metric([row.group], row.messages)
            resent.add_metric([row.group], row.resent)
        yield letters
        yield resent

    def _agents(self) -> Iterator[Metric]:
        slots = {role.name.lower(): self._board.process(role) for role in Role}
        slots = {name: slot for name, slot in slots.items() if slot["started_ms"]}
        up = GaugeMetricFamily("gantrymq_agent_up", "1 while it has a process.", labels=["agent"])
        started = GaugeMetricFamily(
            "gantrymq_agent_start_time_seconds", "Unix time of its start.", labels=["agent"]
        )
        for agent, slot in slots.items():
            up.add_metric([agent], float(slot["pid"] > 0))
            started.add_metric([agent], slot["started_ms"] / 1000)
        yield up
        yield started
        slots.pop("supervisor", None)  # it has no duty cycle that would be counted
        for field, (name, text) in _AGENT_COUNTERS.items():
            counter = CounterMetricFamily(f"gantrymq_agent_{name}", text, labels=["agent"])
            for agent, slot in slots.items():
                counter.add_metric([agent], slot[field])
            yield counter

    def _queues(self) -> Iterator[Metric]:
        fields = {
            "min_offset": "First message that consumers may read.",
            "max_offset": "Consumers may read messages below.",
            "next_offset": "Offset of the next record.",
        }
        labels = ["topic", "queue"]
        families = {
            name: GaugeMetricFamily(f"gantrymq_queue_{name}", text, labels=labels)
            for name, text in fields.items()
        }
        for topic in self._board.topics():
            if not topic.perm:
                continue
            for queue_id in range(topic.queue_count):
                slot = self._board.queue(topic.queue_base + queue_id)
                for name, family in families.items():
                    family.add_metric([topic.name, str(queue_id)], slot[name])
        yield from families.values()

    def _groups(self) -> Iterator[Metric]:
        labels = ["group", "topic", "queue"]
        offset = GaugeMetricFamily(
            "gantrymq_group_offset", "Next offset to consume, as committed.", labels=labels
        )
        lag = GaugeMetricFamily(
            "gantrymq_group_lag_messages", "Messages not yet committed.", labels=labels
        )
        for row in lags(self._board, read_offsets(self._storage)):
            names = [row.group, row.topic, str(row.queue)]
            offset.add_metric(names, row.offset)
            lag.add_metric(names, row.lag)
        yield offset
        yield lag


def render(board: Board, storage: Storage) -> bytes:
    """The text format of Prometheus (UTF-8)."""
    registry = CollectorRegistry()
    registry.register(BoardCollector(board, storage))
    return bytes(generate_latest(registry))
