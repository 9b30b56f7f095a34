"""Bells without descriptors: the scheduler asks them who may wake."""

from __future__ import annotations


class SimBell:
    """`shm.bell.Bell` as an eventfd is: rings add up, one wait takes them all."""

    def __init__(self) -> None:
        self.rung = False
        self.rings = 0  # ever, for tests that count wake-ups

    def ring(self) -> None:
        """Wake the owner."""
        self.rung = True
        self.rings += 1

    def clear(self) -> None:
        """Forget rings so far."""
        self.rung = False
