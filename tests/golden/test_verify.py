"""`store verify` on stores of a real RocketMQ."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gantrymq.brokerd.verify import verify
from tests.support.golden import SETS, GoldenStore, dump_lines

Golden = Callable[[str], GoldenStore]


@pytest.mark.parametrize("name", SETS)
def test_stores_of_a_real_rocketmq_are_clean(golden: Golden, name: str) -> None:
    """SF-24, SF-61 to SF-65, SF-71: as many records and units as RocketMQ reads, no finding."""
    store = golden(name)
    report = verify(store.store, store.settings_file)
    assert report.ok, str(report)
    assert not report.ours
    assert report.records == len(dump_lines(name, "record"))
    # The queues of a killed broker are ahead or behind (SF-117): they are not compared.
    wanted = len(dump_lines(name, "cq")) if report.state == "stopped" else 0
    assert report.units == wanted
