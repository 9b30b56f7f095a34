"""Each agent killed at each of its marks under load, and replaced alone (P2, P5, P6, P14, F2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.clients.home import store_of
from gantrymq.shm.codes import Role
from gantrymq.shm.marks import MARKS
from gantrymq.temporary import Broker
from tests.support import reached
from tests.support.agents import AGENTS, board_of, restarts_of, wait_until_shown
from tests.support.loads import Load
from tests.support.soon import TOPIC, SoonLoad
from tests.support.stores import require_sound
from tests.support.transactionload import TransactionLoad
from tests.support.watchdog import poll_until

AGENT_MARKS = sorted(name for name in MARKS if not name.startswith("recovery."))
#: At the first passing agents have hardly anything in hand.
PASSING = {"writer.before_roll": 2, "writer.after_roll": 2}
PASSING |= {name: 1 for name in AGENT_MARKS if name.endswith("_note") or name[:11] == "housekeeper"}
PASSING |= {name: 2 if "slots" in name else 1 for name in AGENT_MARKS if name[:7] == "indexer"}


@pytest.mark.parametrize("name", AGENT_MARKS)
def test_an_agent_that_dies_at_a_mark_is_replaced_alone(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start_broker: Callable[..., Broker],
) -> None:
    """Nothing is lost or doubled, every receipt is true, and the producer notices nothing."""
    part = name.partition(".")[0]
    role = Role.HOUSEKEEPER if part == "indexer" else Role[part.upper()]
    monkeypatch.setenv("GANTRYMQ_MARK", f"{name}:{PASSING.get(name, 5)}")
    monkeypatch.setenv("GANTRYMQ_MARKS_REACHED", str(tmp_path))
    broker = start_broker()
    if role is Role.SCHEDULER:
        _deliver_past_a_death(broker, name, tmp_path)
        return
    if role is Role.TXN_CHECKER:
        _decide_past_a_death(broker, name, tmp_path)
        return
    with Load(broker.home, name) as load:
        load.run_until((tmp_path / name).exists, f"an agent died at {name}")
        reached.record(name)
        poll_until(lambda: restarts_of(broker.home)[role] == 1, "it is replaced")
        load.run_until(lambda: True, "another round")
        load.finish()
        wait_until_shown(broker.home)
    assert restarts_of(broker.home) == {other: int(other == role) for other in AGENTS}
    broker.stop()
    assert broker.process.returncode == 0
    load.require_kept(require_sound(store_of(broker.home)))


def _deliver_past_a_death(broker: Broker, name: str, reached_in: Path) -> None:
    """The scheduler dies amid deliveries: each message is delivered once all the same."""
    with SoonLoad(broker.home) as load:

        def has_died() -> bool:
            load.round()
            return (reached_in / name).exists()

        poll_until(has_died, f"the scheduler died at {name}")
        reached.record(name)
        poll_until(lambda: restarts_of(broker.home)[Role.SCHEDULER] == 1, "it is replaced")
        load.round()
        wait_until_delivered(broker.home, len(load.bodies))
    assert restarts_of(broker.home) == {role: int(role == Role.SCHEDULER) for role in AGENTS}
    broker.stop()
    assert broker.process.returncode == 0
    load.require_delivered(require_sound(store_of(broker.home)))


def _decide_past_a_death(broker: Broker, name: str, reached_in: Path) -> None:
    """The txn-checker dies amid decisions: each transaction is committed once, or never (P7)."""
    with TransactionLoad(broker.home) as load:

        def has_died() -> bool:
            load.round()
            return (reached_in / name).exists()

        poll_until(has_died, f"the txn-checker died at {name}")
        reached.record(name)
        poll_until(lambda: restarts_of(broker.home)[Role.TXN_CHECKER] == 1, "it is replaced")
        load.round()
    assert restarts_of(broker.home) == {role: int(role == Role.TXN_CHECKER) for role in AGENTS}
    broker.stop()
    assert broker.process.returncode == 0
    load.require_decided(require_sound(store_of(broker.home)))


def wait_until_delivered(home: Path, count: int) -> None:
    """Until the queues of the topic hold so many."""
    board = board_of(home)

    def held() -> bool:
        [topic] = [topic for topic in board.topics() if topic.name == TOPIC]
        queues = range(topic.queue_base, topic.queue_base + topic.queue_count)
        return sum(board.queue(queue)["max_offset"] for queue in queues) >= count

    poll_until(held, f"{count} messages are delivered")
