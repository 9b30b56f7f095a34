"""What is remembered last: as many as it says, whoever notes them."""

from __future__ import annotations

import random

from gantrymq.workers.transactions.latest import Latest


def test_the_latest_are_known_whatever_was_before(seed: int) -> None:
    """Noted anew counts as noted last; several at once count in their order."""
    dice = random.Random(seed)
    latest: Latest[int, int] = Latest(8)
    order: list[tuple[int, int]] = []
    for number in range(500):
        key = dice.randrange(20)
        match dice.randrange(4):
            case 0:
                latest.forget(key)
                order = [one for one in order if one[0] != key]
            case 1:
                new = [(1000 + 100 * number + more, number) for more in range(dice.randrange(12))]
                latest.note_all(new)
                order += new
            case _:
                latest.note(key, number)
                order = [*(one for one in order if one[0] != key), (key, number)]
        order = order[-8:]
        assert [(key, latest.get(key)) for key in latest] == order
        assert len(latest) == len(order)
    assert latest.get(-1) is None
