"""Kernels give the same bytes compiled and as Python: a debugger shows what the product does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.tree import ROOT
from tests.support.twins import SENDS


def run(directory: Path, *, jit: bool) -> dict[str, Any]:
    directory.mkdir()
    environment = os.environ | {"NUMBA_DISABLE_JIT": "0" if jit else "1"}
    command = [sys.executable, "-m", "tests.support.twins", str(directory)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_compiled_kernels_and_their_python_twins_agree(tmp_path: Path) -> None:
    """Encode, batches, roll, dispatch, scan and fetch over the same sends."""
    compiled = run(tmp_path / "compiled", jit=True)
    python = run(tmp_path / "python", jit=False)
    assert compiled.pop("jit")
    assert not python.pop("jit")
    assert compiled["records"] == SENDS + 2 * SENDS // 10, "every tenth send is a batch of three"
    assert compiled["segments"] > 2
    assert compiled["in_order"], "LW-12: the clock went back, storeTimestamps did not"
    assert compiled == python
