"""Atomic words in arrays of bytes: the only memory orderings of the project.

All take (array of uint8, byte offset, ...) and check nothing: the offset must be aligned and
inside. With the JIT off the same names are plain Python, which calls a hook before each access, so
that a test can choose who runs next.

Every release and acquire pair carries ``SYNC POINT: <name>`` at both ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gantrymq.shm.jit import COMPILING, JIT_OFF

if COMPILING:
    from llvmlite import ir
    from numba.core import cgutils, types

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

_hook: Callable[[], None] | None = None


def set_hook(hook: Callable[[], None] | None) -> None:
    """With the JIT off: call this before each access (the schedule explorer's baton)."""
    global _hook  # noqa: PLW0603 - the explorer owns the process
    _hook = hook


def word_pointer(
    context: Any, builder: Any, array_type: Any, array: Any, at: Any, bits: int
) -> Any:
    """Pointer to a word of `bits` bits at a byte offset of an array, or of `machine.raw`'s."""
    if isinstance(array_type, types.CPointer):
        data = array
    else:
        data = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
    place = builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer()), [at])
    return builder.bitcast(place, ir.IntType(bits).as_pointer())


if JIT_OFF or TYPE_CHECKING:

    def _step() -> None:
        if _hook is not None:
            _hook()

    def load_acquire(memory: Bytes, at: int) -> int:
        """A 64-bit word; what its writer did before its release is visible afterwards."""
        _step()
        return int.from_bytes(memory[at : at + 8].tobytes(), "little", signed=True)

    def store_release(memory: Bytes, at: int, value: int) -> None:
        """A 64-bit word; everything before is visible to whoever acquires it."""
        _step()
        memory[at : at + 8] = np.frombuffer(int(value).to_bytes(8, "little", signed=True), np.uint8)

    def load_acquire32(memory: Bytes, at: int) -> int:
        """A 32-bit word, unsigned."""
        _step()
        return int.from_bytes(memory[at : at + 4].tobytes(), "little")

    def store_release32(memory: Bytes, at: int, value: int) -> None:
        """A 32-bit word."""
        _step()
        memory[at : at + 4] = np.frombuffer(int(value).to_bytes(4, "little"), np.uint8)

    def fence() -> None:
        """A full fence: no load behind it is done before a store in front of it is visible."""
        _step()

elif COMPILING:
    from numba.extending import intrinsic

    def _make_load(bits: int) -> Any:
        @intrinsic
        def load(typing_context, memory, at):
            def generate(context, builder, signature, arguments):
                array, offset = arguments
                place = word_pointer(context, builder, signature.args[0], array, offset, bits)
                value = builder.load_atomic(place, "acquire", bits // 8, typ=ir.IntType(bits))
                return value if bits == 64 else builder.zext(value, ir.IntType(64))

            return types.int64(memory, types.int64), generate

        return load

    def _make_store(bits: int) -> Any:
        @intrinsic
        def store(typing_context, memory, at, value):
            def generate(context, builder, signature, arguments):
                array, offset, word = arguments
                place = word_pointer(context, builder, signature.args[0], array, offset, bits)
                if bits != 64:
                    word = builder.trunc(word, ir.IntType(bits))
                builder.store_atomic(word, place, "release", bits // 8)
                return context.get_dummy_value()

            return types.void(memory, types.int64, types.int64), generate

        return store

    load_acquire = _make_load(64)
    load_acquire32 = _make_load(32)
    store_release = _make_store(64)
    store_release32 = _make_store(32)

    @intrinsic
    def fence(typing_context):
        def generate(context, builder, signature, arguments):
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return types.void(), generate
