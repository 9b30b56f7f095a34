"""The store's lock excludes others as long as any process holds the open file (SF-86)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gantrymq.brokerd import lock
from gantrymq.shm.errors import StoreBusy
from gantrymq.shm.storelock import is_held


def test_a_second_holder_is_refused(store_dir: Path) -> None:
    held = lock.acquire(store_dir, 0)
    assert is_held(store_dir)
    with pytest.raises(StoreBusy, match="another broker holds"):
        lock.acquire(store_dir, 0.05)
    held.close()
    assert not is_held(store_dir)
    lock.acquire(store_dir, 0).close()


def test_looking_does_not_take_the_lock_away(store_dir: Path) -> None:
    """Closing another descriptor of the file would release a POSIX record lock."""
    held = lock.acquire(store_dir, 0)
    for _ in range(3):
        assert is_held(store_dir)
    held.close()


def test_a_child_keeps_the_lock(store_dir: Path) -> None:
    held = lock.acquire(store_dir, 0)
    go_read, go_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go_write)
        os.read(go_read, 1)
        os._exit(0)
    os.close(go_read)
    held.close()
    with pytest.raises(StoreBusy):
        lock.acquire(store_dir, 0.05)
    os.close(go_write)
    os.waitpid(child, 0)
    lock.acquire(store_dir, 1.0).close()


def test_a_store_without_lock_file_is_free(store_dir: Path) -> None:
    assert not is_held(store_dir)


def test_waiting_ends_when_told(store_dir: Path) -> None:
    held = lock.acquire(store_dir, 0)
    with pytest.raises(StoreBusy):
        lock.acquire(store_dir, 3600, alive=lambda: False)
    held.close()
