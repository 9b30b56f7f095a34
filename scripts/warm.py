"""Compile the kernels, or load them from the cache, and show how far it has got on stderr."""

from __future__ import annotations

import sys
import time

from gantrymq.shm import jit

_CLEAR_LINE = "\r\x1b[K"


def show(done: int, total: int, name: str) -> None:
    """Name the kernel that is next: in place on a terminal, a line each elsewhere."""
    text = f"kernels: {done}/{total} {name}"
    terminal = sys.stderr.isatty()
    print(
        f"{_CLEAR_LINE}{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr
    )
    sys.stderr.flush()


def main() -> None:
    """Warm every kernel that a broker or a client uses."""
    started = time.monotonic()
    count = jit.warm(show)
    seconds = time.monotonic() - started
    text = f"{count} compiled, all ready after {seconds:.1f} s"
    print(f"{_CLEAR_LINE if sys.stderr.isatty() else ''}kernels: {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
