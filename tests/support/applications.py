"""Programs as an application's, and what they have sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from clients.consumer import ConsumeFrom, PullConsumer

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
