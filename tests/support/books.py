"""How many entries an agent keeps in each of its tables: dicts, sets, lists and deques."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

OURS = ("gantrymq.",)
CONTAINERS = (dict, set, frozenset, list, deque)


def books(agent: object) -> dict[str, int]:
    """Entries of each container that is reached from an agent by attributes, by its way there."""
    found: dict[str, int] = {}
    _walk(agent, type(agent).__name__, found, set())
    return found


def grown(before: dict[str, int], after: dict[str, int], slack: int = 8) -> dict[str, int]:
    """Containers that have more entries by more than a few, and how many they have."""
    return {way: count for way, count in after.items() if count > before.get(way, 0) + slack}


def _walk(item: object, way: str, found: dict[str, int], seen: set[int]) -> None:
    if id(item) in seen:
        return
    if isinstance(item, CONTAINERS):
        seen.add(id(item))
        found[way] = found.get(way, 0) + len(item)
        inner = list(item.values()) if isinstance(item, dict) else list(item)
        for value in inner:
            _walk(value, f"{way}[]", found, seen)
    elif type(item).__module__.startswith(OURS):
        seen.add(id(item))
        for name, value in _attributes(item):
            _walk(value, f"{way}.{name}", found, seen)


def _attributes(item: object) -> Iterator[tuple[str, object]]:
    yield from getattr(item, "__dict__", {}).items()
    for kind in type(item).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(item, name):
                yield name, getattr(item, name)
