"""Decisions that go up together: one op record names the halves of all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gantrymq.shm.kernels.decide import OP_NAME_BYTES, OP_REST_BYTES
from gantrymq.shm.transactionwire import End

if TYPE_CHECKING:
    from gantrymq.workers.transactions.decision import Decision

DECISIONS_MAX: Final = 1024
#: Halves that an op record should name at most; one decision more may go with them.
NAMES_MAX: Final = 16_384


@dataclass(slots=True)
class Batch:
    """What was staged, and is not published with its op record yet."""

    decisions: list[Decision] = field(default_factory=list)
    names: int = 0  # halves that the op record is to name

    @property
    def is_full(self) -> bool:
        """Whether its op record names enough."""
        return len(self.decisions) >= DECISIONS_MAX or self.names >= NAMES_MAX

    def add(self, decision: Decision) -> None:
        """All copies of a decision are put."""
        self.decisions.append(decision)
        self.names += len(decision.halves) if decision.named else 0

    def differs(self, decision: Decision) -> bool:
        """Whether a decision needs an op record of another kind."""
        named = next((one for one in self.decisions if one.named), None)  # all are of its kind
        return decision.named and named is not None and named.is_told != decision.is_told

    def op_room(self, decision: Decision) -> int:
        """Bytes that the op record takes at most in the ring if it names a decision as well."""
        if not (self.names or decision.named):
            return 0
        return OP_NAME_BYTES * (self.names + len(decision.halves)) + OP_REST_BYTES

    def op_record(self) -> tuple[bytes, int]:
        """Body of the op record, empty if it names nothing, and its `flag`."""
        commits: list[str] = []
        others: list[str] = []
        named = [one for one in self.decisions if one.named]
        for one in named:
            (commits if one.is_commit else others).extend([str(half[1]) for half in one.halves])
        names = commits + others
        told = all(one.is_told for one in named)
        body = f"{','.join(names)},".encode() if names else b""
        return body, 1 + len(commits) if told else 0

    @property
    def is_durable(self) -> bool:
        """Whether some decision is to be on the disk before it is told."""
        return any(one.durable for one in self.decisions)

    def listener(self) -> tuple[int, int]:
        """Session and serial that the writer is to tell, (0, 0) for nobody.

        That is who has asked for the only decision, if this is all of it, and need not be durable.
        """
        one = self.decisions[0] if len(self.decisions) == 1 else None
        if one is None or one.durable or not one.is_as_asked:
            return 0, 0
        session, serial, request = one.asked[0]
        return (session, serial) if isinstance(request, End) and request.alone else (0, 0)
