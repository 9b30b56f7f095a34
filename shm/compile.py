"""Compiles all kernels into one object file. Runs in a process of its own: shm/jit.py starts it.

Each kernel is compiled by numba without its wrappers and without counting of references, and gets
an entry point of ours instead. All go into one module, so that the loader has one file to link.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import types

from gantrymq.shm import jit, kernels
from gantrymq.shm.entrypoint import EntryPoint
from gantrymq.shm.jit import Entry, Kind


@dataclass(frozen=True, slots=True)
class _Kernel:
    function: Callable[..., Any]
    dispatcher: Any
    signature: tuple[Kind, ...]
    entry: Entry


_kernels: list[_Kernel] = []


def numba_type(kind: Kind) -> Any:
    """Numba's type of an argument or a result."""
    word = getattr(types, kind.word)
    if not kind.array:
        return word
    return types.Array(word, 1, "C", readonly=not kind.writable)


def external_function(name: str, result: Kind, parameters: tuple[Kind, ...]) -> Any:
    """A C function as kernels call it."""
    return types.ExternalFunction(name, numba_type(result)(*map(numba_type, parameters)))


def declare(function: Callable[..., Any], signature: tuple[Kind, ...], entry: Entry) -> Any:
    """Note a kernel, and return what others call it by."""
    # Kernels never own an array, so there is no reference to count.
    options: dict[str, Any] = {
        "error_model": "numpy",
        "boundscheck": False,
        "_nrt": False,
        "no_cfunc_wrapper": True,
        "no_cpython_wrapper": True,
    }
    dispatcher = numba.njit(**options)(function)
    if signature:
        _kernels.append(_Kernel(function, dispatcher, signature, entry))
    return dispatcher


def _compile(kernel: _Kernel, module: Any) -> str:
    """The kernel's code as LLVM's text; its entry point is added to `module`."""
    result, *parameters = map(numba_type, kernel.signature)
    kernel.dispatcher.compile(result(*parameters))
    compiled = kernel.dispatcher.overloads[tuple(parameters)]
    context = compiled.target_context
    entry = EntryPoint(context, compiled, kernel.signature, kernel.entry)
    entry.emit(module, jit.symbol_of(kernel.function), kernel.function.__name__)
    return str(compiled.library.get_llvm_str())


def _target_machine() -> Any:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if llvm.get_process_triple().startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )


def _optimize(module: Any, machine: Any) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)


def main(out: str) -> None:
    """Write the object file; print `done total name` before each kernel and at the end."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    jit.compile_by(declare, external_function)
    for found in pkgutil.iter_modules(kernels.__path__):
        importlib.import_module(f"{kernels.__name__}.{found.name}")
    machine = _target_machine()
    entries = ir.Module("entries")
    entries.triple = llvm.get_process_triple()
    entries.data_layout = str(machine.target_data)
    bodies = []
    for done, kernel in enumerate(_kernels):
        print(done, len(_kernels), kernel.function.__name__, flush=True)
        bodies.append(_compile(kernel, entries))
    whole = llvm.parse_assembly(str(entries))
    _optimize(whole, machine)
    for body in bodies:
        whole.link_in(llvm.parse_assembly(body))
    Path(out).write_bytes(machine.emit_object(whole))
    print(len(_kernels), len(_kernels), "", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
