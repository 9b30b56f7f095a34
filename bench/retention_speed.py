"""What a segment costs to get and to get rid of: `python -m bench.retention_speed FOLDER`.

The figures of docs/adr/0015. Fresh, zeroed and recycled segments under a writer of 1 KiB records in
batches of 256 KiB; paced fdatasync beside a segment of a GiB that is unlinked, or punched in steps.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gantrymq.brokerd.removal import PUNCH_BYTES, PUNCH_PAUSE_NS
from gantrymq.shm.storage import PosixStorage

MIB = 1 << 20
SEGMENT = 256 * MIB
BATCH = 256 * 1024
ROUNDS = 3


def _fill(storage: PosixStorage, name: str) -> float:
    """Write a segment in batches; seconds."""
    file, batch = storage.open(name, write=True), bytes(range(256)) * (BATCH // 256)
    begin = time.perf_counter()
    for at in range(0, SEGMENT, BATCH):
        file.write_at(batch, at)
    spent = time.perf_counter() - begin
    file.sync()
    file.close()
    return spent


def _fresh(storage: PosixStorage, name: str) -> None:
    file = storage.create(name)
    file.allocate(SEGMENT)
    file.close()


def _zeroed(storage: PosixStorage, name: str) -> None:
    _fresh(storage, name)
    file = storage.open(name, write=True)
    file.zero_range(0, SEGMENT)
    file.close()


def _recycled(storage: PosixStorage, name: str) -> None:
    """An old segment, out of the page cache by then, renamed and zeroed."""
    _fresh(storage, "old")
    _fill(storage, "old")
    file = storage.open("old", write=True)
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    storage.rename("old", name)
    begin = time.perf_counter()
    file.zero_range(0, SEGMENT)
    print(f"    (zeroing it again: {SEGMENT / MIB / (time.perf_counter() - begin):.0f} MiB/s)")
    file.close()


def _recycled_as_it_is(storage: PosixStorage, name: str) -> None:
    """The same without zeroing, which the format forbids: the bound of what it could give."""
    _fresh(storage, "old")
    _fill(storage, "old")
    storage.rename("old", name)


def segments(storage: PosixStorage) -> None:
    """MiB/s of writing a whole segment, by where it comes from."""
    makers: list[Callable[[PosixStorage, str], None]] = [
        _fresh, _zeroed, _recycled, _recycled_as_it_is,
    ]  # fmt: skip
    for number in range(ROUNDS):
        for make in makers:
            name = f"segment-{number}-{make.__name__}"
            begin = time.perf_counter()
            make(storage, name)
            made = time.perf_counter() - begin
            speed = SEGMENT / MIB / _fill(storage, name)
            print(f"{make.__name__[1:]:20} {speed:7.0f} MiB/s written, made in {made:.2f} s")
            storage.unlink(name)


def _nothing(storage: PosixStorage) -> None:
    time.sleep(1)


def _unlink(storage: PosixStorage) -> None:
    storage.unlink("victim")


def _punch(storage: PosixStorage) -> None:
    file = storage.open("victim", write=True)
    for at in range(0, file.size(), PUNCH_BYTES):
        file.punch(at, PUNCH_BYTES)
        time.sleep(PUNCH_PAUSE_NS / 1e9)
    file.close()
    storage.unlink("victim")


def removals(storage: PosixStorage) -> None:
    """Paced appends of 1 KiB with fdatasync each ms beside the removal of a written GiB."""
    file = storage.create("log")
    file.allocate(64 * MIB)
    for remove in (_nothing, _unlink, _punch) * ROUNDS:
        victim = storage.create("victim")
        victim.allocate(1024 * MIB)
        for at in range(0, 1024 * MIB, 4 * MIB):
            victim.write_at(bytes(4 * MIB), at)
        victim.sync()
        victim.close()
        over, took = threading.Event(), [0.0]

        def work(over: threading.Event = over, how: Callable[..., None] = remove) -> None:
            begin = time.perf_counter()
            how(storage)
            took[0] = time.perf_counter() - begin  # noqa: B023 - joined below
            over.set()

        thread = threading.Thread(target=work)
        thread.start()
        spent: list[float] = []
        while not over.is_set() or len(spent) < 300:
            begin = time.perf_counter()
            file.write_at(bytes(1024), len(spent) % 60_000 * 1024)
            file.sync()
            spent.append(time.perf_counter() - begin)
            time.sleep(0.001)
        thread.join()
        spent.sort()
        p50, p99 = spent[len(spent) // 2] * 1e6, spent[len(spent) * 99 // 100] * 1e6
        print(
            f"{remove.__name__[1:]:10} {took[0] * 1000:7.1f} ms; append and sync p50 {p50:6.0f},"
            f" p99 {p99:7.0f}, max {spent[-1] * 1e6:8.0f} us of {len(spent)}"
        )
        if storage.exists("victim"):
            storage.unlink("victim")


def main() -> None:
    """Both, in a folder of the disk in question."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    storage = PosixStorage(str(folder))
    try:
        segments(storage)
        removals(storage)
    finally:
        for name in storage.list(""):
            storage.unlink(name)


if __name__ == "__main__":
    main()
