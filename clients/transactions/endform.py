"""The END of one half, as most are: its text is made once and gets other numbers each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gantrymq.shm import transactionwire
from gantrymq.shm.kernels.endput import put_end
from gantrymq.shm.transactionwire import End

if TYPE_CHECKING:
    from gantrymq.shm.controllane import ControlLane

#: Characters of the id of a transaction of ours, and bytes of the text behind it.
ID_BYTES: Final = 32
_BEHIND: Final = 23
_LARGE: Final = 1 << 40  # numbers of 64 bits in msgpack


class EndForm:
    """ENDs of one producer group. Not safe for threads."""

    def __init__(self, group: str) -> None:
        self.group = group
        body = transactionwire.encode(End(_LARGE, group, "0" * ID_BYTES, False, [(_LARGE, _LARGE)]))
        self._text = np.frombuffer(bytearray(body), np.uint8)
        self._view = self._text.data
        self._id_end = len(body) - _BEHIND
        self._id_at = self._id_end - ID_BYTES

    def put(
        self, lane: ControlLane, serial: int, transaction: str, commit: bool,
        half: tuple[int, int], alone: bool,
    ) -> bool:  # fmt: skip
        """As `ControlLane.put` of an END; `transaction` is an id of ours."""
        self._view[self._id_at : self._id_end] = transaction.encode()
        done = put_end(lane.arena, lane.words, self._text, serial, commit, *half, alone)
        return lane.has_put(done, self._text.size)
