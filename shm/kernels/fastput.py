"""The client's put as a native function that Python calls without a dispatcher.

`send_oneway("t", body, tag="x")`, `send_async` and the put of `send` in their common form: a
topic and a tag met before, a body of type bytes. Anything else goes to the Python method that the
state names. This is the one place that takes addresses: the state is an array of the producer's,
which outlives the function. Python's own functions are used, no layout of its objects is assumed,
and the GIL is held from start to end, so threads of one producer take turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shm import machine
from shm.codes import EntryFlag
from shm.jit import JIT_OFF, external, i4, i8, kernel, native, void
from shm.kernels import frames
from shm.kernels.ring import put_send

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.int64]

# Words of the state.
ARENA: Final = 0  # address of the arena
LANE: Final = 1  # address of the lane's words
FORM: Final = 2  # address of six words for the entry's form
BELL: Final = 3  # descriptor of the writer's bell
ENABLED: Final = 4  # 0: always take the Python way
ONEWAY_METHOD: Final = 5  # address of the Python method for everything else
URGENT_METHOD: Final = 14
PAGE: Final = 15  # address of the page that receipts of the next seqs refer to
PAGE_LAST: Final = 16  # last seq of that page
TURN_METHOD: Final = 17  # address of what gives the page of a seq, and moves PAGE on
ASYNC_METHOD: Final = 18
FUTURE: Final = 19  # address of the class of receipts, and of its attributes' names
NAME_PAGE: Final = 20
NAME_SEQ: Final = 21
NAME_TOPIC: Final = 22
SEQ_OBJECT: Final = 23  # argument of TURN_METHOD
DURABLE_METHOD: Final = 24
NONE: Final = 7  # address of None
TAG_NAME: Final = 8  # address of the interned text "tag"
ONE: Final = 9  # holds 1, what a bell is rung with
LENGTH: Final = 10  # where Python puts the body's length
DATA: Final = 11  # and its address
TIME: Final = 12  # two words: seconds and nanoseconds
ROUTES: Final = 32  # cache of routes: ROUTE_ROOM entries of 4 words: topic, tag, route, simple
ROUTE_ROOM: Final = 256
STATE_WORDS: Final = ROUTES + 4 * ROUTE_ROOM

RECEIPT = int(EntryFlag.RECEIPT)
SYNC = int(EntryFlag.RECEIPT | EntryFlag.URGENT)
SYNC_DURABLE = int(EntryFlag.RECEIPT | EntryFlag.URGENT | EntryFlag.DURABLE)
#: Born times are as fine as the kernel tick (1 to 10 ms); the fine clock costs as much as the rest.
CLOCK_REALTIME_COARSE = 5


def cache_slot(topic: int, tag: int) -> int:
    """First word of the cache entry for a pair of object addresses."""
    return ROUTES + 4 * (((topic >> 4) ^ (tag >> 6)) & (ROUTE_ROOM - 1))


if not JIT_OFF:
    _as_bytes = external("PyBytes_AsStringAndSize", i4, i8, i8, i8)
    _names_size = external("PyTuple_Size", i8, i8)
    _names_item = external("PyTuple_GetItem", i8, i8, i8)
    _clear = external("PyErr_Clear", void)
    _set = external("PyObject_SetAttr", i4, i8, i8, i8)
    _release = external("Py_DecRef", void, i8)
    _retain = external("Py_IncRef", void, i8)
    _number = external("PyLong_FromLongLong", i8, i8)
    _address = external("PyLong_AsVoidPtr", i8, i8)
    _call = external("PyObject_Vectorcall", i8, i8, i8, i8, i8)
    _clock = external("clock_gettime", i4, i4, i8)
    _write = external("write", i8, i4, i8, i8)

    @kernel()
    def _is_simple(state: Words, arguments: int, names: int) -> int:
        """1 if receipts of this route wait for nothing but the log."""
        call = machine.words_at(arguments)
        tag = call[2] if names else 0
        place = ROUTES + 3 + 4 * (((call[0] >> 4) ^ (tag >> 6)) & (ROUTE_ROOM - 1))
        simple: int = state[place]
        return simple

    @kernel()
    def _future(state: Words, base: int, topic: int, seq: int) -> int:
        """A receipt of the class FUTURE with its three attributes; 0 with an exception set."""
        number = _number(seq)
        page = state[PAGE]
        if seq > state[PAGE_LAST]:
            state[SEQ_OBJECT] = number
            page = _call(state[TURN_METHOD], base + 8 * SEQ_OBJECT, 1, 0)
            if page == 0:
                return 0
            _release(page)  # the pages hold it
        receipt = _call(state[FUTURE], 0, 0, 0)
        if receipt != 0:
            _set(receipt, state[NAME_PAGE], page)
            _set(receipt, state[NAME_SEQ], number)
            _set(receipt, state[NAME_TOPIC], topic)
        _release(number)
        return receipt

    @kernel()
    def _submit(state: Words, base: int, arguments: int, count: int, names: int, flags: int) -> int:
        """Put one message; its seq, or 0 if it must go the Python way."""
        if not state[ENABLED] or count != 2:
            return 0
        if names and (_names_size(names) != 1 or _names_item(names, 0) != state[TAG_NAME]):
            return 0
        call = machine.words_at(arguments)
        tag = call[2] if names else 0
        slot = ROUTES + 4 * (((call[0] >> 4) ^ (tag >> 6)) & (ROUTE_ROOM - 1))
        if state[slot] != call[0] or state[slot + 1] != tag:
            return 0
        if _as_bytes(call[1], base + 8 * DATA, base + 8 * LENGTH) != 0:
            _clear()
            return 0
        _clock(CLOCK_REALTIME_COARSE, base + 8 * TIME)
        form = machine.words_at(state[FORM])
        form[0] = flags
        form[1] = state[slot + 2]
        form[2] = -1
        form[3] = state[TIME] * 1000 + state[TIME + 1] // 1_000_000
        form[4] = 0
        form[5] = 0
        body = machine.bytes_at(state[DATA])
        lane = machine.words_at(state[LANE])
        arena = machine.bytes_at(state[ARENA])
        seq = put_send(arena, lane, form, (body, state[LENGTH], body, 0))
        if seq < 0:
            return 0
        if lane[frames.RING]:
            _write(state[BELL], base + 8 * ONE, 8)
        return seq

    @native(i8, i8, i8, i8, i8)
    def oneway(owner: int, arguments: int, count: int, names: int) -> int:
        """METH_FASTCALL | METH_KEYWORDS: put one message, return None."""
        base = _address(owner)
        state = machine.words_at(base)
        if _submit(state, base, arguments, count, names, 0) == 0:
            return _call(state[ONEWAY_METHOD], arguments, count, names)
        none: int = state[NONE]
        _retain(none)
        return none

    @native(i8, i8, i8, i8, i8)
    def urgent(owner: int, arguments: int, count: int, names: int) -> int:
        """METH_FASTCALL | METH_KEYWORDS: put one message for a sender who waits, return its seq.

        The writer is woken from a nap.
        """
        base = _address(owner)
        state = machine.words_at(base)
        seq = _submit(state, base, arguments, count, names, SYNC)
        if seq == 0:
            return _call(state[URGENT_METHOD], arguments, count, names)
        return _number(seq)

    @native(i8, i8, i8, i8, i8)
    def asynchronous(owner: int, arguments: int, count: int, names: int) -> int:
        """METH_FASTCALL | METH_KEYWORDS: put one message, return its receipt as a future."""
        base = _address(owner)
        state = machine.words_at(base)
        seq = 0
        if count == 2 and _is_simple(state, arguments, names):
            seq = _submit(state, base, arguments, count, names, RECEIPT)
        if seq == 0:
            return _call(state[ASYNC_METHOD], arguments, count, names)
        return _future(state, base, machine.words_at(arguments)[0], seq)

    @native(i8, i8, i8, i8, i8)
    def urgent_durable(owner: int, arguments: int, count: int, names: int) -> int:
        """As `urgent`; the flusher is to sync at once."""
        base = _address(owner)
        state = machine.words_at(base)
        seq = _submit(state, base, arguments, count, names, SYNC_DURABLE)
        if seq == 0:
            return _call(state[DURABLE_METHOD], arguments, count, names)
        return _number(seq)
