"""What sessions may say to `groups`, and what its decoder refuses."""

from __future__ import annotations

import pytest

from gantrymq.shm.groupwire import DEAD_LETTER, SendBack, decode_request, encode
from gantrymq.shm.limits import RETRY_AFTER_MAX_MS
from gantrymq.shm.packed import Misfit


@pytest.mark.parametrize("delay", [DEAD_LETTER - 1, RETRY_AFTER_MAX_MS + 1, 1 << 62])
def test_a_delay_that_no_listener_can_wish_for_is_refused(delay: int) -> None:
    """P12: the time of the next delivery would be beyond what a record can say."""
    with pytest.raises(Misfit, match="delays"):
        decode_request(encode(SendBack(1, 0, 1, 17, [0], [delay], ["no"])))
    longest = SendBack(1, 0, 1, 17, [0], [RETRY_AFTER_MAX_MS], ["no"])
    assert decode_request(encode(longest)) == longest
