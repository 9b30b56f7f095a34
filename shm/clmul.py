"""CRC-32 by carry-less multiplication (x86-64 PCLMULQDQ), as LLVM code.

A message is a polynomial over GF(2), bits reflected. 128 bits of state are folded over the next
128 by two 64x64 products with powers of x modulo the CRC's polynomial; at the end 128 bits are
reduced to 32 by Barrett's method. Constants: x^(4*128+32), x^(4*128-32), x^(128+32), x^(128-32),
x^64 mod P, P and floor(x^64 / P), all reflected.

The initial value 0xFFFFFFFF is the same as flipping the first 32 message bits, and zero bits in
front change nothing once the state starts at zero. So the odd bytes are taken first, as the end of
a block that starts with zeroes, and the rest are whole blocks: no byte-wise tail.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from gantrymq.shm.atomics import word_pointer

_FOLD_FOUR: Final = (0x154442BD4, 0x1C6E41596)
_FOLD_ONE: Final = (0x1751997D0, 0x0CCAA009E)
_REDUCE_64: Final = 0x163CD6124
_POLYNOMIAL: Final = 0x1DB710641
_QUOTIENT: Final = 0x1F7011641

_I8, _I32, _I64, _I128 = (ir.IntType(bits) for bits in (8, 32, 64, 128))
_PAIR = ir.VectorType(_I64, 2)


class _Folding:
    """Emits the pieces of the algorithm at a builder's place."""

    def __init__(self, builder: Any, base: Any) -> None:
        self.builder = builder
        self.base = base
        kind = ir.FunctionType(_PAIR, [_PAIR, _PAIR, _I8])
        name = "llvm.x86.pclmulqdq"
        module = builder.module
        self.multiply = module.globals.get(name) or ir.Function(module, kind, name)

    def pair(self, low: int, high: int) -> Any:
        return ir.Constant(_PAIR, [low, high])

    def product(self, left: Any, right: Any, halves: int) -> Any:
        """Product of one half of each; bits 0 and 4 of `halves` choose the high ones."""
        return self.builder.call(self.multiply, [left, right, ir.Constant(_I8, halves)])

    def block(self, at: Any) -> Any:
        """The 16 bytes at an offset."""
        place = self.builder.gep(self.base, [at])
        place = self.builder.bitcast(place, _PAIR.as_pointer())
        return self.builder.load(place, align=1, typ=_PAIR)

    def fold(self, state: Any, powers: tuple[int, int], after: Any) -> Any:
        """State moved on over the distance of `powers`, plus what is there.

        Vectors all the way: as i128 the state would live in two general registers.
        """
        constant = self.pair(*powers)
        low = self.product(state, constant, 0x00)
        high = self.product(state, constant, 0x11)
        return self.builder.xor(self.builder.xor(low, high), after)

    def reduce(self, state: Any) -> Any:
        """The 32-bit remainder of a 128-bit state, as i64."""
        builder = self.builder
        state = builder.bitcast(state, _I128)
        low_32 = ir.Constant(_I128, 0xFFFFFFFF)

        def times(left: Any, low: int) -> Any:
            vector = builder.bitcast(left, _PAIR)
            return builder.bitcast(self.product(vector, self.pair(low, 0), 0x00), _I128)

        state = builder.xor(builder.lshr(state, ir.Constant(_I128, 64)), times(state, _FOLD_ONE[1]))
        state = builder.xor(
            builder.lshr(state, ir.Constant(_I128, 32)),
            times(builder.and_(state, low_32), _REDUCE_64),
        )
        estimate = builder.and_(times(builder.and_(state, low_32), _QUOTIENT), low_32)
        state = builder.xor(state, times(estimate, _POLYNOMIAL))
        crc = builder.trunc(builder.lshr(state, ir.Constant(_I128, 32)), _I32)
        return builder.zext(builder.not_(crc), _I64)


def _emit(builder: Any, base: Any, count: Any) -> Any:
    folding = _Folding(builder, base)
    flip = ir.Constant(_I128, 0xFFFFFFFF)
    sixteen = ir.Constant(_I64, 16)

    # The first 1 to 16 bytes, moved to the end of their block.
    odd = builder.and_(count, ir.Constant(_I64, 15))
    whole = builder.icmp_unsigned("==", odd, ir.Constant(_I64, 0))
    head = builder.select(whole, sixteen, odd)
    gap = builder.zext(builder.shl(builder.sub(sixteen, head), ir.Constant(_I64, 3)), _I128)
    start = builder.bitcast(folding.block(ir.Constant(_I64, 0)), _I128)
    first = builder.bitcast(builder.shl(builder.xor(start, flip), gap), _PAIR)
    # With fewer than 4 odd bytes a part of the flipped bits is in the next block.
    taken = builder.zext(builder.shl(odd, ir.Constant(_I64, 3)), _I128)
    carried = builder.select(whole, ir.Constant(_I128, 0), builder.lshr(flip, taken))
    carried = builder.bitcast(carried, _PAIR)

    state = cgutils.alloca_once_value(builder, first)
    at = cgutils.alloca_once_value(builder, head)
    extra = cgutils.alloca_once_value(builder, carried)

    def next_block(distance: int) -> Any:
        place = builder.add(builder.load(at), ir.Constant(_I64, distance))
        return folding.block(place)

    _emit_by_four(builder, folding, (state, at, extra, count, next_block))
    condition = builder.append_basic_block("fold.test")
    body = builder.append_basic_block("fold.one")
    done = builder.append_basic_block("fold.done")
    builder.branch(condition)
    builder.position_at_end(condition)
    builder.cbranch(builder.icmp_unsigned("<", builder.load(at), count), body, done)
    builder.position_at_end(body)
    after = builder.xor(next_block(0), builder.load(extra))
    builder.store(folding.fold(builder.load(state), _FOLD_ONE, after), state)
    builder.store(folding.pair(0, 0), extra)
    builder.store(builder.add(builder.load(at), sixteen), at)
    builder.branch(condition)
    builder.position_at_end(done)
    return folding.reduce(builder.load(state))


def _emit_by_four(builder: Any, folding: _Folding, parts: tuple[Any, ...]) -> None:
    """Four states side by side while there are 64 bytes left: the products' latency is hidden."""
    state, at, extra, count, next_block = parts
    enough = builder.icmp_unsigned(
        ">=", builder.sub(count, builder.load(at)), ir.Constant(_I64, 112)
    )
    with builder.if_then(enough):
        lanes = [state]
        for lane in range(3):
            value = next_block(16 * lane)
            if lane == 0:
                value = builder.xor(value, builder.load(extra))
            lanes.append(cgutils.alloca_once_value(builder, value))
        builder.store(folding.pair(0, 0), extra)
        builder.store(builder.add(builder.load(at), ir.Constant(_I64, 48)), at)
        condition = builder.append_basic_block("four.test")
        body = builder.append_basic_block("four.fold")
        done = builder.append_basic_block("four.done")
        builder.branch(condition)
        builder.position_at_end(condition)
        left = builder.sub(count, builder.load(at))
        builder.cbranch(builder.icmp_unsigned(">=", left, ir.Constant(_I64, 64)), body, done)
        builder.position_at_end(body)
        for lane, place in enumerate(lanes):
            after = next_block(16 * lane)
            builder.store(folding.fold(builder.load(place), _FOLD_FOUR, after), place)
        builder.store(builder.add(builder.load(at), ir.Constant(_I64, 64)), at)
        builder.branch(condition)
        builder.position_at_end(done)
        for place in lanes[1:]:
            folded = folding.fold(builder.load(state), _FOLD_ONE, builder.load(place))
            builder.store(folded, state)


@intrinsic
def crc32_folded(typing_context, memory, at, count):  # type: ignore[no-untyped-def]
    """CRC-32 of `count` >= 16 bytes. No bounds check: reading outside is undefined."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array, offset, size = arguments
        base = word_pointer(context, builder, signature.args[0], array, offset, 8)
        return _emit(builder, base, size)

    return types.int64(memory, types.int64, types.int64), generate
