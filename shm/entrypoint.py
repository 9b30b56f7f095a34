"""LLVM code by which Python calls a kernel: arguments are checked, unpacked and handed over.

A METH_FASTCALL function: (self, arguments, count). It reads numpy's array objects by the layout of
PyArrayObject, which numpy's binary interface fixes, as numba's own wrappers do. A method finds the
state of its owner (`HoldsState`) by where a class's first slot and a tuple's first item are, which
clients/fastcall.py looks at before it makes methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils

from gantrymq.shm.jit import ARRAY_DATA_AT, FIRST_ITEM_AT, STATE_SLOT_AT, Entry, Kind

_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_POINTER = _I8.as_pointer()

# Offsets in an array object, from numpy/ndarraytypes.h; Python's own head comes first.
_HEAD: Final = object.__basicsize__
_TYPE_AT: Final = _HEAD - 8
_DATA_AT: Final = ARRAY_DATA_AT
_DIMENSIONS_AT: Final = _HEAD + 8
_SHAPE_AT: Final = _HEAD + 16
_DTYPE_AT: Final = _HEAD + 40
_FLAGS_AT: Final = _HEAD + 48
#: In a dtype object: the number of the type.
_NUMBER_AT: Final = _HEAD + 12
_NUMBERS: Final = {"uint8": (2,), "int64": (7, 9)}
_ITEM_BYTES: Final = {"uint8": 1, "int64": 8}
_CONTIGUOUS, _ALIGNED, _WRITABLE = 0x1, 0x100, 0x400


class EntryPoint:
    """Emits one function into a module."""

    def __init__(self, context: Any, result: Any, signature: Sequence[Kind], entry: Entry) -> None:
        """`result` is numba's compile result of the kernel, `context` its target context."""
        self._context = context
        self._descriptor = result.fndesc
        self._kinds = signature[1:]
        self._entry = entry

    def emit(self, module: Any, symbol: str, name: str) -> None:
        """Define `symbol`, a function that calls the kernel; `name` is for messages."""
        context, described = self._context, self._descriptor
        kind = context.call_conv.get_function_type(described.restype, described.argtypes)
        callee = ir.Function(module, kind, described.llvm_func_name)
        if self._entry is Entry.METHOD:
            self._emit_method(module, symbol, callee)
        else:
            self._emit_python(module, symbol, callee, name)

    def _emit_method(self, module: Any, symbol: str, callee: Any) -> None:
        shape = ir.FunctionType(_POINTER, [_POINTER, _POINTER, _I64, _POINTER])
        function = ir.Function(module, shape, symbol)
        builder = ir.IRBuilder(function.append_basic_block())
        owner, arguments, count, names = function.args
        held = _load(builder, owner, STATE_SLOT_AT, _POINTER)
        there = builder.icmp_unsigned("!=", held, _POINTER(None))
        self._require(builder, there, "this object was made without __init__, or is being deleted")
        state = _load(builder, held, FIRST_ITEM_AT, _POINTER)
        base = _load(builder, state, _DATA_AT, _I64)
        values = [base, builder.ptrtoint(arguments, _I64), count, builder.ptrtoint(names, _I64)]
        builder.ret(builder.inttoptr(self._call(builder, callee, values), _POINTER))

    def _call(self, builder: Any, callee: Any, values: list[Any]) -> Any:
        described = self._descriptor
        _status, result = self._context.call_conv.call_function(
            builder, callee, described.restype, described.argtypes, values
        )
        return result

    def _emit_python(self, module: Any, symbol: str, callee: Any, name: str) -> None:
        shape = ir.FunctionType(_POINTER, [_POINTER, _POINTER.as_pointer(), _I64])
        function = ir.Function(module, shape, symbol)
        builder = ir.IRBuilder(function.append_basic_block())
        _self, arguments, count = function.args
        wrong = builder.icmp_signed("!=", count, _I64(len(self._kinds)))
        with builder.if_then(wrong, likely=False):
            self._refuse(builder, f"{name} takes {len(self._kinds)} arguments, by position")
        values = []
        for place, kind in enumerate(self._kinds):
            item = builder.load(builder.gep(arguments, [_I64(place)]), typ=_POINTER)
            what = f"argument {place + 1} of {name}"
            if kind.array:
                values.append(self._array(builder, item, place, what))
            else:
                values.append(self._number(builder, item))
        result = self._call_python(builder, callee, values)
        make = _declared(module, "PyLong_FromLongLong", _POINTER, [_I64])
        builder.ret(builder.call(make, [result]))

    def _call_python(self, builder: Any, callee: Any, values: list[Any]) -> Any:
        if self._entry is not Entry.WITHOUT_GIL:
            return self._call(builder, callee, values)
        module = builder.module
        release = _declared(module, "PyEval_SaveThread", _POINTER, [])
        thread = builder.call(release, [])
        result = self._call(builder, callee, values)
        take = _declared(module, "PyEval_RestoreThread", ir.VoidType(), [_POINTER])
        builder.call(take, [thread])
        return result

    def _number(self, builder: Any, item: Any) -> Any:
        """Any object with __index__ that 64 bits hold; Python has set the exception otherwise."""
        module = builder.module
        convert = _declared(module, "PyLong_AsLongLong", _I64, [_POINTER])
        occurred = _declared(module, "PyErr_Occurred", _POINTER, [])
        value = builder.call(convert, [item])
        with builder.if_then(builder.icmp_signed("==", value, _I64(-1)), likely=False):
            error = builder.call(occurred, [])
            failed = builder.icmp_unsigned("!=", error, _POINTER(None))
            with builder.if_then(failed, likely=False):
                builder.ret(_POINTER(None))
        return value

    def _array(self, builder: Any, item: Any, place: int, what: str) -> Any:
        kind = self._kinds[place]
        writable = "a writable" if kind.writable else "an"
        text = f"{what} is not {writable} array of {kind.word} in one piece"
        self._require(builder, self._is_array(builder, item), text)
        flags = _load(builder, item, _FLAGS_AT, _I32)
        wanted = _I32(_CONTIGUOUS | _ALIGNED | (_WRITABLE if kind.writable else 0))
        fits = builder.icmp_signed("==", builder.and_(flags, wanted), wanted)
        one = builder.icmp_signed("==", _load(builder, item, _DIMENSIONS_AT, _I32), _I32(1))
        number = _load(builder, _load(builder, item, _DTYPE_AT, _POINTER), _NUMBER_AT, _I32)
        typed = _I1(0)
        for code in _NUMBERS[kind.word]:
            typed = builder.or_(typed, builder.icmp_signed("==", number, _I32(code)))
        self._require(builder, builder.and_(builder.and_(fits, one), typed), text)
        return self._struct(builder, item, place)

    def _struct(self, builder: Any, item: Any, place: int) -> Any:
        """The array as numba passes it; it owns nothing, its caller holds it."""
        numba_type = self._descriptor.argtypes[place]
        array = cgutils.create_struct_proxy(numba_type)(self._context, builder)
        size = builder.load(_load(builder, item, _SHAPE_AT, _I64.as_pointer()), typ=_I64)
        item_bytes = _I64(_ITEM_BYTES[self._kinds[place].word])
        data = _load(builder, item, _DATA_AT, _POINTER)
        array.data = builder.bitcast(data, array.data.type)
        array.nitems = size
        array.itemsize = item_bytes
        array.shape = cgutils.pack_array(builder, [size])
        array.strides = cgutils.pack_array(builder, [item_bytes])
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        array.parent = cgutils.get_null_value(array.parent.type)
        return array._getvalue()

    def _is_array(self, builder: Any, item: Any) -> Any:
        """Exactly numpy's array, or a subclass of it (memmap)."""
        module = builder.module
        array_type = _object(builder, "gantrymq.ndarray")
        own = _load(builder, item, _TYPE_AT, _POINTER)
        exact = builder.icmp_unsigned("==", own, array_type)
        found = cgutils.alloca_once_value(builder, exact)
        with builder.if_then(builder.not_(exact), likely=False):
            derived = _declared(module, "PyType_IsSubtype", _I32, [_POINTER, _POINTER])
            answer = builder.call(derived, [own, array_type])
            builder.store(builder.icmp_signed("!=", answer, _I32(0)), found)
        return builder.load(found)

    def _require(self, builder: Any, holds: Any, text: str) -> None:
        with builder.if_then(builder.not_(holds), likely=False):
            self._refuse(builder, text)

    def _refuse(self, builder: Any, text: str) -> None:
        """Raise TypeError."""
        module = builder.module
        say = _declared(module, "PyErr_SetString", ir.VoidType(), [_POINTER, _POINTER])
        message = cgutils.global_constant(
            module, module.get_unique_name("text"), cgutils.make_bytearray(text.encode() + b"\0")
        )
        place = builder.bitcast(message, _POINTER)
        builder.call(say, [_object(builder, "gantrymq.type_error"), place])
        builder.ret(_POINTER(None))


def _load(builder: Any, base: Any, at: int, kind: Any) -> Any:
    place = builder.bitcast(builder.gep(base, [_I64(at)]), kind.as_pointer())
    return builder.load(place, typ=kind)


def _declared(module: Any, name: str, result: Any, parameters: Sequence[Any]) -> Any:
    return module.globals.get(name) or ir.Function(
        module, ir.FunctionType(result, parameters), name
    )


def _object(builder: Any, name: str) -> Any:
    """Address of an object of Python, from a variable that the loader sets."""
    module = builder.module
    variable = module.globals.get(name)
    if variable is None:
        variable = ir.GlobalVariable(module, _POINTER, name)
        variable.initializer = _POINTER(None)
    return builder.load(variable, typ=_POINTER)
