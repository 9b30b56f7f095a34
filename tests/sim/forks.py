"""Runs of the simulator's programs, each in a fork of one process that has loaded everything.

`python -m tests.sim.forks` reads lines of JSON, `{"module": ..., "arguments": [...]}`, and answers
each with `{"code": ..., "out": ..., "err": ...}`. To load the broker and its kernels takes longer
than many a run.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import traceback
from importlib import import_module
from typing import IO

from tests.sim import clients, crowds, floods, retries, scenario, seeds, storage_calls, transactions  # noqa: F401


def run(module: str, arguments: list[str]) -> tuple[int, str, str]:
    """One run in a child; its exit code and what it has said."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            _be_child(module, arguments, out, err)
        _, status = os.waitpid(child, 0)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read())
        return os.waitstatus_to_exitcode(status), said[0], said[1]


def _be_child(module: str, arguments: list[str], out: IO[str], err: IO[str]) -> None:
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    sys.argv = [module, *arguments]
    code = 0
    try:
        import_module(module).main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Serve until the input ends."""
    scenario.run(0, ())  # now the kernels are loaded, too
    gc.collect()
    gc.freeze()  # all of this stays: no fork needs to look at it
    for line in sys.stdin:
        wanted = json.loads(line)
        code, out, err = run(wanted["module"], wanted["arguments"])
        print(json.dumps({"code": code, "out": out, "err": err}), flush=True)


if __name__ == "__main__":
    main()
