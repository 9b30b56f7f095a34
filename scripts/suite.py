"""Run the whole suite as `make test` does: two runs of pytest beside each other.

Most tests are one busy processor or wait for a process: on two processors, two runs take little
more than half of the time. Each has whole folders of tests/, so that fixtures, and what tests of
one kind leave for each other, stay together. Lines of progress come as they come, what each run
has to say at its end comes in one piece. Arguments go to both.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
#: Folders of the first run; the second has all others, so that none is forgotten.
FIRST = ("sim", "unit", "property", "spark")
#: pytest's exit codes: all passed; no test was selected by the arguments.
FINE = (0, 5)


def halves() -> tuple[list[str], list[str]]:
    """Folders of tests/ for the two runs."""
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    return [f"tests/{name}" for name in FIRST], sorted(f"tests/{n}" for n in folders - set(FIRST))


class Run:
    """One run of pytest, and what it has said since its summary began."""

    def __init__(self, folders: Sequence[str], arguments: Sequence[str]) -> None:
        self.held: list[str] = []
        command = [sys.executable, "-m", "pytest", *folders, *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None, "opened as a pipe"
        began = False
        for line in self._process.stdout:
            began = began or line.startswith("tests/")
            if self.held or (began and line.startswith("===")):
                self.held.append(line)
            else:
                print(line, end="", flush=True)

    def wait(self) -> int:
        """Wait for its end, and let it say what was held back; its exit code."""
        self._reader.join()
        print("".join(self.held), flush=True)
        return self._process.wait()


def main(arguments: Sequence[str]) -> int:
    """Run both; 0 if all tests of both have passed."""
    began = time.monotonic()
    runs = [Run(folders, arguments) for folders in halves()]
    codes = [run.wait() for run in runs]
    fine = all(code in FINE for code in codes)
    print(f"{'passed' if fine else 'FAILED'}: the suite took {time.monotonic() - began:.0f} s")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
