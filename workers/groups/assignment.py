"""Which member gets which queue: a pure function, balanced first and sticky second.

Topics with the same subscribers are one pool. Within a pool shares differ by at most one, and as
many queues as that allows stay where they are. Or, where a group asks for it, as RocketMQ's clients
do by default (CQ-46): each member has neighbouring queues of each topic, whoever had them before.
There each client computes it alone, and differs while views differ; here `groups` decides for all.
For many queues it takes its time: both are generators that yield how many queues they have looked
at since, and return the answer, so that an agent may do something else meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping
from typing import Final

#: Queue -> member, in the end; what is yielded before is work that was done.
Steps = Generator[int, None, dict[int, int]]
#: Queues that a step looks at, as a rule.
STEP: Final = 256


def assign(
    queues_of: Mapping[int, Iterable[int]],
    subscribed: Mapping[int, Collection[int]],
    owned: Mapping[int, int],
) -> Steps:
    """Return queue -> member.

    `queues_of` maps topics to their queues, `subscribed` members to topics, `owned` queues to the
    members that hold them now. Queues of topics without a subscriber are left out.
    """
    result: dict[int, int] = {}
    load: Counter[int] = Counter()
    for members, queues in _pools(queues_of, subscribed):
        share = yield from _assign_pool(queues, members, owned, load)
        load.update(share.values())
        result |= share
    return result


def assign_average(
    queues_of: Mapping[int, Iterable[int]], subscribed: Mapping[int, Collection[int]]
) -> Steps:
    """Return queue -> member, each topic by itself (CQ-46, AVG). Arguments as `assign` has them."""
    result: dict[int, int] = {}
    subscribers = _subscribers(subscribed)
    for topic in sorted(queues_of):
        queues = sorted(queues_of[topic])
        members = subscribers.get(topic, ())
        # Of more members than queues the first have one each.
        for index, member in enumerate(members[: len(queues)]):
            rest = len(queues) % len(members)
            gets_more = rest > 0 and index < rest
            size = len(queues) // len(members) + gets_more
            start = index * size if gets_more else index * size + rest
            result |= dict.fromkeys(queues[start : start + size], member)
        yield 1 + len(queues)
    return result


def _subscribers(subscribed: Mapping[int, Collection[int]]) -> dict[int, tuple[int, ...]]:
    """Topic -> members in order. Members of one subscription, as a rule all, are looked at once."""
    alike: dict[frozenset[int], list[int]] = {}
    for member, topics in subscribed.items():
        alike.setdefault(frozenset(topics), []).append(member)
    wanted_by: dict[int, list[frozenset[int]]] = {}
    for subscription in alike:
        for topic in subscription:
            wanted_by.setdefault(topic, []).append(subscription)
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    result = {}
    for topic, subscriptions in wanted_by.items():
        mark = tuple(map(id, subscriptions))  # the same for topics with the same subscribers
        if mark not in found:
            found[mark] = tuple(sorted(m for one in subscriptions for m in alike[one]))
        result[topic] = found[mark]
    return result


def _pools(
    queues_of: Mapping[int, Iterable[int]], subscribed: Mapping[int, Collection[int]]
) -> list[tuple[tuple[int, ...], list[int]]]:
    pools: dict[tuple[int, ...], list[int]] = {}
    subscribers = _subscribers(subscribed)
    for topic in sorted(queues_of):
        if topic in subscribers:
            pools.setdefault(subscribers[topic], []).extend(queues_of[topic])
    # Pools of few members first: those of many can then even out what they left uneven.
    return sorted(
        ((members, sorted(queues)) for members, queues in pools.items()),
        key=lambda pool: (len(pool[0]), pool[0]),
    )


def _assign_pool(
    queues: list[int], members: tuple[int, ...], owned: Mapping[int, int], load: Counter[int]
) -> Steps:
    held: dict[int, list[int]] = {member: [] for member in members}
    for number, queue in enumerate(queues, 1):
        if owned.get(queue) in held:
            held[owned[queue]].append(queue)
        if number % STEP == 0:
            yield STEP
    base, extra = divmod(len(queues), len(members))
    # One more goes to those who hold most: taking less away moves least.
    ranked = sorted(members, key=lambda m: (-len(held[m]), load[m], m))
    quota = {member: base + (rank < extra) for rank, member in enumerate(ranked)}
    result = {queue: member for member in members for queue in held[member][: quota[member]]}
    yield STEP + len(queues) // 8
    room = [m for m in members for _ in range(quota[m] - min(quota[m], len(held[m])))]
    free = [queue for queue in queues if queue not in result]
    result.update(zip(free, room, strict=True))
    yield STEP + len(queues) // 8
    return result


def outcome(steps: Steps) -> dict[int, int]:
    """The answer, all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: dict[int, int] = end.value
            return found
