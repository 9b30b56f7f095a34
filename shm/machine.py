"""Plain words, copies and checksums in arrays of bytes, one machine instruction or few each.

All take (array of uint8, byte offset, ...) and check nothing. `be` = big-endian, as in RocketMQ's
files (SF-1). Results are int64; 16- and 32-bit words come unsigned unless the name says otherwise.
With the JIT off the same names are plain Python.

`raw` turns an array into what inner functions of a kernel pass on: numba counts references of an
array at each call of a function that it does not inline, which took more time than the encoding.
The caller of the kernel holds the arrays, so nothing is lost by not counting inside.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import time
import zlib
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.jit import COMPILING, JIT_OFF, external, i4, i8, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

Item = TypeVar("Item", bound="np.generic")

if JIT_OFF or TYPE_CHECKING:
    #: Further than any memory of ours; kernels know its true size.
    _ANY_BYTES = ctypes.c_uint8 * (1 << 40)

    def _load(memory: Bytes, at: int, size: int, order: Any, signed: bool) -> int:
        return int.from_bytes(memory[at : at + size].tobytes(), order, signed=signed)

    def _store(memory: Bytes, at: int, size: int, order: Any, value: int) -> None:
        word = (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, order)
        memory[at : at + size] = np.frombuffer(word, np.uint8)

    def raw(memory: NDArray[Item]) -> NDArray[Item]:
        """The array, without counting references to it. Only for arrays that a caller holds."""
        return memory

    def bytes_at(address: int) -> Bytes:
        """Memory at an address, like `raw`'s. Whoever gave the address holds the memory."""
        place = _ANY_BYTES.from_address(int(address) or 8)  # numpy takes 0 for none; none is read
        memory: Bytes = np.frombuffer(memoryview(place), np.uint8)
        return memory

    def words_at(address: int) -> NDArray[np.int64]:
        """Words at an address, likewise."""
        return bytes_at(address).view(np.int64)

    def shift(memory: NDArray[Item], count: int) -> NDArray[Item]:
        """What `raw` gave, from its element `count` on."""
        return memory[count:]

    def load8(memory: Bytes, at: int) -> int:
        """One byte, unsigned."""
        return int(memory[at])

    def load16(memory: Bytes, at: int) -> int:
        """Native 16-bit word."""
        return _load(memory, at, 2, "little", False)

    def load32(memory: Bytes, at: int) -> int:
        """Native 32-bit word."""
        return _load(memory, at, 4, "little", False)

    def load64(memory: Bytes, at: int) -> int:
        """Native 64-bit word, signed."""
        return _load(memory, at, 8, "little", True)

    def load_be16(memory: Bytes, at: int) -> int:
        """Big-endian 16-bit word, unsigned."""
        return _load(memory, at, 2, "big", False)

    def load_be32(memory: Bytes, at: int) -> int:
        """Big-endian 32-bit word, unsigned."""
        return _load(memory, at, 4, "big", False)

    def load_be64(memory: Bytes, at: int) -> int:
        """Big-endian 64-bit word, signed."""
        return _load(memory, at, 8, "big", True)

    def store16(memory: Bytes, at: int, value: int) -> None:
        """Native 16-bit word."""
        _store(memory, at, 2, "little", value)

    def store32(memory: Bytes, at: int, value: int) -> None:
        """Native 32-bit word."""
        _store(memory, at, 4, "little", value)

    def store64(memory: Bytes, at: int, value: int) -> None:
        """Native 64-bit word."""
        _store(memory, at, 8, "little", value)

    def store_be16(memory: Bytes, at: int, value: int) -> None:
        """Big-endian 16-bit word."""
        _store(memory, at, 2, "big", value)

    def store_be32(memory: Bytes, at: int, value: int) -> None:
        """Big-endian 32-bit word."""
        _store(memory, at, 4, "big", value)

    def store_be64(memory: Bytes, at: int, value: int) -> None:
        """Big-endian 64-bit word."""
        _store(memory, at, 8, "big", value)

    def pause() -> None:
        """Tell the processor that this is a spin loop."""

    def give_way() -> int:
        """Let whoever waits for this processor run first."""
        os.sched_yield()
        return 0

    def monotonic_ns() -> int:
        """Nanoseconds of the clock that never goes back."""
        return time.monotonic_ns()

    def write_at(descriptor: int, address: int, count: int, position: int) -> int:
        """Pwrite of memory; how many bytes were written, or minus errno."""
        try:
            return os.pwrite(descriptor, bytes_at(address)[:count].tobytes(), position)
        except OSError as error:
            require_ours(error)
            return -int(error.errno or errno.EIO)

    def copy(target: Bytes, target_at: int, source: Bytes, source_at: int, count: int) -> None:
        """Copy `count` bytes; the ranges must not overlap."""
        target[target_at : target_at + count] = source[source_at : source_at + count]

    def prefetch(memory: Bytes, at: int) -> None:
        """Ask for the cache line of a byte that is read soon; never faults."""

    def crc32(memory: Bytes, at: int, count: int) -> int:
        """CRC-32 of `count` bytes, as zlib's."""
        return zlib.crc32(memory[at : at + count].tobytes())

elif COMPILING:
    import llvmlite.binding as llvm
    from llvmlite import ir
    from numba.core import cgutils, config, types
    from numba.extending import intrinsic

    from gantrymq.shm.atomics import word_pointer

    _I64 = ir.IntType(64)
    _CLOCK_MONOTONIC = time.CLOCK_MONOTONIC

    def _swapped(builder, value, bits, big):
        if not big or bits == 8:
            return value
        name = f"llvm.bswap.i{bits}"
        kind = ir.FunctionType(ir.IntType(bits), [ir.IntType(bits)])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(function, [value])

    def _make_load(bits: int, big: bool) -> Any:
        @intrinsic
        def load(typing_context, memory, at):
            def generate(context, builder, signature, arguments):
                array, offset = arguments
                place = word_pointer(context, builder, signature.args[0], array, offset, bits)
                value = builder.load(place, align=1, typ=ir.IntType(bits))
                value = _swapped(builder, value, bits, big)
                return value if bits == 64 else builder.zext(value, _I64)

            return types.int64(memory, types.int64), generate

        return load

    def _make_store(bits: int, big: bool) -> Any:
        @intrinsic
        def store(typing_context, memory, at, value):
            def generate(context, builder, signature, arguments):
                array, offset, word = arguments
                place = word_pointer(context, builder, signature.args[0], array, offset, bits)
                if bits != 64:
                    word = builder.trunc(word, ir.IntType(bits))
                builder.store(_swapped(builder, word, bits, big), place, align=1)
                return context.get_dummy_value()

            return types.void(memory, types.int64, types.int64), generate

        return store

    load8, load16, load32, load64 = (_make_load(bits, False) for bits in (8, 16, 32, 64))
    load_be16, load_be32, load_be64 = (_make_load(bits, True) for bits in (16, 32, 64))
    store16, store32, store64 = (_make_store(bits, False) for bits in (16, 32, 64))
    store_be16, store_be32, store_be64 = (_make_store(bits, True) for bits in (16, 32, 64))

    @intrinsic
    def raw(typing_context, memory):
        def generate(context, builder, signature, arguments):
            array = cgutils.create_struct_proxy(signature.args[0])(
                context, builder, value=arguments[0]
            )
            return array.data

        return types.CPointer(memory.dtype)(memory), generate

    def _make_pointer(dtype: Any) -> Any:
        @intrinsic
        def pointer(typing_context, address):
            def generate(context, builder, signature, arguments):
                kind = context.get_value_type(types.CPointer(dtype))
                return builder.inttoptr(arguments[0], kind)

            return types.CPointer(dtype)(types.int64), generate

        return pointer

    bytes_at = _make_pointer(types.uint8)
    words_at = _make_pointer(types.int64)

    @intrinsic
    def shift(typing_context, memory, count):
        def generate(context, builder, signature, arguments):
            return builder.gep(arguments[0], [arguments[1]])

        return memory(memory, types.int64), generate

    give_way = external("sched_yield", i4)
    _clock_gettime = external("clock_gettime", i4, i4, i8)

    @intrinsic
    def _timespec_at(typing_context):
        def generate(context, builder, signature, arguments):
            room = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
            return builder.ptrtoint(room, _I64)

        return types.int64(), generate

    @kernel()
    def monotonic_ns() -> int:
        at = _timespec_at()
        _clock_gettime(_CLOCK_MONOTONIC, at)
        return load64(bytes_at(at), 0) * 1_000_000_000 + load64(bytes_at(at), 8)

    _pwrite = external("pwrite", i8, i4, i8, i8, i8)
    _errno_at = external("__errno_location", i8)

    @kernel()
    def write_at(descriptor: int, address: int, count: int, position: int) -> int:
        done = _pwrite(descriptor, address, count, position)
        return done if done >= 0 else -load32(bytes_at(_errno_at()), 0)

    @intrinsic
    def pause(typing_context):
        def generate(context, builder, signature, arguments):
            if platform.machine() == "x86_64":
                kind = ir.FunctionType(ir.VoidType(), [])
                name = "llvm.x86.sse2.pause"
                module = builder.module
                builder.call(module.globals.get(name) or ir.Function(module, kind, name), [])
            return context.get_dummy_value()

        return types.void(), generate

    @intrinsic
    def copy(typing_context, target, target_at, source, source_at, count):
        def generate(context, builder, signature, arguments):
            to, to_at, source_array, from_at, size = arguments
            place = word_pointer(context, builder, signature.args[0], to, to_at, 8)
            origin = word_pointer(context, builder, signature.args[2], source_array, from_at, 8)
            name = "llvm.memcpy.p0.p0.i64"
            pointer = ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, _I64, ir.IntType(1)])
            function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            builder.call(function, [place, origin, size, ir.Constant(ir.IntType(1), 0)])
            return context.get_dummy_value()

        word = types.int64
        return types.void(target, word, source, word, word), generate

    @intrinsic
    def prefetch(typing_context, memory, at):
        def generate(context, builder, signature, arguments):
            place = word_pointer(context, builder, signature.args[0], *arguments, 8)
            pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
            name = "llvm.prefetch.p0"
            kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
            function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            # A read, kept in all levels, of data.
            builder.call(function, [place, i32(0), i32(3), i32(1)])
            return context.get_dummy_value()

        return types.void(memory, types.int64), generate

    def _slices() -> np.ndarray:
        """Eight tables: byte i of a 64-bit word at once (portable way)."""
        table = np.zeros(8 * 256, np.uint32)
        for byte in range(256):
            value = byte
            for _ in range(8):
                value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
            table[byte] = value
        for byte in range(256):
            value = int(table[byte])
            for level in range(1, 8):
                value = (value >> 8) ^ int(table[value & 0xFF])
                table[level * 256 + byte] = value
        return table

    _TABLE = _slices()

    @kernel()
    def _crc32_table(memory: Bytes, at: int, count: int) -> int:
        crc = np.uint32(0xFFFFFFFF)
        end = at + count
        while at + 8 <= end:
            low = np.uint32(load32(memory, at)) ^ crc
            high = np.uint32(load32(memory, at + 4))
            crc = (
                _TABLE[1792 + (low & 0xFF)]
                ^ _TABLE[1536 + ((low >> 8) & 0xFF)]
                ^ _TABLE[1280 + ((low >> 16) & 0xFF)]
                ^ _TABLE[1024 + (low >> 24)]
                ^ _TABLE[768 + (high & 0xFF)]
                ^ _TABLE[512 + ((high >> 8) & 0xFF)]
                ^ _TABLE[256 + ((high >> 16) & 0xFF)]
                ^ _TABLE[high >> 24]
            )
            at += 8
        while at < end:
            crc = _TABLE[(crc ^ memory[at]) & 0xFF] ^ (crc >> np.uint32(8))
            at += 1
        return np.int64(crc ^ np.uint32(0xFFFFFFFF))

    def _host_has(feature: str) -> bool:
        return bool(llvm.get_host_cpu_features().get(feature)) and not config.CPU_NAME

    if platform.machine() == "x86_64" and _host_has("pclmul"):
        from gantrymq.shm.clmul import crc32_folded

        @kernel()
        def crc32(memory: Bytes, at: int, count: int) -> int:
            """CRC-32 of `count` bytes, as zlib's: carry-less multiplication from 16 bytes on."""
            if count < 16:
                return _crc32_table(memory, at, count)
            return crc32_folded(memory, at, count)

    elif platform.machine() == "aarch64" and _host_has("crc"):

        def _make_step(bits: int, name: str) -> Any:
            @intrinsic
            def step(typing_context, crc, word):
                def generate(context, builder, signature, arguments):
                    value = builder.trunc(arguments[0], ir.IntType(32))
                    data = arguments[1]
                    if bits != 64:
                        data = builder.trunc(data, ir.IntType(32))
                    kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), data.type])
                    function = builder.module.globals.get(name) or ir.Function(
                        builder.module, kind, name
                    )
                    return builder.zext(builder.call(function, [value, data]), _I64)

                return types.int64(types.int64, types.int64), generate

            return step

        _step64 = _make_step(64, "llvm.aarch64.crc32x")
        _step8 = _make_step(8, "llvm.aarch64.crc32b")

        @kernel()
        def crc32(memory: Bytes, at: int, count: int) -> int:
            """CRC-32 of `count` bytes, as zlib's, by the processor's instruction."""
            crc = 0xFFFFFFFF
            end = at + count
            while at + 8 <= end:
                crc = _step64(crc, load64(memory, at))
                at += 8
            while at < end:
                crc = _step8(crc, np.int64(memory[at]))
                at += 1
            return crc ^ 0xFFFFFFFF

    else:
        crc32 = _crc32_table
