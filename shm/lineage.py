"""Which store this is: what whoever keeps a position of its log keeps beside it.

`gantry/store.json` has a list of random ids, each with the position where it begins to count:

    "lineage": [["0f3c...", 0], ["a71e...", 73400320]]

The first is made once, at a store's first start. A copy by `store backup` gets one more when a
broker starts on it: up to there it has the log of the store that it was made of, behind it one of
its own. So a position of the first store that lies behind the copy's beginning is none of the copy,
though its log may be longer by now. The last id is the store's. A RocketMQ's store has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from gantrymq.shm.errors import Corrupt
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.jsonsum import sum_holds
from gantrymq.shm.jsontext import parse_json
from gantrymq.shm.storage import read_file
from gantrymq.shm.valueranges import is_offset

if TYPE_CHECKING:
    from gantrymq.shm.storage import Storage

FILE: Final = "gantry/store.json"
FIELD: Final = "lineage"
#: In a copy on which no broker has started yet: where its own log will begin.
COPIED_AT: Final = "copied_at"


@dataclass(frozen=True, slots=True)
class Lineage:
    """Ids and where each begins, rising; empty for a store without one."""

    branches: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """What a parsed `store.json` says. Raises ValueError."""
        found = content.get(FIELD, [])
        good = isinstance(found, list) and all(map(_is_branch, found))
        if not good or [begin for _, begin in found] != sorted(begin for _, begin in found):
            raise ValueError(f"{FIELD} is no list of ids and positions")
        return cls(tuple((name, begin) for name, begin in found))

    @property
    def store(self) -> str:
        """The store's id; "" without one."""
        return self.branches[-1][0] if self.branches else ""

    def holds(self, store: str, position: int) -> bool:
        """Whether the log up to a position is that of the store with an id."""
        ends = [begin for _, begin in self.branches[1:]]
        for (name, _), end in zip(self.branches, [*ends, None], strict=True):
            if name == store:
                return end is None or position <= end
        return False

    def begun(self, copied_at: int | None, fresh: str) -> Lineage:
        """The lineage once a broker has started, with `fresh` as the first id or that of a copy."""
        if self.branches and copied_at is None:
            return self
        return Lineage((*self.branches, (fresh, copied_at or 0)))

    def as_json(self) -> list[list[str | int]]:
        """The field's value."""
        return [[name, begin] for name, begin in self.branches]


def lineage_of(storage: Storage) -> Lineage:
    """A store's lineage; empty if no broker of ours has started on it. Raises Corrupt, OSError."""
    try:
        data = read_file(storage, FILE)
    except FileNotFoundError as error:
        require_ours(error)
        return Lineage()
    try:
        if sum_holds(data) is False:
            raise ValueError("its checksum differs")
        content = parse_json(data)
        return Lineage.of(content if isinstance(content, dict) else {})
    except ValueError as error:
        require_ours(error)
        text = f"{FILE} of {storage.root} is damaged, which says what store this is: {error}"
        raise Corrupt(text, path=FILE) from None


def _is_branch(found: object) -> bool:
    match found:
        case [str(), begin]:
            return is_offset(begin)
        case _:
            return False
