"""Descriptors that somebody holds."""

from __future__ import annotations

import gc
import os

from gantrymq.shm.bell import EventBell
from gantrymq.shm.held import Descriptor
from tests.support.trials import mends
from tests.unit.test_bell import is_open


def test_a_descriptor_goes_with_the_last_who_has_it() -> None:
    held = Descriptor(os.memfd_create, "held")
    number = held.number
    other = held
    del held
    assert is_open(number)
    del other
    assert not is_open(number)


@mends("S101")
def test_what_a_cycle_has_is_open_while_its_finalizers_work() -> None:
    """Else they would ring at a number that is somebody else's by then."""
    seen: list[tuple[str, int]] = []

    class Last:
        def __init__(self, bell: EventBell) -> None:
            self.bell, self.me = bell, self

        def __del__(self) -> None:
            taken = os.memfd_create("somebody else's")
            self.bell.ring()
            kind = os.readlink(f"/proc/self/fd/{self.bell.descriptor}")
            seen.append((kind, os.fstat(taken).st_size))
            os.close(taken)

    bell = EventBell()  # before: finalizers are called in the order in which objects were made
    number = bell.descriptor
    Last(bell)
    del bell
    gc.collect()
    assert seen == [("anon_inode:[eventfd]", 0)]
    assert not is_open(number), "it goes with the cycle"
