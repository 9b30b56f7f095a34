"""Where a step of an agent may stop at what it shares with others, beside board and storage.

Lanes, outlets, and whatever kernels work on arenas or the board: the product's calls are replaced
while a simulation takes steps, and are themselves again behind it. Product code has no switch for
this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NamedTuple

from gantrymq.brokerd import agents
from gantrymq.brokerd.lanes import Lane
from gantrymq.shm.controllane import ControlLane
from gantrymq.workers.groups.peer import Peer

#: Calls that read or write an arena themselves, or by one kernel.
CALLS: Final[dict[type, tuple[str, ...]]] = {
    Peer: ("adopt", "bump_revoked"),
    Lane: ("load_route",),
}
#: Kernels over arenas or the board, as agents and their outlets call them.
KERNELS: Final[dict[str, tuple[str, ...]]] = {
    "complete": ("tell_lanes",),
    "decide": ("has_room", "publish_decisions", "put_commits", "stage_entry"),
    "dispatch": ("advance", "dispatch_log", "index_topics"),
    "drain": ("drain_lanes", "look_at_lanes"),
    "endanswers": ("tell_ends",),
    "ends": ("publish_ends", "serve_ends", "take_ends"),
    "lanes": ("arm_lanes", "nap_lanes", "watch_lanes"),
    "message": ("publish_taken", "put_message", "take_message"),
    "parked": ("put_copies",),
    "progress": ("changed_slots",),
    "ready": ("put_entries",),
    "ring": ("arm", "publish_and_check", "take_completions", "wants_durable"),
    "visible": ("arm_reader", "publish_units", "publish_visible"),
}
#: Of one word each: nobody can tell what comes behind it from what comes before the next call.
ONE_WORD: Final[dict[type, tuple[str, ...]]] = {
    ControlLane: ("disarm", "has_more", "take"),
    Peer: ("uses_words",),
}
WORD_KERNELS: Final[dict[str, tuple[str, ...]]] = {
    "words": ("load_word", "store_half", "store_word")
}
#: Whose globals are looked at for kernels.
AGENTS: Final = ("gantrymq.brokerd.", "gantrymq.workers.")


class Place(NamedTuple):
    """A call that is replaced: an attribute of a class or of a module."""

    owner: Any
    name: str
    #: Others come behind it as well.
    twice: bool


def _places_of(kernels: dict[str, tuple[str, ...]], *, twice: bool) -> Iterator[Place]:
    """Each name by which an agent's module calls one of the kernels."""
    known = set()
    for module, names in kernels.items():
        found = import_module(f"gantrymq.shm.kernels.{module}")
        for name in names:
            known.add(id(getattr(found, name)))
            yield Place(found, name, twice)  # for who imports the module
    for module, found in sorted(sys.modules.items()):
        if module.startswith(AGENTS):
            yield from (
                Place(found, n, twice) for n, call in vars(found).items() if id(call) in known
            )


def _places() -> tuple[Place, ...]:
    agents.load_all()
    return (
        *(Place(owner, name, True) for owner, names in CALLS.items() for name in names),
        *(Place(owner, name, False) for owner, names in ONE_WORD.items() for name in names),
        *_places_of(KERNELS, twice=True),
        *_places_of(WORD_KERNELS, twice=False),
    )


#: Found while no planted bug is in any of them.
PLACES: Final = _places()


def _stopping(call: Any, pause: Callable[[], None], *, twice: bool) -> Any:  # noqa: ANN401
    """The same call, before which others may come."""
    if isinstance(call, property):
        return property(_stopping(call.fget, pause, twice=twice))

    def stops(*given: Any) -> Any:  # noqa: ANN401 - whatever it is given
        pause()
        return call(*given)

    def stops_twice(*given: Any) -> Any:  # noqa: ANN401
        pause()
        result = call(*given)
        pause()
        return result

    return stops_twice if twice else stops


@contextmanager
def stopping_at_lanes(pause: Callable[[], None]) -> Iterator[None]:
    """Within, each of PLACES calls `pause` before, and as a rule behind, what it does."""
    calls = [vars(place.owner)[place.name] for place in PLACES]
    for (owner, name, twice), call in zip(PLACES, calls, strict=True):
        setattr(owner, name, _stopping(call, pause, twice=twice))
    try:
        yield
    finally:
        for (owner, name, _twice), call in zip(PLACES, calls, strict=True):
            setattr(owner, name, call)
