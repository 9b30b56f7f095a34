"""Memory made ready before a measurement, as it is on a machine that has been busy."""

from __future__ import annotations

import mmap

import numpy as np


def touch_memory(size: int) -> None:
    """Touch `size` bytes of memory and give them back, so that what comes next finds them ready.

    A virtual machine hands free pages back to its host; whoever touches such a page first waits for
    the host, also within write(2): plain pwrite then is down to a tenth of its speed.
    """
    if size:
        with mmap.mmap(-1, size) as memory:
            touched = np.frombuffer(memory, np.uint8)
            touched[:: mmap.PAGESIZE] = 1
            del touched
