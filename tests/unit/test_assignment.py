"""Who gets which queue."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.shm import groupwire
from gantrymq.workers.groups import assignment
from gantrymq.workers.groups.assignment import outcome
from tests.support.faults import FaultPlan
from tests.support.groups_rig import Rig, only


def assign(*given: Any) -> dict[int, int]:  # noqa: ANN401
    return outcome(assignment.assign(*given))


def assign_average(*given: Any) -> dict[int, int]:  # noqa: ANN401
    return outcome(assignment.assign_average(*given))


def test_a_newcomer_takes_only_what_is_due_to_it() -> None:
    before = assign({0: range(8)}, {1: {0}}, {})
    after = assign({0: range(8)}, {1: {0}, 2: {0}}, before)
    assert Counter(after.values()) == {1: 4, 2: 4}
    assert sum(before[queue] != after[queue] for queue in range(8)) == 4


def test_more_members_than_queues_leaves_some_without() -> None:
    result = assign({0: [7]}, {1: {0}, 2: {0}, 3: {0}}, {7: 2})
    assert result == {7: 2}


def test_a_queue_goes_only_to_subscribers_of_its_topic() -> None:
    result = assign({0: [0, 1], 1: [2, 3]}, {1: {0}, 2: {1}}, {0: 2, 2: 1})
    assert result == {0: 1, 1: 1, 2: 2, 3: 2}


def test_a_topic_without_subscribers_is_left_out() -> None:
    assert assign({0: [0], 1: [1]}, {5: {1}}, {0: 5}) == {1: 5}


def test_the_odd_queue_of_a_shared_pool_goes_to_the_less_loaded() -> None:
    result = assign({0: [0, 1], 1: [2, 3, 4]}, {1: {0, 1}, 2: {1}}, {})
    assert Counter(result.values()) == {1: 3, 2: 2}


topics = st.dictionaries(st.integers(0, 3), st.integers(0, 9), min_size=1)
members = st.dictionaries(st.integers(1, 6), st.sets(st.integers(0, 3)))


@given(topics, members, members)
def test_shares_differ_by_one_and_movement_is_least(
    counts: dict[int, int], first: dict[int, set[int]], second: dict[int, set[int]]
) -> None:
    queues_of = {topic: range(topic * 10, topic * 10 + count) for topic, count in counts.items()}
    owned = assign(queues_of, first, {})
    result = assign(queues_of, second, owned)
    by_subscribers: dict[frozenset[int], list[int]] = {}
    for topic, queues in queues_of.items():
        subscribers = frozenset(m for m, wanted in second.items() if topic in wanted)
        if subscribers:
            by_subscribers.setdefault(subscribers, []).extend(queues)
    assert sorted(result) == sorted(q for pool in by_subscribers.values() for q in pool)
    for subscribers, pool in by_subscribers.items():
        shares = sorted(sum(result[q] == m for q in pool) for m in subscribers)
        assert shares[-1] - shares[0] <= 1
        kept = sum(owned.get(q) == result[q] for q in pool)
        assert kept == most_that_could_stay(pool, subscribers, owned)


def most_that_could_stay(
    pool: list[int], subscribers: frozenset[int], owned: dict[int, int]
) -> int:
    """Brute force over who gets the odd ones: the best sum of what each may keep."""
    base, extra = divmod(len(pool), len(subscribers))
    held = [sum(owned.get(q) == m for q in pool) for m in subscribers]
    gains = sorted((min(h, base + 1) - min(h, base) for h in held), reverse=True)
    return sum(min(h, base) for h in held) + sum(gains[:extra])


def test_the_average_strategy_is_rocketmqs() -> None:
    """CQ-46, AVG: neighbouring queues, the first members have one more, whoever had them."""
    spread = assign_average({0: range(10, 18)}, {3: {0}, 1: {0}, 2: {0}})
    assert spread == dict(zip(range(10, 18), [1, 1, 1, 2, 2, 2, 3, 3], strict=True))
    assert assign_average({0: [0, 1]}, {1: {0}, 2: {0}, 3: {0}}) == {0: 1, 1: 2}
    assert assign_average({0: [0, 1, 2, 3]}, {1: {0}, 2: {0}}) == {0: 1, 1: 1, 2: 2, 3: 2}


def test_the_average_strategy_goes_topic_by_topic() -> None:
    """CQ-46: only subscribers count, and each topic begins with the first member."""
    spread = assign_average({0: [0], 1: [1, 2, 3], 2: [4]}, {1: {0, 1}, 2: {1}})
    assert spread == {0: 1, 1: 1, 2: 1, 3: 2}


@pytest.mark.parametrize(
    ("first", "spread"),
    [("sticky", [{0, 1}, {3, 4}, {2, 5}]), ("average", [{0, 1}, {2, 3}, {4, 5}])],
)
def test_members_of_a_group_have_one_strategy(first: str, spread: list[set[int]]) -> None:
    """CQ-46 by name; another one, or none that exists, is refused as another subscription is."""
    rig = Rig(FaultPlan(), orders=6)
    hands = []
    for _ in range(3):
        hands.append(rig.attach())
        hands[-1].join(assignment=first)
        for hand in hands:
            hand.listen()
            hand.release_revoked()
    for hand in hands:
        hand.listen()
    assert [set(hand.leases) for hand in hands] == spread
    second = "average" if first == "sticky" else "sticky"
    other = rig.attach()
    refused = only(other.join(assignment=second), groupwire.Refused)
    assert refused.error == "GroupIllegal"
    assert f"assignment {first!r}; this one wants {second!r}" in refused.text
    assert "'best' is no" in only(other.join(assignment="best"), groupwire.Refused).text
    other.join(queues=[5])  # by hand: it takes no part
    hands[2].listen()
    assert hands[2].revoked == {5}
