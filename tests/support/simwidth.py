"""What a seed decides beside its schedule: sizes, profile, kinds of faults, and who is open when.

Each has dice of its own, so that what a seed draws for one does not change another.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

#: Of so many kinds of faults or more a run leaves some out.
MANY = 8
#: How much later than the first the last agent may be open.
SLOW_NS = 300_000_000
CHOICES: dict[str, tuple[object, ...]] = {
    "profile": ("standard", "small", "temporary"),
    "mapped_file_size_commit_log": (12 * 1024, 16 * 1024, 20 * 1024, 32 * 1024, 48 * 1024),
    "mapped_file_size_consume_queue": (20 * 16, 20 * 64, 20 * 65, 20 * 1000),
    "max_hash_slot_num": (1, 40, 97),
    "log_page_cache": (0, 4 * 1024, 8 * 1024, 1 << 20),
    "timer_precision_ms": (100, 500, 1000),
    "flush_interval_commit_log": (5, 20, 100, 200),
    "default_durability": ("written", "durable"),
}
#: Bytes of a client's rings, up and down.
RINGS = (4096, 4096, 8192, 32_768)


def dice_of(seed: int, what: str) -> random.Random:
    """Dice for one of a seed's decisions."""
    return random.Random(f"{what} of {seed}")


def settings_of(seed: int) -> dict[str, object]:
    """What a broker of this seed is set to; nothing in one of three."""
    dice = dice_of(seed, "sizes")
    if dice.random() < 1 / 3:
        return {}
    return {name: dice.choice(values) for name, values in CHOICES.items() if dice.random() < 0.5}


def rings_of(seed: int) -> tuple[int, int]:
    """Bytes of the rings of a client, up and down."""
    dice = dice_of(seed, "rings")
    return dice.choice(RINGS), dice.choice(RINGS)


def kinds_of(seed: int, faults: tuple[T, ...]) -> tuple[T, ...]:
    """The kinds of faults that a run of this seed meets: all, or some of many.

    What hides one kind is often another: a run without the one shows more of the other.
    """
    dice = dice_of(seed, "faults")
    if len(faults) < MANY or dice.random() < 1 / 3:
        return faults
    share = dice.choice([0.15, 0.3, 0.6])
    return tuple(fault for fault in faults if dice.random() < share) or (dice.choice(faults),)


def delays_of(dice: random.Random, roles: Sequence[T]) -> list[tuple[T, int]]:
    """In which order agents open, and how many ns later: none of them, one, or each by itself."""
    order = dice.sample(list(roles), len(roles))
    delays = [dice.randrange(SLOW_NS) for _ in order]
    late = dice.choice([0, 1, len(order)])
    return [(role, delays[at] if at < late else 0) for at, role in enumerate(order)]
