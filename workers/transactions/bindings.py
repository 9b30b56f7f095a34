"""What a start learns of how transactions were decided, for those of which something is given up.

An operator's settlements tell, by their records or copies; and what was checked anew may have been
ended by its producer behind the last note.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm.kernels import halfform, halfrows, stretch
from gantrymq.shm.kernels.halfrows import read_halves
from gantrymq.shm.properties import HALF_TOPIC
from gantrymq.shm.transactionwire import COMMITTED, ROLLED_BACK
from gantrymq.workers.transactions.identity import transaction_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantrymq.workers.logwindow import LogWindow
    from gantrymq.workers.transactions.givenup import GivenUp
    from gantrymq.workers.transactions.halves import Halves

Words = NDArray[np.int64]


class Bindings:
    """Collects what may bind others, until it is known what is listed."""

    def __init__(self, noted: list[list[str]]) -> None:
        """`noted`: ids and outcomes of the last note."""
        self._noted = noted
        self._settled: list[tuple[int, str, str]] = []  # half, its transaction, outcome
        self._ended: Words = np.zeros((0, 3), np.int64)

    def settled(self, half: int, tx: str, outcome: str) -> None:
        """A settlement is in the log, or a part of it."""
        self._settled.append((half, tx, outcome))

    def learn_ops(self, ops: Words) -> None:
        """What op records name (`halfrows.read_ops`)."""
        self._ended = ops[ops[:, 2] >= 0]

    def bind(self, halves: Halves, given_up: GivenUp, window: LogWindow, copied: Words) -> None:
        """Tell it of the transactions of which something is listed; `copied`: halves with copies.

        Of a settlement that a full disk has taken the copy of nobody was told: it is listed still.
        """
        begun = given_up.begun
        if not begun.listed:
            return
        for tx, outcome in self._noted:
            begun.learn(tx, outcome)
        for half, tx, outcome in self._settled:
            if half not in given_up.unsettled and halves.table.at_position(half) < 0:
                begun.learn(tx or transaction_at(window, half), outcome)
        ended = [(copied, COMMITTED)]
        for word, outcome in ((1, COMMITTED), (0, ROLLED_BACK)):
            offsets = np.unique(self._ended[self._ended[:, 2] == word, 0])
            ended += [(positions, outcome) for positions in _positions(halves, offsets)]
        for positions, outcome in ended:
            found, hashes = transactions_at(window, positions)
            for half in found[np.isin(hashes, begun.listed)].tolist():
                begun.learn(transaction_at(window, half), outcome)


def _positions(halves: Halves, offsets: Words) -> Iterator[Words]:
    """Log positions of halves by their queue offsets, in order, as far as they are there."""
    offsets = offsets[(offsets >= halves.lowest()) & (offsets < halves.written())]
    while len(offsets):
        first, units = halves.units(HALF_TOPIC, int(offsets[0]), int(offsets[-1]) + 1)
        near = offsets[offsets < first + len(units) // 2]
        if not len(near):
            return
        yield units[0::2][near - first]
        offsets = offsets[len(near) :]


def transactions_at(window: LogWindow, positions: Words) -> tuple[Words, Words]:
    """Halves at these positions that belong to transactions, and hashes of their ids."""
    if not len(positions):
        return positions, positions
    form = np.zeros(halfform.FORM_WORDS, np.int64)
    found = np.zeros((len(positions), halfrows.READ_WORDS), np.int64)
    units = np.zeros((len(positions), 2), np.int64)
    units[:, 0] = positions
    form[stretch.COUNT] = len(positions)
    while (at := int(form[stretch.NEXT])) < len(positions):
        if not window.enter(int(positions[at])):
            form[stretch.NEXT] = at + 1
            continue
        window.show_in(form)
        read_halves(window.view, form, units.reshape(-1), found.reshape(-1))
    window.name_damaged(positions[found[:, halfrows.READ_STATE] == halfform.DAMAGED])
    hashes: Words = found[:, halfrows.TX_HASH]
    return positions[hashes != 0], hashes[hashes != 0]
