"""The public callables, found by inspection, and whether a value is what they say they take."""

from __future__ import annotations

import collections.abc
import enum
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from typing import Any

import msgspec
import numpy as np

import gantrymq
from gantrymq.clients.message import Texts

#: Packages whose classes are ours.
_OWN = "gantrymq"
#: Slow twins of methods of machine code, which have no hints of their own.
_TWINS = {"send_batch_async": "send_batch"}


def callables() -> dict[str, Callable[..., object]]:
    """All that is public and can be called, by the name that users know it by."""
    found: dict[str, Callable[..., object]] = {}
    for name in gantrymq.__all__:
        value = getattr(gantrymq, name)
        if not isinstance(value, type):
            if typing.get_origin(value) is None and callable(value):
                found[name] = value
        elif not issubclass(value, (BaseException, enum.Enum)):
            found[name] = value
            found |= {f"{name}.{attribute}": item for attribute, item in _methods(value)}
    return found


def _methods(kind: type) -> Iterator[tuple[str, Callable[..., object]]]:
    ours = [base for base in kind.__mro__ if base.__module__.split(".")[0] == _OWN]
    for attribute in sorted({name for base in ours for name in vars(base)}):
        value = inspect.getattr_static(kind, attribute)
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if attribute[0] != "_" and callable(value):
            yield attribute, value


def hints_of(name: str, function: Callable[..., object]) -> dict[str, object]:
    """Parameters and their types; of `**parts` each part."""
    if name == "Broker.temporary":
        return {"default_topic_queue_nums": int}  # one of its settings
    found: dict[str, object] = {}
    for parameter, hint in typing.get_type_hints(_hinted(function)).items():
        if parameter == "return" or typing.get_origin(hint) is typing.ClassVar:
            continue
        if typing.get_origin(hint) is typing.Unpack:
            found |= typing.get_type_hints(typing.get_args(hint)[0])
        else:
            found[parameter] = hint
    if isinstance(function, types.MethodDescriptorType) and function.__name__ == "send_oneway":
        for parameter in ("durability", "timeout", "transaction"):
            del found[parameter]
    return found


def _hinted(function: Any) -> Any:  # noqa: ANN401
    """What has the hints of a callable."""
    if isinstance(function, types.MethodDescriptorType):
        return getattr(gantrymq.Producer, _TWINS.get(function.__name__, "send"))
    if isinstance(function, type) and not issubclass(function, msgspec.Struct):
        return function.__init__
    return function


def conforms(value: Any, hint: Any) -> bool:  # noqa: ANN401
    """Whether a value is of a type, with what the docs allow besides: numbers of any kind."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if memoryview in arguments or getattr(hint, "__name__", "") == "Buffer":
        return is_buffer(value) or _is_another(value, arguments)
    if origin in (typing.Union, types.UnionType):
        return any(conforms(value, argument) for argument in arguments)
    if hint is Texts:
        return _conforms_in_parts(value, Iterable, (str,))
    if origin is not None:
        return _conforms_in_parts(value, origin, arguments)
    return _is_plain(value, hint)


def _is_another(value: object, arguments: tuple[Any, ...]) -> bool:
    """Of a union of buffers and something else."""
    others = [hint for hint in arguments if hint not in (bytes, bytearray, memoryview)]
    return any(conforms(value, hint) for hint in others)


def _is_plain(value: Any, hint: Any) -> bool:  # noqa: ANN401
    if hint in (Any, object):
        return True
    if hint in (None, type(None)):
        return value is None
    if hint is float:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        return is_number and not (isinstance(value, float) and math.isnan(value))
    if hint is int:
        return hasattr(value, "__index__") and not isinstance(value, bool | np.ndarray)
    return isinstance(value, hint)


def _conforms_in_parts(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:  # noqa: ANN401
    if origin is typing.Literal:
        return isinstance(value, str) and value in arguments
    if origin is collections.abc.Callable:
        return callable(value)
    if issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            conforms(name, arguments[0]) and conforms(item, arguments[1])
            for name, item in value.items()
        )
    if issubclass(origin, Iterable):
        is_listed = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        return is_listed and all(conforms(item, arguments[0]) for item in value)
    return isinstance(value, origin)


def is_buffer(value: Any) -> bool:  # noqa: ANN401
    """Whether its memory holds plain values, and is no text's."""
    try:
        return not isinstance(value, str) and "O" not in memoryview(value).format
    except (TypeError, ValueError):
        return False
