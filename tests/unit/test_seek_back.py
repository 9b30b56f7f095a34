"""An offset that a consumer sets back stays there, whatever dies (P5, P9)."""

from __future__ import annotations

import pytest

from gantrymq.shm import layout
from gantrymq.shm.codes import Role
from gantrymq.shm.groupwire import LADDER, SendBack, SentBack
from gantrymq.workers.groups.ledger import Ledger
from gantrymq.workers.groups.progress import Progress
from tests.support.groups_rig import Hand, only
from tests.support.retry_rig import RetryRig
from tests.support.simstorage import SimStorage
from tests.support.trials import mends

KEY = ("orders", 0)
S = 1_000_000_000


def member(rig: RetryRig) -> Hand:
    """A member of the one group."""
    hand = rig.attach()
    rig.settle()
    hand.join()
    return hand


def send_back(hand: Hand, most: int) -> None:
    """Its first message has failed; `most` deliveries may."""
    request = SendBack(9, 0, hand.leases[0], most, [0], [LADDER], ["no good"])
    only(hand.say(request), SentBack)


def ledger_of(rig: RetryRig) -> Ledger:
    """What `groups` knows."""
    found: Ledger = rig.agents[Role.GROUPS].ledger  # type: ignore[attr-defined]
    return found


def progress(rig: RetryRig) -> Progress:
    """Of the group in the queue of the message."""
    return ledger_of(rig).group("g").queue(KEY)


def begin_another_life(rig: RetryRig) -> None:
    """All of the broker is killed, and started: no session of the last life is there."""
    board = rig.board
    board.epoch += 1
    for number in range(sum(topic.queue_count for topic in board.topics())):
        at = board.queue_at(number)
        board.set_word(at + layout.QUEUE_RECOVERED_END, board.queue(number)["max_offset"])
    board.set_word(layout.BOARD_RECOVERED_END, board.word(layout.BOARD_APPENDED))
    rig.hands.clear()
    rig.start(Role.GROUPS)


@mends("S30")
@pytest.mark.parametrize("most", [1, 17], ids=["dead-letter", "retry"])
def test_a_message_that_was_sought_back_to_is_not_passed_over(most: int) -> None:
    """Its copy lies in the log, of a delivery before the seek: a kill does not count that."""
    rig = RetryRig()
    rig.send(b"m0")
    rig.settle()
    hand = member(rig)
    hand.note(q0=(0, 1))
    rig.clock.advance(2 * S)
    rig.settle()
    send_back(hand, most)
    hand.note(q0=(1, 1))
    rig.settle()
    assert progress(rig).committed == 1
    hand.note(q0=(0, 0))
    rig.settle()
    assert progress(rig).committed == 0
    begin_another_life(rig)
    assert progress(rig).committed == 0
    assert len(rig.copies()) == 1


def test_a_message_that_fails_after_the_seek_is_done_with() -> None:
    """P9: what is known before the kill is known after it; there is no second dead letter."""
    rig = RetryRig()
    rig.send(b"m0")
    rig.settle()
    hand = member(rig)
    hand.note(q0=(0, 1))
    rig.settle()
    before = SimStorage(rig.disk).size_of("gantry/ledger")
    send_back(hand, 17)
    hand.note(q0=(1, 1))
    rig.settle()
    hand.note(q0=(0, 0))
    rig.settle()
    sought = SimStorage(rig.disk).size_of("gantry/ledger")
    assert sought > before
    hand.note(q0=(0, 1))
    rig.settle()
    send_back(hand, 1)
    rig.settle()
    # A power cut takes the ledger's end, and leaves the log's.
    SimStorage(rig.disk).open("gantry/ledger", write=True).truncate(sought)
    begin_another_life(rig)
    assert progress(rig).committed == 1
    assert len(rig.copies()) == 2
