"""The one decorator for kernels, and the library of machine code that they are loaded from.

Kernels are compiled by numba once, in a process of its own (shm/compile.py), into one object file;
every other process loads that file with llvmlite alone: importing numba and setting its compiler
up takes half a second, which each command, client and broker would pay. A kernel is then a builtin
function of Python.

The file's directory is named by a hash of every source that a kernel may use, of numba, Python and
the processor, and a change of any of them is another directory: compiled offsets never outlive
shm/layout.py. It is machine code that is run, hence mode 0700 and files of the user's own.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

from gantrymq.shm.fromhandlers import Suppressed, require_ours

P = ParamSpec("P")
R = TypeVar("R")

#: JIT off: kernels run as Python, for debugger, coverage and the schedule explorer.
JIT_OFF: Final = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
#: True in the process that compiles: only there do `atomics` and `machine` define their code.
COMPILING = False


@dataclass(frozen=True, slots=True)
class Kind:
    """Type of an argument or a result: numba's letters, and for arrays whether they are written."""

    word: str
    array: bool = False
    writable: bool = False


i4: Final = Kind("int32")
i8: Final = Kind("int64")
f8: Final = Kind("float64")
void: Final = Kind("void")
BYTES: Final = Kind("uint8", array=True, writable=True)
BYTES_RO: Final = Kind("uint8", array=True)
WORDS: Final = Kind("int64", array=True, writable=True)
WORDS_RO: Final = Kind("int64", array=True)


class Entry(Enum):
    """How a kernel is called from outside."""

    PYTHON = "by Python"
    WITHOUT_GIL = "by Python, while other threads run"
    METHOD = "by Python, as a method of an object that holds its state"


#: How shm/compile.py is given functions; what it returns is what other kernels call.
Declare = Callable[[Callable[..., Any], tuple[Kind, ...], Entry], Any]
_declare: Declare | None = None
#: Likewise functions of libc or of Python: name, result, parameters.
DeclareExternal = Callable[[str, Kind, tuple[Kind, ...]], Callable[..., int]]
_declare_external: DeclareExternal | None = None

_HASHED = (
    "jit.py", "compile.py", "entrypoint.py", "atomics.py", "machine.py", "clmul.py", "layout.py",
    "limits.py", "codes.py", "opcodes.py", "structs.py", "properties.py", "fromhandlers.py",
)  # fmt: skip
_CACHES_KEPT = 4
_PRUNED_AFTER_S = 3600
_LIBRARY = "kernels"
_DIGEST_BYTES = 32
#: Where the owner of a state (`HoldsState`) has its tuple, that its first item, an array its data.
STATE_SLOT_AT: Final = object.__basicsize__
FIRST_ITEM_AT: Final = tuple.__basicsize__
ARRAY_DATA_AT: Final = object.__basicsize__
_METH_FASTCALL = 0x0080
_METH_KEYWORDS = 0x0002


@cache
def cache_directory() -> Path:
    """Directory of compiled kernels for exactly these sources, numba, Python and processor.

    Raises FileNotFoundError where no folder of this user is known.
    """
    from gantrymq.shm import ownfiles  # no kernel uses it

    base = ownfiles.user_folder(os.environ, "XDG_CACHE_HOME", ".cache")
    return base / "gantrymq" / "kernels" / _source_hash()


@cache
def _source_hash() -> str:
    import llvmlite
    import llvmlite.binding as llvm

    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted([here / name for name in _HASHED] + list(here.glob("kernels/*.py"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    host = (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), platform.machine())
    made_by = (_numba_version(), llvmlite.__version__, sys.version, object.__basicsize__, host)
    digest.update(repr(made_by).encode())
    return digest.hexdigest()[:24]


def _numba_version() -> bytes:
    """The file that says it, without importing numba."""
    found = importlib.util.find_spec("numba")
    folders = list(found.submodule_search_locations or ()) if found else []
    return b"".join((Path(folder) / "_version.py").read_bytes() for folder in folders)


@cache
def _writable() -> bool:
    from gantrymq.shm import ownfiles  # no kernel uses it

    try:
        cache_directory().mkdir(mode=0o700, parents=True, exist_ok=True)
        ownfiles.require_trusted(cache_directory())
    except OSError as error:
        require_ours(error)
        warnings.warn(
            f"the kernel cache is not writable ({error}): every start compiles anew, which takes"
            " about half a minute; set XDG_CACHE_HOME to a folder of yours",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    return os.access(cache_directory(), os.W_OK)


# ---------------------------------------------------------------------------------- decorators


def compile_by(declare: Declare, declare_external: DeclareExternal) -> None:
    """From now on functions go to these: for the process that compiles, before any other import."""
    global COMPILING, _declare, _declare_external  # noqa: PLW0603 - this process does nothing else
    COMPILING = True
    _declare, _declare_external = declare, declare_external


def kernel(*signature: Kind, nogil: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A compiled function; with a signature (result first) Python can call it, by position.

    No bounds checks (callers own the arrays, kernels check what comes from outside), numpy's error
    model (no Python exceptions). Arguments of other types raise TypeError. `nogil` lets other
    threads of a client run. A kernel without a signature is a part of others.
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        if JIT_OFF:
            return function
        if _declare is not None:
            entry = Entry.WITHOUT_GIL if nogil else Entry.PYTHON
            return cast("Callable[P, R]", _declare(function, signature, entry))
        if not signature:
            return function
        made = builtin_function(function.__name__, load().address(symbol_of(function)))
        return cast("Callable[P, R]", made)

    return wrap


@dataclass(frozen=True, slots=True)
class Method:
    """Machine code of a method; `method_of` makes it one of a class."""

    address: int


def method(function: Callable[[int, int, int, int], int]) -> Method:
    """Compile a method: (address of the owner's state, arguments, their count, names of keywords).

    These are as METH_FASTCALL | METH_KEYWORDS has them; it returns an object's address, or 0 with
    an exception set. The owner is as `HoldsState` says.
    """
    if _declare is not None:
        _declare(function, (i8, i8, i8, i8, i8), Entry.METHOD)
        return Method(0)
    return Method(load().address(symbol_of(function)))


def external(name: str, result: Kind, *parameters: Kind) -> Callable[..., int]:
    """A function of libc or of Python that kernels may call; all arguments are numbers."""
    if _declare_external is not None:
        return _declare_external(name, result, parameters)

    def refuse(*_arguments: int) -> int:
        raise NotImplementedError(f"{name} is for kernels only")

    return refuse


def symbol_of(function: Callable[..., Any]) -> str:
    """A kernel's name in the library."""
    return f"{function.__module__}.{function.__qualname__}"


class _MethodDefinition(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class HoldsState:
    """Has methods of machine code, which find its state by the one slot.

    `_native` is a tuple whose first item is the state, an array; the others are whatever the state
    has addresses of. A tuple is never emptied, not by the collector of cycles either: so a method
    that finds it finds all of that alive. One that finds none raises TypeError.
    """

    __slots__ = ("_native",)
    _native: tuple[Any, ...]


def builtin_function(name: str, address: int) -> Callable[..., Any]:
    """A METH_FASTCALL function of machine code as a function of Python."""
    definition = _definition(name, address, _METH_FASTCALL, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.POINTER(_MethodDefinition), ctypes.c_void_p, ctypes.c_void_p)
    return cast("Callable[..., Any]", make(ctypes.byref(definition), None, None))


def method_of(owner: type[HoldsState], name: str, code: Method, doc: str | None) -> Any:  # noqa: ANN401
    """A descriptor for a class, as those of methods of built-in types; what it binds is held.

    `doc` may begin with a text signature.
    """
    flags = _METH_FASTCALL | _METH_KEYWORDS
    definition = _definition(name, code.address, flags, None if doc is None else doc.encode())
    make = ctypes.pythonapi.PyDescr_NewMethod
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.py_object, ctypes.POINTER(_MethodDefinition))
    return make(owner, ctypes.byref(definition))


def _definition(name: str, address: int, flags: int, doc: bytes | None) -> _MethodDefinition:
    """What a function refers to without holding it; as many as there are kernels and methods."""
    definition = _MethodDefinition(name.encode(), address, flags, doc)
    _keep_for_ever(definition)
    return definition


def _keep_for_ever(thing: object) -> None:
    """Also when the interpreter ends: finalizers and other threads may still call functions."""
    keep = ctypes.pythonapi.Py_IncRef
    keep.argtypes = (ctypes.py_object,)
    keep.restype = None
    keep(thing)


# ------------------------------------------------------------------------------------- library


class Library:
    """The loaded machine code."""

    def __init__(self, code: bytes) -> None:
        import llvmlite.binding as llvm
        import numpy as np

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.load_library_permanently("")  # names of Python and libc
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self._tell("gantrymq.ndarray", np.ndarray)
        self._tell("gantrymq.type_error", TypeError)

    def address(self, symbol: str) -> int:
        """Where a kernel is. Raises LookupError."""
        found = int(self._engine.get_function_address(symbol))
        if not found:
            raise LookupError(f"{symbol} is not in the library of kernels")
        return found

    def _tell(self, variable: str, known: type) -> None:
        """Where an object of this Python is, if a kernel needs it."""
        at = self._engine.get_global_value_address(variable)
        if at:
            ctypes.c_size_t.from_address(at).value = id(known)


#: Called with (done, total, name) before each kernel is compiled, and at the end.
Progress = Callable[[int, int, str], None]


def warm(progress: Progress | None = None) -> int:
    """Load the library of kernels; compile it first if there is none.

    Call it before modules of kernels are imported to see the progress. Several processes may call
    it at once: one compiles, the others wait and load. Returns the number of kernels compiled, 0
    if they were there or the JIT is off. Raises OSError if the compiler can't be run.
    """
    if JIT_OFF or COMPILING:
        return 0
    compiled = 0

    def note(done: int, total: int, name: str) -> None:
        nonlocal compiled
        compiled = done
        if progress:
            progress(done, total, name)

    _load(note)
    return compiled


_library: Library | None = None


def load() -> Library:
    """The library; compiled first if there is none."""
    return _library or _load(None)


def _load(progress: Progress | None) -> Library:
    global _library  # noqa: PLW0603 - one per process, and only a load makes it
    if _library is None:
        _library = Library(_read_code() or _make_code(progress))
        _keep_for_ever(_library)
    return _library


def _read_code() -> bytes | None:
    """The object file of the cache; None if there is none, or not whole, or not of this user."""
    from gantrymq.shm import ownfiles  # no kernel uses it

    try:
        content = ownfiles.read_trusted(cache_directory() / _LIBRARY)
    except OSError as error:
        require_ours(error)
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if not code or hashlib.sha256(code).digest() != digest:
        return None
    with Suppressed(OSError):  # another user's
        os.utime(cache_directory())  # what is in use is not pruned as old
    return code


def _make_code(progress: Progress | None) -> bytes:
    """Let another process compile: this one stays without numba and may fork."""
    from gantrymq.shm import ownfiles  # no kernel uses it

    if not _writable():
        with tempfile.TemporaryDirectory(prefix="gantrymq-") as folder:
            return _compile(Path(folder), progress)
    with _locked():
        code = _read_code()  # another process may have made it meanwhile
        if code is None:
            code = _compile(cache_directory(), progress)
            kept = cache_directory() / f"{_LIBRARY}.{os.getpid()}"
            whole = hashlib.sha256(code).digest() + code
            ownfiles.replace_whole(cache_directory() / _LIBRARY, whole, temporary=kept)
            _prune()
    return code


def _compile(folder: Path, progress: Progress | None) -> bytes:
    """Run shm/compile.py; it prints `done total name` before each kernel."""
    out = folder / f"code.{os.getpid()}"
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        " from gantrymq.shm.compile import main; main(sys.argv[2])"
    )
    parent = str(Path(__file__).absolute().parents[2])  # of the package: shm may be a link
    command = [sys.executable, "-P", "-c", program, parent, str(out)]
    # numba's own settings are not a part of the directory's name.
    environment = {name: text for name, text in os.environ.items() if name[:6] != "NUMBA_"}
    try:
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                for line in process.stdout or ():
                    done, total, name = line.rstrip("\n").split(" ", 2)
                    if progress:
                        progress(int(done), int(total), name)
            except BaseException:  # who waits was told to stop: so is the compiler
                process.kill()
                raise
        if process.returncode:
            raise OSError(f"compiling the kernels ended with exit code {process.returncode}")
        return out.read_bytes()
    finally:
        out.unlink(missing_ok=True)


@contextmanager
def _locked() -> Iterator[None]:
    from gantrymq.shm import ownfiles  # no kernel uses it

    with ownfiles.open_file(cache_directory() / "lock", os.O_RDWR | os.O_CREAT) as lock:
        fcntl.flock(lock.number, fcntl.LOCK_EX)
        yield


def _prune() -> None:
    """Keep the versions used last only, and those that may just be made by somebody else."""
    now = (cache_directory() / _LIBRARY).stat().st_mtime
    folders = [path for path in cache_directory().parent.iterdir() if path.is_dir()]
    used = sorted(((path.stat().st_mtime, path) for path in folders), reverse=True)
    for time, path in used[_CACHES_KEPT:]:
        if path != cache_directory() and time < now - _PRUNED_AFTER_S:
            shutil.rmtree(path, ignore_errors=True)
