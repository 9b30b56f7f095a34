"""Makes the native put of shm/kernels/fastput.py a Python function of one producer."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shm.jit import JIT_OFF
from shm.kernels import fastput, frames

_METH_FASTCALL = 0x0080
_METH_KEYWORDS = 0x0002


class _MethodDefinition(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def is_available() -> bool:
    """Whether this Python can: with a GIL, and with the JIT on."""
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    return bool(locked) and not JIT_OFF


class FastPut:
    """State and functions of the native put; keeps alive whatever they hold addresses of."""

    def __init__(
        self,
        oneway: Callable[..., None],
        submit: Callable[..., int],
        urgent: Callable[..., int],
    ) -> None:
        self.state: NDArray[np.int64] = np.zeros(fastput.STATE_WORDS, np.int64)
        self._form = np.zeros(6, np.int64)
        self._methods = (oneway, submit, urgent)
        self._kept: dict[int, tuple[str, str | None]] = {}
        self.state[fastput.FORM] = self._form.ctypes.data
        self.state[fastput.ONEWAY_METHOD] = id(oneway)
        self.state[fastput.SUBMIT_METHOD] = id(submit)
        self.state[fastput.URGENT_METHOD] = id(urgent)
        self.state[fastput.NONE] = id(None)
        self.state[fastput.ONE] = 1
        self._name = sys.intern("tag")
        self.state[fastput.TAG_NAME] = id(self._name)
        self._owner = self.state.ctypes.data
        self.oneway = self._function("send_oneway", fastput.oneway.address)
        self.submit = self._function("submit", fastput.submit.address)
        self.urgent = self._function("urgent", fastput.urgent.address)

    def attach(self, arena: NDArray[np.uint8], lane: NDArray[np.int64], bell: int) -> None:
        """Use a session from now on; its routes are learned anew."""
        self.state[fastput.ROUTES :] = 0
        self._kept.clear()
        self._memory = (arena, lane)
        self.state[fastput.ARENA] = arena.ctypes.data
        self.state[fastput.LANE] = lane.ctypes.data
        self.state[fastput.BELL] = bell
        self.state[fastput.ENABLED] = 1

    def detach(self) -> None:
        """Send everything the Python way from now on."""
        self.state[fastput.ENABLED] = 0

    def learn(self, topic: str, tag: str | None, route: int) -> None:
        """Remember a route by the identity of these very objects, which are kept alive."""
        slot = fastput.cache_slot(id(topic), 0 if tag is None else id(tag))
        self._kept[slot] = (topic, tag)
        self.state[slot : slot + 3] = (id(topic), 0 if tag is None else id(tag), route)

    def _function(self, name: str, address: int) -> Any:  # noqa: ANN401 - a builtin function
        flags = _METH_FASTCALL | _METH_KEYWORDS
        definition = _MethodDefinition(name.encode(), address, flags, None)
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.POINTER(_MethodDefinition), ctypes.py_object, ctypes.c_void_p)
        function = make(ctypes.byref(definition), self._owner, None)
        self.__dict__.setdefault("_definitions", []).append(definition)
        return function


assert frames.RING < frames.LANE_WORDS
