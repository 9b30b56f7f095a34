"""What a type checker says to users of the public names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.tree import ROOT
from tests.support.trials import mends

#: No file of Python's here: the tree itself is to pass the check.
USES = ROOT / "tests/support/typed_uses.txt"


@mends("A9.1", "A9.2", "A9.3")
def test_right_uses_pass_and_wrong_ones_are_found(tmp_path: Path) -> None:
    """One run of mypy over a file whose wrong lines are marked."""
    uses = tmp_path / "uses.py"
    uses.write_text(USES.read_text("utf-8"), "utf-8")
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context",
            "--follow-imports=silent", "--no-warn-unused-ignores", str(uses),
        ],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    told = {
        (int(line), code)
        for line, code in re.findall(r"uses\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.M)
    }
    wanted = {
        (number, mark[1])
        for number, line in enumerate(USES.read_text("utf-8").splitlines(), 1)
        if (mark := re.search(r"# error: ([\w-]+)$", line))
    }
    assert (told - wanted, wanted - told) == (set(), set()), done.stdout + done.stderr
