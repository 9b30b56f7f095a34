"""Run the whole suite as `make test` does: three runs of pytest beside each other.

Most tests keep one processor busy; those of whole brokers wait for processes half of their time. On
two processors, one run of the former and two of the latter leave neither idle. They share the files
of tests (tests/support/sharing.py). Lines of progress come as they come, their percentages are of
all tests; what each run has to say at its end comes in one piece, then the time of all by kind of
test. Arguments go to each.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.processortime import Times

ROOT = Path(__file__).resolve().parent.parent

#: How each of them is to take its files: those of whole brokers are at the end.
DIRECTIONS: Sequence[Sequence[str]] = ((), ("--backwards",), ("--backwards",))
#: pytest's exit codes: all passed; no test was selected by the arguments.
FINE = (0, 5)
#: What a run has written before its end is read by then; a process that it left behind may keep
#: its pipe open for ever.
DRAIN_S = 10.0


class Run:
    """One run of pytest, and what it has said since its summary began."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.held: list[str] = []
        command = [sys.executable, "-m", "pytest", "-p", "tests.support.sharing", *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
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
        code = self._process.wait()
        self._reader.join(DRAIN_S)
        print("".join(self.held), flush=True)
        if code not in FINE and not self.held:
            print(f"A run ended with {code} amid a test; if one hung, its stacks are above.")
        return code


def times_in(folder: Path) -> Times:
    """What the runs have kept there."""
    whole = Times()
    for path in folder.glob("times.*"):
        whole.add(Times.read(path))
    return whole


def main(arguments: Sequence[str]) -> int:
    """Run all; 0 if each test has passed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as share:
        # One word: pytest looks for its settings above each word that is a folder.
        runs = [Run([f"--share={share}", *each, *arguments]) for each in DIRECTIONS]
        codes = [run.wait() for run in runs]
        print("processor time per kind of test:", *times_in(Path(share)).lines(), sep="\n")
    fine = all(code in FINE for code in codes)
    print(f"{'passed' if fine else 'FAILED'}: the suite took {time.monotonic() - began:.0f} s")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
