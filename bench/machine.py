"""Where figures come from: machine, versions, commit and date of a run."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

import psutil

from bench.peers import redis_server

_DISTRIBUTIONS: Final = ("gantrymq", "numba", "numpy", "pyzmq", "redis", "hiredis", "hdrhistogram")
_MEMORY_FILESYSTEMS: Final = ("tmpfs", "ramfs", "devtmpfs")


def describe(directory: Path) -> dict[str, object]:
    """Return what a result needs beside its figures to be compared with another."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": {
            "processor": _processor(),
            "architecture": platform.machine(),
            "cpus": len(os.sched_getaffinity(0)),
            "memory_bytes": psutil.virtual_memory().total,
            "kernel": platform.release(),
            "filesystem": filesystem(directory),
        },
        "versions": {
            "python": platform.python_version(),
            "redis-server": redis_server.version(),
            **{name: _version(name) for name in _DISTRIBUTIONS},
        },
    }


def filesystem(directory: Path) -> str:
    """Return the type of the file system that holds `directory`, such as `ext4`."""
    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    path = directory.resolve()
    holder = next((each for each in (path, *path.parents) if each in mounts), None)
    return mounts[holder] if holder else "unknown"


def is_in_memory(directory: Path) -> bool:
    """Return whether `directory` lies on a file system that keeps nothing on a disk."""
    return filesystem(directory) in _MEMORY_FILESYSTEMS


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Return `git describe` of this tree, with `-dirty` if it has changes."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    here = Path(__file__).parent
    try:
        said = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return said.stdout.strip() or "unknown"
