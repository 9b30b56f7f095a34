"""Each notice of `groups` that names many things fits into a session's ring at its largest."""

from __future__ import annotations

import pytest

from gantrymq.shm import layout, limits
from gantrymq.shm.groupwire import ATTEMPTS_MAX, AnyNotice, Granted, Refused, SentBack, encode
from gantrymq.shm.valueranges import NUMBER_MAX
from gantrymq.workers.groups.membership import DONE_MAX
from gantrymq.workers.groups.sendbacks import OFFSETS_MAX
from tests.support.groups_rig import Rig
from tests.support.trials import mends
from tests.unit.test_push_groups import rig_with

HIGH = NUMBER_MAX
TEXT = "x" * 4000


@pytest.mark.parametrize(
    "notice",
    [
        Granted(
            HIGH,
            HIGH,
            HIGH,
            [(HIGH, HIGH, 65_535)] * ATTEMPTS_MAX,
            [(HIGH, HIGH)] * DONE_MAX,
            HIGH,
            HIGH,
        ),
        SentBack(HIGH, HIGH, [HIGH] * OFFSETS_MAX, [True] * OFFSETS_MAX),
        Refused(HIGH, "MessageIllegal", TEXT, [HIGH] * OFFSETS_MAX),
    ],
    ids=lambda notice: type(notice).__name__,
)
def test_a_largest_notice_fits(notice: AnyNotice) -> None:
    assert 2 * (len(encode(notice)) + layout.ENTRY_BYTES + 8) <= limits.GROUPS_DOWN_BYTES


@mends("S36")
def test_an_answer_that_one_notice_cannot_hold_comes_in_several() -> None:
    """A request names 3000 messages in few bytes more than its answer may have."""
    rig: Rig = rig_with()
    hand = rig.attach()
    told: list[AnyNotice] = []
    backs = rig.agent.sendbacks
    backs._tell = lambda _session, notice: told.append(notice)
    offsets = [HIGH - number for number in range(3000)]
    backs._answer((hand.number, 1, 0), offsets, [False] * 3000)
    backs._refuse(hand.number, 2, ("Evicted", "over"), offsets)
    for kind in (SentBack, Refused):
        named = [notice.offsets for notice in told if isinstance(notice, kind)]
        assert [len(some) for some in named] == [1024, 1024, 952]
        assert [offset for some in named for offset in some] == offsets
