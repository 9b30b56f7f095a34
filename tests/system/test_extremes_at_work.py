"""A small piece of what `make soak ONLY=extremes` does by the million, with fresh seeds."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.extremes.__main__ import run

COUNT = int(os.environ.get("GANTRYMQ_TEST_EXTREMES", "4000"))


@pytest.mark.parametrize("kind", ["calls", "requests", "frames", "words"])
def test_no_client_ends_an_agent_or_harms_others(tmp_path: Path, kind: str) -> None:
    """Its seed is printed: `python -m tests.extremes KIND --count N --seed S` repeats it."""
    run(kind, COUNT, secrets.randbelow(1 << 31), tmp_path)
