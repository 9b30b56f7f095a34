"""Positions of a stream's offsets, for tests that keep no more of them."""

from __future__ import annotations

from gantrymq.clients.spark.options import ReadOptions
from gantrymq.clients.spark.stream import first_offset, next_offset


def first_position(chosen: ReadOptions) -> int:
    """Where a stream without a checkpoint begins."""
    position = first_offset(chosen)["position"]
    assert isinstance(position, int)
    return position


def next_position(
    chosen: ReadOptions, start: int, target: int | None, limits: tuple[int | None, int | None]
) -> int:
    """Where the micro-batch from `start` on ends."""
    position = next_offset(chosen, {"position": start}, target, limits)["position"]
    assert isinstance(position, int)
    return position
