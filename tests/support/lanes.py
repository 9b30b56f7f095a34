"""A client's hand on its writer lane: private words, routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.arena import LanePlan
from gantrymq.shm.kernels import frames

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.workers.session import Session


def lane_words(plan: LanePlan) -> NDArray[np.int64]:
    """Private words of either end of a lane that nobody has used yet."""
    words = np.zeros(frames.LANE_WORDS, np.int64)
    words[frames.CONTROL] = plan.control
    words[frames.UP], words[frames.UP_MASK] = plan.up, plan.up_bytes - 1
    words[frames.DOWN], words[frames.DOWN_MASK] = plan.down, plan.down_bytes - 1
    return words


def set_route(session: Session, number: int, topic: int, block: bytes = b"") -> None:
    """Fill in a slot of a session's route table, as its client would."""
    at = layout.ROUTES_AT + number * layout.ROUTE_BYTES
    slot = layout.ROUTE.pack(ready=1, topic=topic, block_bytes=len(block), block=block)
    session.arena[at : at + layout.ROUTE_BYTES] = np.frombuffer(slot, np.uint8)
