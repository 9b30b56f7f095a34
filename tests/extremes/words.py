"""Words of arenas: any value at any moment, while agents read them and others work."""

from __future__ import annotations

import random
from collections.abc import Iterator

from gantrymq.shm import layout
from gantrymq.shm.structs import Struct
from tests.extremes.honest import Honest
from tests.extremes.requests import UNIONS, Hostile
from tests.support.extremes import NUMBERS
from tests.support.sweptwords import EXTENSIONS, lanes_of

#: Words of one session, and how many sessions there are at once.
OF_ONE = 128
AT_ONCE = 16


def words_of(hostile: Hostile) -> list[tuple[int, int]]:
    """Where words that somebody reads are, and their sizes: header, tables, lanes, rings."""
    plan = hostile.session.plan
    lanes = lanes_of(plan)
    places = [(layout.ARENA, 0), *((layout.LANE, lane.control) for lane in lanes.values())]
    places += [(layout.PROGRESS, layout.PROGRESS_AT + n * layout.PROGRESS_BYTES) for n in range(4)]
    places += [(layout.ROUTE, layout.ROUTES_AT + n * layout.ROUTE_BYTES) for n in range(4)]
    places += [(layout.ENTRY, plan.writer.up + at) for at in (0, 48, 96)]
    behind = plan.writer.up + layout.ENTRY_BYTES
    places += [(struct, behind) for some in EXTENSIONS.values() for struct in some]
    places += [(layout.COMPLETION, plan.writer.down + at) for at in (0, 56)]
    for name in lanes.keys() - {"writer"}:
        places += [(layout.MESSAGE, lanes[name].up), (layout.MESSAGE, lanes[name].down)]
    found = [word for struct, at in places for word in _fields(struct, at)]
    found += [(layout.INTEREST_AT + 4 * n, 4) for n in range(16)]
    return found


def _fields(struct: Struct, start: int) -> Iterator[tuple[int, int]]:
    for field in struct.fields:
        at = start + struct.offset(field.name)
        if isinstance(field.type, str):
            yield at, field.size
        else:
            yield from ((place, 1) for place in range(at, at + field.size))


def spoil(hostile: Hostile, dice: random.Random, places: list[tuple[int, int]]) -> None:
    """Set one word, or anything in the arena."""
    if dice.random() < 0.1:
        at, size = dice.randrange(hostile.session.plan.size // 8) * 8, 8
    else:
        at, size = dice.choice(places)
    way = dice.randrange(3)
    if way == 0:
        number = dice.choice(NUMBERS)
    elif way == 1:
        number = dice.getrandbits(8 * size)
    else:  # near what is there
        old = int.from_bytes(hostile.session.arena[at : at + size].tobytes(), "little")
        number = (
            old + dice.choice((-8, -1, 1, 8, 48, 4096))
            if dice.random() < 0.5
            else old ^ (1 << dice.randrange(8 * size))
        )
    hostile.write(at, (number & ((1 << 8 * size) - 1)).to_bytes(size, "little"))


def play(honest: Honest, count: int, seed: int) -> Iterator[int]:
    """Set so many words; yields how many there were, after each few sessions."""
    dice = random.Random(seed)
    done = 0
    places: list[tuple[int, int]] = []
    while done < count:
        hostiles = [Hostile(honest.broker.home, dice) for _ in range(AT_ONCE)]
        places = places or words_of(hostiles[0])
        for hostile in hostiles:  # something to work on, in all rings
            hostile.send(8)
            for lane in UNIONS:
                hostile.ask(lane, 4)
        for number in range(OF_ONE * AT_ONCE):
            hostile = dice.choice(hostiles)
            spoil(hostile, dice, places)
            done += 1
            if number % AT_ONCE == 0:
                hostile.ring()
        for hostile in hostiles:
            hostile.session.close()
        yield done
