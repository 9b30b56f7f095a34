"""Programs as an application's, and what they have sent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gantrymq.clients.consumer import ConsumeFrom, PullConsumer

FIRST = ConsumeFrom.FIRST_OFFSET
PATIENCE_S = 30.0


def bodies_of(home: Path, topic: str, count: int) -> list[bytes]:
    """All bodies of a topic, once there are so many."""
    found: list[bytes] = []
    with PullConsumer("all-" + topic, [topic], home=home, consume_from=FIRST) as consumer:
        while len(found) < count:
            batch = consumer.poll(timeout=PATIENCE_S)
            assert len(batch), f"{len(found)} of {count} came"
            found += [bytes(body) for body in batch.bodies]
        found += [bytes(body) for body in consumer.poll(timeout=0).bodies]
    return found


def run(program: str, *arguments: object) -> str:
    """Run a program as an application would; its output, nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


_LOOKS = """
import json, sys
from gantrymq.cli import main
for line in json.loads(sys.argv[1]):
    sys.argv = ["gantrymq", *line]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    print("loaded", line, {"numpy", "numba"} & sys.modules.keys(), file=sys.stderr)
    print("code", line, code, file=sys.stderr, flush=True)
"""


def require_light(lines: Sequence[Sequence[object]]) -> None:
    """Run commands one after the other in a fresh interpreter.

    Each ends well, and until its end nobody has loaded numpy or numba.
    """
    given = [[str(word) for word in line] for line in lines]
    done = subprocess.run(
        [sys.executable, "-c", _LOOKS, json.dumps(given)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if line.startswith(("loaded", "code"))]
    wanted = [text for line in given for text in (f"loaded {line} set()", f"code {line} 0")]
    assert told == wanted, done.stderr
