"""Which records of a stretch of the log may have a key, by its records themselves.

For what the index does not have (yet). Loads kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from gantrymq.shm.codes import Stop
from gantrymq.shm.innerbatch import is_inner_batch
from gantrymq.shm.kernels import scan
from gantrymq.shm.kernels.index import hash_keys
from gantrymq.shm.lognames import segment_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.shm.storage import Storage

_ROWS: Final = 16_384
_KEYS: Final = 4 * _ROWS


class Scanned(NamedTuple):
    """Log positions, rising, of inner batches and records with one of the hashes; its end."""

    positions: list[int]
    end: int
    stop: Stop


def scan_segment(
    storage: Storage, base: int, span: tuple[int, int], codes: Sequence[int], times: tuple[int, int]
) -> Scanned:
    """Look through [start, end) of the segment at `base`; both are bounds of records.

    Records stored outside of `times` (Unix ms, both ends count) are left out. Raises
    FileNotFoundError.
    """
    file = storage.open(segment_name(base))
    view = file.still_view()[: span[1] - base]
    file.close()
    wanted = np.array(codes, np.int64)
    form = np.array([span[0] - base, base, scan.CHECK_PLACE, -1, 0, 0], np.int64)
    rows = np.empty((_ROWS + 1) * scan.ROW_WORDS, np.int64)
    found: list[int] = []
    stop = Stop.LIMIT
    while stop == Stop.LIMIT:
        stop = Stop(scan.scan_log(view, form, rows[: -scan.ROW_WORDS]))
        count = int(form[5])
        places = _hits(view, rows[: (count + 1) * scan.ROW_WORDS], wanted)
        records = rows[: count * scan.ROW_WORDS].reshape(-1, scan.ROW_WORDS)
        batches = np.flatnonzero(is_inner_batch(records[:, scan.SYS_FLAG]))
        hits = records[np.union1d(places, batches)]
        stored = hits[:, scan.STORE_MS]
        hits = hits[(stored >= times[0]) & (stored <= times[1])]
        found += (hits[:, scan.AT] + base).tolist()
        if base + int(form[0]) >= span[1]:
            break
    return Scanned(found, base + int(form[0]), stop)


def _hits(
    view: NDArray[np.uint8], rows: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Rows of which a key has one of the hashes; behind them is one that is changed."""
    room = _KEYS
    while True:
        out = np.empty(2 * room, np.int64)
        made = hash_keys(view, rows, 0, out)
        if made <= room:
            break
        room = made
    hashes, places = out[:made], out[room : room + made]
    same = hashes == wanted[0] if len(wanted) == 1 else np.isin(hashes, wanted)
    found: NDArray[np.int64] = np.unique(places[same])
    return found
