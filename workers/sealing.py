"""Gathers what a segment's sidecar needs while its records pass the reader."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shm import layout, sidecar
from shm.kernels.blocks import crc_blocks


class Collector:
    """Positions and topics of the active segment's records, if the reader has seen all of them."""

    def __init__(self, position: int, segment_bytes: int) -> None:
        self._pieces: dict[int, list[NDArray[np.int64]]] = {}
        if position % segment_bytes == 0:
            self._pieces[position] = []

    def add(self, base: int, passed: NDArray[np.int64], at_start: bool) -> None:
        """Take records (offset << 16 | topic slot) of the segment at `base`."""
        if at_start:
            self._pieces[base] = []
        pieces = self._pieces.get(base)
        if pieces is not None and len(passed):
            pieces.append(passed.copy())

    def finish(self, base: int, view: NDArray[np.uint8], names: list[str]) -> bytes:
        """The sidecar of a rolled segment. `names` are the board's topics in slot order."""
        pieces = self._pieces.pop(base, None)
        if not pieces:
            return sidecar.build_from_segment(view, base).encode()
        passed = np.concatenate(pieces)
        offsets = passed >> 16
        used, numbers = np.unique(passed & 0xFFFF, return_inverse=True)
        topic_numbers, topics = sidecar.by_name(
            numbers.astype(np.uint16), [names[slot] for slot in used.tolist()]
        )
        last = int(offsets[-1])
        end = last + _be(view, last + layout.RECORD.offset("total_size"), 4)
        return sidecar.Sidecar(
            base=base,
            segment_bytes=len(view),
            end=base + end,
            first_ms=_store_ms(view, int(offsets[0])),
            last_ms=_store_ms(view, last),
            positions=offsets.astype(np.uint32),
            topic_numbers=topic_numbers,
            names=topics,
            block_crcs=_block_crcs(view),
        ).encode()


def _block_crcs(view: NDArray[np.uint8]) -> NDArray[np.uint32]:
    block = layout.SIDECAR_BLOCK_BYTES
    out = np.zeros(-(-view.size // block), np.int64)
    crc_blocks(view, block, out)
    return out.astype(np.uint32)


def _be(view: NDArray[np.uint8], at: int, size: int) -> int:
    return int.from_bytes(view[at : at + size].tobytes(), "big")


def _store_ms(view: NDArray[np.uint8], at: int) -> int:
    sys_flag = _be(view, at + layout.RECORD_SYS_FLAG, 4)
    longer = layout.HOST_BYTES_V6 - layout.HOST_BYTES_V4
    shift = longer if sys_flag & layout.SYS_BORN_V6 else 0
    return _be(view, at + layout.RECORD_STORE_MS + shift, 8)
