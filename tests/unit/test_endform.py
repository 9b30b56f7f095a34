"""An END that a kernel fills in is the END that msgpack makes (transactions.md, TX-20)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.clients.transactions.endform import EndForm
from gantrymq.shm import layout
from gantrymq.shm import transactionwire as wire
from gantrymq.shm.controllane import BrokenLane, ControlLane, End
from gantrymq.shm.kernels.words import store_word
from gantrymq.shm.valueranges import NUMBER_MAX, WORD_MAX
from tests.support.memory_sessions import memory_session

SERIALS, PLACES = st.integers(0, WORD_MAX), st.integers(0, NUMBER_MAX)


@given(
    group=st.text(min_size=1, max_size=80), transaction=st.text("0123456789abcdef", min_size=32,
    max_size=32), numbers=st.tuples(SERIALS, PLACES, PLACES), commit=st.booleans(),
    alone=st.booleans(),
)  # fmt: skip
def test_it_says_what_msgpack_says(
    group: str, transaction: str, numbers: tuple[int, int, int], commit: bool, alone: bool
) -> None:
    """All numbers, groups of other alphabets: the txn-checker reads the same request."""
    session = memory_session(1)
    client = ControlLane(session.arena, session.plan.transactions, End.CLIENT)
    agent = ControlLane(session.arena, session.plan.transactions, End.AGENT)
    serial, *half = numbers
    form = EndForm(group)
    for number in (serial, 7):
        assert form.put(client, number, transaction, commit, (half[0], half[1]), alone)
        body = agent.take()
        assert body is not None
        assert wire.decode_request(body) == wire.End(
            number, group, transaction, commit, [(half[0], half[1])], alone=alone
        )


def test_a_ring_without_room_and_one_that_is_broken() -> None:
    """As every put: False when it is full, an error when the head cannot be."""
    session = memory_session(1)
    lane = ControlLane(session.arena, session.plan.transactions, End.CLIENT)
    form, puts = EndForm("pay"), 0
    while form.put(lane, puts, "0" * 32, True, (1, 2), alone=False):
        puts += 1
    assert puts > 10
    assert not lane.wants_bell
    at = session.plan.transactions.control + layout.LANE_UP_HEAD
    store_word(session.arena, at, 1 << 40)
    with pytest.raises(BrokenLane):
        form.put(lane, puts, "0" * 32, True, (1, 2), alone=False)
