"""Play one kind, or all; see the package."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.extremes import calls, frames, requests, words
from tests.extremes.honest import Honest, require_sound, started

KINDS: dict[str, Callable[[Honest, int, int], Iterator[int]]] = {
    "calls": calls.play,
    "requests": requests.play,
    "frames": frames.play,
    "words": words.play,
}


def run(kind: str, count: int, seed: int, folder: Path) -> None:
    """Play one kind; raises AssertionError for whatever may not be."""
    print(f"{kind}: seed {seed}", file=sys.stderr, flush=True)
    began = time.monotonic()
    with started(folder / "home") as broker:
        honest = Honest(broker)
        honest.round()
        told = done = 0
        for done in KINDS[kind](honest, count, seed):
            honest.round()
            if done >= told + count // 10:
                told = done
                took = time.monotonic() - began
                print(f"{kind}: {done} in {took:.0f} s", file=sys.stderr, flush=True)
        honest.finish()
        require_sound(broker)
    print(f"{kind}: {done} in {time.monotonic() - began:.0f} s, all held", file=sys.stderr)


def main() -> None:
    """As the package says."""
    parser = argparse.ArgumentParser(prog="python -m tests.extremes", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--count", type=int, default=1_000_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    for kind in given.kinds:
        seed = secrets.randbelow(1 << 31) if given.seed is None else given.seed
        with tempfile.TemporaryDirectory(prefix="gantrymq-extremes-") as folder:
            run(kind, given.count, seed, Path(folder))


if __name__ == "__main__":
    main()
