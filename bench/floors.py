"""What the machine itself takes: wake-ups between two processors, syncs of a few bytes to the disk.

Nothing on this machine that blocks in the kernel and keeps bytes can be faster than these.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from array import array
from contextlib import ExitStack, nullcontext
from pathlib import Path

from bench.crew import Crew, Outcome, Phase, SharedFd, Unavailable
from bench.harness import Bench
from bench.measure import Measurement, curve, histogram, latency, percentiles

SYNC_BYTES = 256
"""About one record of a 100 byte body with a tag."""
_MIN_CPUS = 2
_FILE_BYTES = 16 << 20
_BLOCK_BYTES = 256 << 10
_SEGMENT_BYTES = 1 << 30
KEPT_BYTES = 2 << 30
"""The broker's default of `log_page_cache`."""
_STEP_BYTES = 4 << 20
_SYNC_EACH_S = 0.1


class Ping:
    """Rings one bell and waits for the other; the round trip is what is timed."""

    def __init__(self, out: SharedFd, back: SharedFd) -> None:
        self._out, self._back = out.fd, back.fd

    def run(self, phase: Phase) -> Outcome:
        out, back = self._out, self._back
        latencies = array("q")
        started = time.monotonic_ns()
        for _ in range(phase.count):
            before = time.monotonic_ns()
            os.eventfd_write(out, 1)
            os.eventfd_read(back)
            latencies.append(time.monotonic_ns() - before)
        return Outcome(started, time.monotonic_ns(), phase.count, latencies_ns=latencies)

    def close(self) -> None:
        os.close(self._out)
        os.close(self._back)


class Echo(Ping):
    """Answers each ring, asleep in between."""

    def run(self, phase: Phase) -> Outcome:
        out, back = self._out, self._back
        started = time.monotonic_ns()
        for _ in range(phase.count):
            os.eventfd_read(out)
            os.eventfd_write(back, 1)
        return Outcome(started, time.monotonic_ns(), phase.count)


def eventfd_round_trip(bench: Bench) -> Measurement:
    """Two processes pinned to two CPUs, each asleep in read(2) until the other rings."""
    if len(os.sched_getaffinity(0)) < _MIN_CPUS:
        raise Unavailable("a round trip between two CPUs needs two CPUs")
    out, back = os.eventfd(0), os.eventfd(0)
    try:
        with Crew(bench.sizes.timeout_s, pinned=True) as crew:
            crew.start("echo", Echo, SharedFd(out), SharedFd(back))
            crew.start("ping", Ping, SharedFd(out), SharedFd(back))
            crew.run(Phase(bench.sizes.round_trips // 10))
            outcomes = crew.run(Phase(bench.sizes.round_trips))
    finally:
        os.close(out)
        os.close(back)
    return latency(outcomes, "ping", {})


def _prepare(fd: int, *, zeroed: bool) -> None:
    os.posix_fallocate(fd, 0, _FILE_BYTES)
    if zeroed:
        os.pwrite(fd, bytes(_FILE_BYTES), 0)
    os.fsync(fd)


def _pwrite_fdatasync(directory: Path, count: int, *, zeroed: bool) -> Measurement:
    """Append SYNC_BYTES at a time into a prepared file, each synced, from one process."""
    record = os.urandom(SYNC_BYTES)
    latencies = array("q")
    with tempfile.NamedTemporaryFile(dir=directory, prefix="floor-") as file:
        _prepare(file.fileno(), zeroed=zeroed)
        started = time.monotonic_ns()
        for index in range(count):
            before = time.monotonic_ns()
            os.pwrite(file.fileno(), record, index * SYNC_BYTES % _FILE_BYTES)
            os.fdatasync(file.fileno())
            latencies.append(time.monotonic_ns() - before)
        seconds = (time.monotonic_ns() - started) / 1e9
    found = histogram(latencies)
    values = percentiles(found) | {"rate": count / seconds}
    return Measurement(values=values, count=count, curve=curve(found))


def fdatasync_zeroed(bench: Bench) -> Measurement:
    """The file is written with zeros beforehand: no metadata changes, the lowest floor."""
    return _pwrite_fdatasync(bench.directory, bench.sizes.floor_syncs, zeroed=True)


def fdatasync_allocated(bench: Bench) -> Measurement:
    """The file is only allocated: each first write of a block also changes its extent."""
    return _pwrite_fdatasync(bench.directory, bench.sizes.floor_syncs, zeroed=False)


def plain_pwrite(bench: Bench, *, lets_go: bool = False) -> Measurement:
    """Write as many bytes in one call as the broker's writer at most, into new files.

    `mb_s` is the rate into the page cache, `disk_mb_s` that until all of it is on the disk. With
    `lets_go` a thread syncs all the while, and lets pages go that far behind as the broker does.
    """
    descriptors: list[int] = []
    with (
        tempfile.TemporaryDirectory(dir=bench.directory, prefix="floor-") as directory,
        ExitStack() as files,
        _Behind(descriptors) if lets_go else nullcontext() as behind,
    ):
        started = now = time.monotonic()
        block = os.urandom(_BLOCK_BYTES)
        written = 0
        while now < started + bench.sizes.sustained_s:
            file = (Path(directory) / str(written)).open("wb")
            files.enter_context(file)
            descriptors.append(file.fileno())
            at = 0
            while at < _SEGMENT_BYTES and now < started + bench.sizes.sustained_s:
                at += os.pwrite(file.fileno(), block, at)
                now = time.monotonic()
                if behind is not None:
                    behind.written = written + at
            written += at
        for descriptor in descriptors:
            os.fdatasync(descriptor)
        synced = time.monotonic()
    megabytes = written / 1e6
    values = {"mb_s": megabytes / (now - started), "disk_mb_s": megabytes / (synced - started)}
    return Measurement(values=values, count=written // _BLOCK_BYTES)


class _Behind:
    """A thread that syncs files of _SEGMENT_BYTES, and lets go of what lies KEPT_BYTES behind."""

    def __init__(self, descriptors: list[int]) -> None:
        self.written = 0
        self._descriptors = descriptors
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Behind:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        gone = 0
        while not self._over.wait(_SYNC_EACH_S):
            written = self.written
            for descriptor in self._descriptors[-2:]:
                os.fdatasync(descriptor)
            while gone + _STEP_BYTES <= written - KEPT_BYTES:
                number, start = divmod(gone, _SEGMENT_BYTES)
                descriptor = self._descriptors[number]
                os.posix_fadvise(descriptor, start, _STEP_BYTES, os.POSIX_FADV_DONTNEED)
                gone += _STEP_BYTES
