"""Records that an agent cannot read: how often the broker's log names them."""

from __future__ import annotations

from collections import Counter

from gantrymq.workers.damage import NAMED_MAX, Damage
from tests.support.memory_sessions import MemorySessions
from tests.support.trials import mends


@mends("S77")
def test_a_record_is_named_once_however_many_there_are_and_however_often_they_are_met() -> None:
    """As by an agent that meets them at each of its steps. That there are more is told, once."""
    sessions = MemorySessions()
    damage = Damage(sessions)
    for _step in range(3):
        for position in range(3 * NAMED_MAX):
            damage.name(position)
    named = Counter(f["position"] for _, event, f in sessions.notes if event == "record_damaged")
    assert set(named.values()) == {1}
    assert set(named) == set(range(NAMED_MAX))
    others = [note for note in sessions.notes if note[1] != "record_damaged"]
    assert others == [("error", "more_records_damaged", {"named": NAMED_MAX})]
