"""What was noted last, by key, so many at most."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

K = TypeVar("K")
V = TypeVar("V")


class Latest(Generic[K, V]):
    """The oldest goes for each that is too many: never many at one time, which takes long."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[K, V] = OrderedDict()

    def __iter__(self) -> Iterator[K]:
        """Keys."""
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: K) -> V | None:
        """What was noted last of a key; None: nothing, or it is too long ago."""
        return self._found.get(key)

    def note(self, key: K, value: V) -> None:
        """Remember a key's value as the latest."""
        found = self._found
        if key in found:
            found.move_to_end(key)
        found[key] = value
        if len(found) > self._most:
            found.popitem(last=False)

    def note_all(self, rows: Iterable[tuple[K, V]]) -> None:
        """The same of several, of keys that are new."""
        found = self._found
        found.update(rows)
        for _ in range(len(found) - self._most):
            found.popitem(last=False)

    def forget(self, key: K) -> None:
        """Nothing is known of a key any more."""
        self._found.pop(key, None)
