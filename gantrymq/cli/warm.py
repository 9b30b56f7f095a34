"""`gantrymq warm`: the machine code is compiled before anybody waits for it."""

from __future__ import annotations

import sys
import time

import typer

from gantrymq.cli.options import JsonOption, print_json
from gantrymq.shm.codes import ExitCode

HELP = """Compile the machine code for this processor: no first start or import waits for it then.

Run it as the user of the broker or the application, with the same XDG_CACHE_HOME: each user has a
cache of its own. An image of a container may hold it if it runs on processors of one kind.

\b
Example: gantrymq warm --json
Exit codes: 0 done, or done before; 74 the cache cannot be written.
"""


def warm(as_json: JsonOption = False) -> None:
    """Compile, and say how long it took."""
    from gantrymq.clients.warming import library
    from gantrymq.shm import jit

    kept = library()
    began = time.monotonic()
    compiled = jit.warm()
    seconds = time.monotonic() - began
    if as_json:
        print_json({"kernels": compiled, "seconds": round(seconds, 3), "cache": str(kept.parent)})
    elif compiled:
        sys.stdout.write(f"compiled {compiled} kernels in {seconds:.1f} s into {kept.parent}\n")
    else:
        sys.stdout.write(f"compiled before: {kept.parent}\n")
    if not (jit.JIT_OFF or kept.exists()):
        sys.stderr.write(
            f"gantrymq: {kept.parent} cannot be written, so every start compiles anew: set"
            " XDG_CACHE_HOME to a folder of this user\n"
        )
        raise typer.Exit(ExitCode.IO_ERROR)
