"""Known bugs that can be put into a run, to show that the simulator finds their kind.

They live here only, put over the real parts from outside: production code has no switch for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd import recovery
from brokerd.commitlog import CommitLog
from brokerd.flusher import Flusher
from brokerd.producers import Producers
from brokerd.writer import Writer
from shm.kernels import frames
from workers.groups import Groups
from workers.membership import Membership


def ack_before_append() -> None:
    """Completions are published before their records are in the log."""
    write_batch = Writer._write_batch

    def eager(writer: Writer, **how: Any) -> Any:  # noqa: ANN401 - as the method has it
        if writer._batch[frames.FILLED]:
            drained = list(writer._drained)
            writer._settle()
            writer._drained.extend(drained)
        return write_batch(writer, **how)

    Writer._write_batch = eager  # type: ignore[method-assign]


def recovery_without_zeroing() -> None:
    """Torn bytes stay behind the log's end, after a start and after a writer's death."""
    recovery._zero = lambda *_: None
    CommitLog.clear_behind = lambda *_: None  # type: ignore[method-assign, assignment]


def durable_before_sync() -> None:
    """The flusher publishes a position that it has not synced."""
    Flusher._sync_segments = lambda *_: None  # type: ignore[method-assign, assignment]


def leased_twice() -> None:
    """A queue goes to the next member without waiting for the one before."""
    leases = Membership._leases

    def impatient(membership: Membership, group: str) -> Any:  # noqa: ANN401
        return {q: lease for q, lease in leases(membership, group).items() if not lease.revoking}

    Membership._leases = impatient  # type: ignore[method-assign]
    grown = Membership.grown

    def always(membership: Membership) -> bool:
        for group in membership.groups.values():
            group.dirty = True
        return grown(membership)

    Membership.grown = always  # type: ignore[method-assign]


def appended_again() -> None:
    """A new writer does not know what is in the log, and takes a re-submitted seq for new."""
    Producers.last_seq = lambda *_: 0  # type: ignore[method-assign, assignment]


def visible_before_durable() -> None:
    """The reader shows units of durable topics at once."""
    from workers.reader import Reader

    Reader._is_durable_level = lambda *_: False  # type: ignore[method-assign, assignment]


def told_before_written() -> None:
    """`groups` answers before the ledger has what it answers about."""
    tell = Groups._tell

    def forgetful(groups: Groups, peer: Any) -> int:  # noqa: ANN401
        groups.ledger.flush = lambda *_: None  # type: ignore[method-assign, assignment]
        return tell(groups, peer)

    Groups._tell = forgetful  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        ack_before_append,
        recovery_without_zeroing,
        durable_before_sync,
        leased_twice,
        appended_again,
        visible_before_durable,
        told_before_written,
    )
}
