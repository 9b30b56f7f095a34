"""What an object holds: items of all containers that can be reached from it, by owner and name."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def held(root: object, modules: str) -> Counter[str]:
    """Items of containers, and bytes of arrays, below `root`, by class and attribute.

    Objects are followed whose class is in a module of that prefix; what is reached twice counts
    once.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    ahead: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while ahead:
        name, one = ahead.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray):
            found[f"{name} bytes"] += one.nbytes if one.base is None else 0
        elif isinstance(one, _CONTAINERS):
            found[name] += len(one)
            ahead.extend((name, item) for item in _items(one))
        elif type(one).__module__.startswith(modules):
            ahead.extend((f"{type(one).__name__}.{part}", item) for part, item in _parts(one))
    return found


def _items(container: Any) -> Iterator[Any]:  # noqa: ANN401
    if isinstance(container, dict):
        yield from container.keys()
        yield from container.values()
    else:
        yield from container


def _parts(one: object) -> Iterator[tuple[str, Any]]:
    names = dict.fromkeys(vars(one) if hasattr(one, "__dict__") else ())
    for owner in type(one).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        names |= dict.fromkeys((slots,) if isinstance(slots, str) else slots)
    for name in names:
        if hasattr(one, name):
            yield name, getattr(one, name)
