"""Calls of the public API, in interpreters of their own, which have to outlive them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from gantrymq.shm.codes import ExitCode
from tests.extremes.honest import Honest, started

#: Calls of one interpreter, and in which ways they are made.
OF_ONE = 25_000
WAYS = ("plain", "threads", "callbacks", "closed", "away")
#: Of calls without a broker so many fewer: each waits for its timeout.
AWAY_PART = 1000
PATIENCE_S = 600.0


def play(honest: Honest, count: int, seed: int) -> Iterator[int]:
    """Make so many calls; yields how many there were, after each interpreter."""
    done = 0
    of_one = min(OF_ONE, -(-count // len(WAYS)))
    while done < count:
        for way in WAYS:
            made = of_one
            if way == "away":
                made = max(1, of_one // AWAY_PART)
                play_away(honest, made, seed)
            else:
                play_one(honest, way, made, seed)
            done, seed = done + made, seed + 1
            yield done


def play_one(honest: Honest, way: str, count: int, seed: int) -> None:
    """One interpreter beside honest clients."""
    with called(honest, way, count, seed) as process:
        finish(process, way, seed)


def play_away(honest: Honest, count: int, seed: int) -> None:
    """One whose broker is killed before it calls."""
    home = honest.broker.home.with_name(f"away-{seed}")
    with started(home) as broker:
        other = Honest(broker)
        other.close()
        with called(other, "away", count, seed) as process:
            broker.process.kill()
            broker.process.wait()
            finish(process, "away", seed)


def called(honest: Honest, way: str, count: int, seed: int) -> subprocess.Popen[str]:
    """An interpreter that is attached."""
    arguments = [str(honest.broker.home), str(count), str(seed), way]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.extremes.caller", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def finish(process: subprocess.Popen[str], way: str, seed: int) -> None:
    """Let it call, to its end."""
    said, complained = process.communicate("\n", timeout=PATIENCE_S)
    assert process.returncode == ExitCode.OK, (
        f"{way}, seed {seed}: exit code {process.returncode}\n{said[-8000:]}\n{complained[-4000:]}"
    )
