"""Stores that RocketMQ left in the middle of its delays: ours goes on, once each, never early."""

from __future__ import annotations
