"""How fast a store is verified, recovered after a kill, and dispatched by a late reader."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.crew import BenchError, Crew, Phase, Unavailable
from bench.harness import Bench
from bench.measure import Measurement
from bench.ours import Serving, scratch, serving
from bench.sizes import PIPELINE_COMMANDS

_RECORD_BYTES = 230
"""About what a body of 100 bytes takes in the log; it only plans the fill."""


def verify(bench: Bench) -> Measurement:
    """`gantrymq store verify` of a cleanly stopped store, the start of the command included."""
    with scratch(bench) as directory:
        with serving(directory, {}, bench.sizes.timeout_s) as server:
            log_bytes = fill(bench, server)
        command = [sys.executable, "-m", "gantrymq", "store", "verify", str(server.home / "store")]
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - started
        if done.returncode:
            raise BenchError(f"store verify: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return Measurement(values={"mb_s": log_bytes / 1e6 / seconds}, note=f"{log_bytes} bytes")


def recovery(bench: Bench) -> Measurement:
    """Recovery of a store whose broker was killed, by scanning the whole log."""
    raise Unavailable(f"recovery of {bench.sizes.store_bytes} bytes is not connected yet")


def dispatch(bench: Bench, queues: int) -> Measurement:
    """The reader alone, on a log that nobody has dispatched."""
    raise Unavailable(f"dispatch to {queues} queues is not connected yet")


def fill(bench: Bench, server: Serving) -> int:
    """Send until the log holds about `store_bytes`; return how many it holds."""
    from bench.our_jobs import FillSends

    count = bench.sizes.store_bytes // _RECORD_BYTES // PIPELINE_COMMANDS * PIPELINE_COMMANDS
    with Crew(bench.sizes.timeout_s) as crew:
        crew.start("producer", FillSends, str(server.home))
        return crew.run(Phase(max(count, PIPELINE_COMMANDS)))["producer"].checksum
