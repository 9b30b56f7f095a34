"""Which member gets which queue: a pure function, balanced first and sticky second.

Topics with the same subscribers are one pool. Within a pool shares differ by at most one, and as
many queues as that allows stay where they are. Or, where a group asks for it, as RocketMQ's clients
do by default (CQ-46): each member has neighbouring queues of each topic, whoever had them before.
There each client computes it alone, and differs while views differ; here `groups` decides for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping


def assign(
    queues_of: Mapping[int, Iterable[int]],
    subscribed: Mapping[int, Collection[int]],
    owned: Mapping[int, int],
) -> dict[int, int]:
    """Return queue -> member.

    `queues_of` maps topics to their queues, `subscribed` members to topics, `owned` queues to the
    members that hold them now. Queues of topics without a subscriber are left out.
    """
    result: dict[int, int] = {}
    load: Counter[int] = Counter()
    for members, queues in _pools(queues_of, subscribed):
        share = _assign_pool(queues, members, owned, load)
        load.update(share.values())
        result |= share
    return result


def assign_average(
    queues_of: Mapping[int, Iterable[int]], subscribed: Mapping[int, Collection[int]]
) -> dict[int, int]:
    """Return queue -> member, each topic by itself (CQ-46, AVG). Arguments as `assign` has them."""
    result: dict[int, int] = {}
    for topic in sorted(queues_of):
        queues = sorted(queues_of[topic])
        members = sorted(m for m, topics in subscribed.items() if topic in topics)
        for index, member in enumerate(members):
            rest = len(queues) % len(members)
            gets_more = rest > 0 and index < rest
            size = len(queues) // len(members) + gets_more
            if len(queues) <= len(members):
                size = 1
            start = index * size if gets_more else index * size + rest
            result |= dict.fromkeys(queues[start : start + size], member)
    return result


def _pools(
    queues_of: Mapping[int, Iterable[int]], subscribed: Mapping[int, Collection[int]]
) -> list[tuple[tuple[int, ...], list[int]]]:
    pools: dict[tuple[int, ...], list[int]] = {}
    for topic in sorted(queues_of):
        members = tuple(sorted(m for m, topics in subscribed.items() if topic in topics))
        if members:
            pools.setdefault(members, []).extend(queues_of[topic])
    # Pools of few members first: those of many can then even out what they left uneven.
    return sorted(
        ((members, sorted(queues)) for members, queues in pools.items()),
        key=lambda pool: (len(pool[0]), pool[0]),
    )


def _assign_pool(
    queues: list[int], members: tuple[int, ...], owned: Mapping[int, int], load: Counter[int]
) -> dict[int, int]:
    held: dict[int, list[int]] = {member: [] for member in members}
    for queue in queues:
        if owned.get(queue) in held:
            held[owned[queue]].append(queue)
    base, extra = divmod(len(queues), len(members))
    # One more goes to those who hold most: taking less away moves least.
    ranked = sorted(members, key=lambda m: (-len(held[m]), load[m], m))
    quota = {member: base + (rank < extra) for rank, member in enumerate(ranked)}
    result = {queue: member for member in members for queue in held[member][: quota[member]]}
    room = [m for m in members for _ in range(quota[m] - min(quota[m], len(held[m])))]
    free = [queue for queue in queues if queue not in result]
    result.update(zip(free, room, strict=True))
    return result
