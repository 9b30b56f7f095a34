"""The one decorator for kernels, and the cache of what they compile to.

numba's own cache looks only at the file of a function: after a change in shm/layout.py a cached
kernel would go on writing at the old offsets. So all cached code lives in a directory named by a
hash of every file that a kernel may use, of numba, Python and the processor, and a change of any
of them is another directory. Cache files are pickles, hence mode 0700 and the user's own folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import llvmlite.binding as llvm
import numba
from numba.core import caching, config, types

P = ParamSpec("P")
R = TypeVar("R")

#: JIT off: kernels run as Python, for debugger, coverage and the schedule explorer.
JIT_OFF: Final = bool(config.DISABLE_JIT)  # type: ignore[attr-defined]

i8: Final = types.int64
BYTES: Final = types.Array(types.uint8, 1, "C")
BYTES_RO: Final = types.Array(types.uint8, 1, "C", readonly=True)
WORDS: Final = types.Array(types.int64, 1, "C")
WORDS_RO: Final = types.Array(types.int64, 1, "C", readonly=True)

_HASHED = (
    "jit.py",
    "atomics.py",
    "machine.py",
    "clmul.py",
    "layout.py",
    "limits.py",
    "codes.py",
    "structs.py",
)
_CACHES_KEPT = 4

#: Every kernel with a signature, in order of definition: what `warm` compiles.
_KERNELS: list[tuple[Any, tuple[Any, ...]]] = []


@cache
def cache_directory() -> Path:
    """Directory of compiled kernels for exactly these sources, numba, Python and processor."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "gantrymq" / "kernels" / _source_hash()


@cache
def _source_hash() -> str:
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted([here / name for name in _HASHED] + list(here.glob("kernels/*.py"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    host = (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), platform.machine())
    digest.update(repr((numba.__version__, sys.version, host)).encode())
    return digest.hexdigest()[:24]


@cache
def _writable() -> bool:
    try:
        cache_directory().mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        warnings.warn(
            f"kernel cache {cache_directory()} is not writable ({error.strerror}): every start"
            " compiles anew, which takes about a minute; set XDG_CACHE_HOME to a folder of yours",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    return os.access(cache_directory(), os.W_OK)


class _Locator(caching._CacheLocator):
    """Puts the code of all kernels into one directory that changes with any of their sources."""

    def __init__(self, function: Any) -> None:  # noqa: ANN401
        self._line = function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        return str(cache_directory())

    def get_source_stamp(self) -> str:
        return _source_hash()

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, function: Any, path: str) -> _Locator | None:  # noqa: ANN401
        ours = Path(path).parent in (Path(__file__).parent, Path(__file__).parent / "kernels")
        return cls(function) if ours else None


_locators: list[Any] = caching.CacheImpl._locator_classes
if _Locator not in _locators:
    _locators.insert(0, _Locator)


def kernel(*signature: Any, nogil: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:  # noqa: ANN401
    """Compile a function; with a signature (result first) `warm` compiles it ahead of use.

    Options: no bounds checks (callers own the arrays, kernels check what comes from outside),
    numpy's error model (no Python exceptions), cached. `nogil` lets other threads of a client run.
    A kernel without a signature is a part of others.
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        if JIT_OFF:
            return function
        compiled = numba.njit(
            cache=_writable(), nogil=nogil, error_model="numpy", boundscheck=False
        )(function)
        if signature:
            _KERNELS.append((compiled, (signature[0], signature[1:])))
        return cast("Callable[P, R]", compiled)

    return wrap


def native(*signature: Any) -> Callable[[Callable[..., int]], Any]:  # noqa: ANN401
    """Compile a function that C code may call (result first); `.address` is where it is."""

    def wrap(function: Callable[..., int]) -> Any:  # noqa: ANN401
        return numba.cfunc(signature[0](*signature[1:]), cache=_writable(), error_model="numpy")(
            function
        )

    return wrap


def warm(progress: Callable[[int, int, str], None] | None = None) -> int:
    """Compile or load every kernel of the modules imported so far.

    Calls `progress(done, total, name)` before each. Several processes may call it at once: one
    compiles, the others wait and load. Returns the number of kernels.
    """
    with _locked():
        for done, (compiled, (result, parameters)) in enumerate(_KERNELS):
            if progress:
                progress(done, len(_KERNELS), compiled.__name__)
            if not compiled.signatures:
                compiled.compile(result(*parameters))
                compiled.disable_compile()
    if progress:
        progress(len(_KERNELS), len(_KERNELS), "")
    return len(_KERNELS)


@contextmanager
def _locked() -> Iterator[None]:
    if JIT_OFF or not _writable():
        yield
        return
    descriptor = os.open(cache_directory() / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        _prune()
    finally:
        os.close(descriptor)


def _prune() -> None:
    """Keep the caches of the last few versions only; each takes a few megabytes."""
    folders = [path for path in cache_directory().parent.iterdir() if path.is_dir()]
    folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in folders[_CACHES_KEPT:]:
        if path != cache_directory():
            shutil.rmtree(path, ignore_errors=True)
