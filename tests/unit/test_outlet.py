"""An agent's own session with the writer, when the writer is replaced."""

from __future__ import annotations

from gantrymq.shm.codes import Role, Status
from gantrymq.workers.outlet import Copy, Outlet
from tests.support.retry_rig import RetryRig

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])


def copy(body: bytes, origin: int) -> Copy:
    return Copy(0, 0, body, b"", origin, 0, 0, 1_700_000_000_000, HOST, HOST, 1)


def test_no_outcome_is_told_of_a_later_put_than_one_that_was_passed_over() -> None:
    """A new writer passes over what it finds in the ring, and answers what comes after."""
    rig = RetryRig()
    outlet = Outlet(rig.own, rig.bells)
    rig.step(Role.WRITER)
    assert outlet.reconcile()
    assert outlet.put(copy(b"passed over", 10), "first")
    rig.start(Role.WRITER)
    rig.step(Role.WRITER)
    assert outlet.put(copy(b"stored", 20), "second")
    rig.step(Role.WRITER)
    assert [record.body for record in rig.copies()] == [b"stored"]
    assert outlet.poll() == []
    assert outlet.is_lost()
    assert outlet.waiting == 2
    assert outlet.reconcile()
    assert outlet.waiting == 0
    assert outlet.put(copy(b"passed over", 10), "again")
    rig.step(Role.WRITER)
    assert [(out.tag, out.status) for out in outlet.poll()] == [("again", Status.OK)]
