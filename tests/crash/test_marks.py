"""Each agent killed at each of its marks under load, and replaced alone (P2, P5, P6, P14, F2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clients.home import store_of
from gantrymq.temporary import Broker
from shm.codes import Role
from shm.marks import MARKS
from tests.support import reached
from tests.support.agents import AGENTS, restarts_of, wait_until_shown
from tests.support.loads import Load
from tests.support.stores import require_sound
from tests.support.watchdog import poll_until

AGENT_MARKS = sorted(name for name in MARKS if not name.startswith("recovery."))
#: At the first passing agents have hardly anything in hand.
PASSING = {"reader.after_sidecar": 1, "writer.before_roll": 2, "writer.after_roll": 2}
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
    role = Role.READER if part == "indexer" else Role[part.upper()]
    monkeypatch.setenv("GANTRYMQ_MARK", f"{name}:{PASSING.get(name, 5)}")
    monkeypatch.setenv("GANTRYMQ_MARKS_REACHED", str(tmp_path))
    broker = start_broker()
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
