"""From `gantrymq serve` to ready, with kernels to compile and with kernels from the cache."""

from __future__ import annotations

from bench.harness import Bench
from bench.measure import Measurement
from bench.ours import scratch, serving


def cold(bench: Bench) -> Measurement:
    """An empty cache directory: every kernel is compiled."""
    with scratch(bench) as directory:
        cache = {"XDG_CACHE_HOME": str(directory / "cache")}
        with serving(directory, {}, bench.sizes.timeout_s, cache) as server:
            return Measurement(values={"seconds": server.ready_s})


def warm(bench: Bench) -> Measurement:
    """The user's cache, filled by a start before the one that is measured."""
    with scratch(bench) as directory:
        with serving(directory, {}, bench.sizes.timeout_s):
            pass
        with serving(directory, {}, bench.sizes.timeout_s) as server:
            return Measurement(values={"seconds": server.ready_s})
