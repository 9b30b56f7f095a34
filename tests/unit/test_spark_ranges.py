"""A segment is cut into partitions of about 64 MiB that begin and end at records."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gantrymq.clients.spark.planning import RANGE_BYTES, _cut

BASE = 1 << 30


@pytest.mark.parametrize("record", [1000, 4096, 3 << 20])
@pytest.mark.parametrize("segment", [1 << 20, 64 << 20, 1 << 30])
def test_partitions_are_of_about_64_mib(record: int, segment: int) -> None:
    record = min(record, segment)
    bounds = np.arange(0, segment + 1, record)
    ranges = _cut(BASE, bounds, sealed=False)
    starts, ends = [part.start for part in ranges], [part.end for part in ranges]
    assert starts[0] == 0
    assert ends[-1] == bounds[-1]
    assert starts[1:] == ends[:-1], "side by side"
    assert (bounds[np.searchsorted(bounds, starts)] == starts).all()
    sizes = [int(after) - int(before) for before, after in pairwise([*starts, bounds[-1]])]
    assert all(abs(size - RANGE_BYTES) <= record for size in sizes[:-1])
    assert sizes[-1] <= RANGE_BYTES + record
    assert RANGE_BYTES == 64 << 20
