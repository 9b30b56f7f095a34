"""The client's put as a native function that Python calls without a dispatcher.

`send_oneway("t", body, tag="x")`, `send_async` (with a `durability`, too) and the puts of `send` in
their common form: a topic and a tag met before, a body of type bytes. Anything else goes to the
Python method that the state names. This and `fastbatch` are the places that take addresses: the
state is an array that the method's own object holds, with all that its words of methods, classes
and names are addresses of (clients/fastcall.py). Python's own functions are used, no layout of its
objects is assumed but where an owner holds its state (shm/entrypoint.py), and the GIL is held from
start to end, so threads of one producer take turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.shm import machine
from gantrymq.shm.codes import EntryFlag, ParkMode
from gantrymq.shm.jit import JIT_OFF, external, f8, i4, i8, kernel, method, void
from gantrymq.shm.kernels import frames
from gantrymq.shm.kernels.ring import put_park, put_send
from gantrymq.shm.limits import DELIVER_MS_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.int64]

# Words of the state.
ARENA: Final = 0  # address of the arena
LANE: Final = 1  # address of the lane's words
FORM: Final = 2  # address of FORM_WORDS, an entry's form
BELL: Final = 3  # descriptor of the writer's bell
ENABLED: Final = 4  # 0: always take the Python way
LOOKED: Final = 6  # when Python has looked last whether the broker is there, as `put_time`
ONEWAY_METHOD: Final = 5  # address of the Python method for everything else
URGENT_METHOD: Final = 14
PAGE: Final = 15  # address of the page that receipts of the next seqs refer to
PAGE_LAST: Final = 16  # last seq of that page; whose seq would be larger goes the Python way
FUTURE_OF_HALF: Final = 17  # as FUTURE
ASYNC_METHOD: Final = 18
FUTURE: Final = 19  # address of the class of receipts, and of its attributes' names
NAME_PAGE: Final = 20
NAME_SEQ: Final = 21
NAME_TOPIC: Final = 22
DURABLE_METHOD: Final = 24
LEVEL_NAME: Final = 25  # addresses of the interned texts "durability", "written", "durable"
WRITTEN_TEXT: Final = 26
DURABLE_TEXT: Final = 27
NAME_LEVEL: Final = 28
DURABLE_LEVEL: Final = 29  # address of what a receipt that waits for the disk has as level
ASKED: Final = 30  # level that the call in hand asks for, or NOT_ASKED
NONE: Final = 7  # address of None
TAG_NAME: Final = 8  # address of the interned text "tag"
ONE: Final = 9  # holds 1, what a bell is rung with
LENGTH: Final = 10  # where Python puts the body's length
DATA: Final = 11  # and its address
TIME: Final = 12  # two words: seconds and nanoseconds
MESSAGE: Final = 39  # address of the class of messages
NO_KEYS: Final = 40  # addresses of what stands there in a message that has none
NO_PROPERTIES: Final = 41
CHANGES_AT: Final = 31  # address of the board's count of changes of topics
AT_CLASS: Final = 32  # which word of a message is the address of its class, topic, ...
AT_TOPIC: Final = 33
AT_BODY: Final = 34
AT_TAG: Final = 35
AT_KEYS: Final = 36
AT_PROPERTIES: Final = 37
AT_QUEUE: Final = 38
AT_COUNT: Final = 42  # which word of a list and of bytes is how many items or bytes they have
AT_ITEMS: Final = 43  # which word of a list is the address of its items' addresses
AT_BYTES: Final = 44  # where in an object of type bytes its bytes are
LIST_CLASS: Final = 45
BYTES_CLASS: Final = 46
BATCH_METHOD: Final = 47  # addresses of the Python methods for other batches
BATCH_URGENT_METHOD: Final = 48
FUTURE_OF_BATCH: Final = 49  # address of the class of batches' futures
NAME_COUNT: Final = 50
FOUND: Final = 51  # of the batch in hand: last tag, its route, born time, topic
CHANGES: Final = 55  # what it was when routes were learned: their levels hold so long
PART_NAMES: Final = (
    56  # addresses of the interned texts "delivery_timestamp", "delay", "delay_level"
)
INT_CLASS: Final = 59
FLOAT_CLASS: Final = 60
MODE: Final = 61  # when the message of the call in hand is due: a ParkMode, its value
VALUE: Final = 62
NAME_MODE: Final = 63
NAME_VALUE: Final = 64
AT_GROUP: Final = 65  # as AT_CLASS and so on
AT_TIMESTAMP: Final = 66
AT_DELAY: Final = 67
AT_DELAY_LEVEL: Final = 68
EXTRA_LENGTH: Final = 69  # as LENGTH and DATA, of properties of a half; 0 of all else
EXTRA_DATA: Final = 70
HALF_METHOD: Final = 71
ROUTES: Final = 72  # cache of routes: ROUTE_ROOM entries of 4 words: topic, tag, route, level
ROUTE_ROOM: Final = 256
ROUTE_WAYS: Final = 4
STATE_WORDS: Final = ROUTES + 4 * ROUTE_ROOM

RECEIPT = int(EntryFlag.RECEIPT)
SYNC = int(EntryFlag.RECEIPT | EntryFlag.URGENT)
SYNC_DURABLE = int(EntryFlag.RECEIPT | EntryFlag.URGENT | EntryFlag.DURABLE)
DURABLE = int(EntryFlag.DURABLE)
URGENT = int(EntryFlag.URGENT)
NOT_ASKED: Final = -1
LEVEL = int(ParkMode.LEVEL)
AT = int(ParkMode.AT)
AFTER = int(ParkMode.AFTER)
HALF = int(ParkMode.HALF)
#: Born times are as fine as the kernel tick (1 to 10 ms); the fine clock costs as much as the rest.
CLOCK_REALTIME_COARSE = 5
#: Who sends without waiting goes the Python way so often: a broker that has died says nothing, and
#: its ring takes entries on.
LOOK_MS: Final = 100


@kernel()
def cache_set(topic: int, tag: int) -> int:
    """First word of the ROUTE_WAYS cache entries where a pair of object addresses may be."""
    mixed = ((topic >> 4) ^ (tag >> 4) * 31) & (ROUTE_ROOM // ROUTE_WAYS - 1)
    return ROUTES + 4 * ROUTE_WAYS * mixed


if not JIT_OFF:
    as_bytes = external("PyBytes_AsStringAndSize", i4, i8, i8, i8)
    _names_size = external("PyTuple_Size", i8, i8)
    _names_item = external("PyTuple_GetItem", i8, i8, i8)
    clear_error = external("PyErr_Clear", void)
    set_attribute = external("PyObject_SetAttr", i4, i8, i8, i8)
    release = external("Py_DecRef", void, i8)
    retain = external("Py_IncRef", void, i8)
    number_object = external("PyLong_FromLongLong", i8, i8)
    as_number = external("PyLong_AsLongLong", i8, i8)
    as_seconds = external("PyFloat_AsDouble", f8, i8)
    address_of = external("PyLong_AsVoidPtr", i8, i8)
    call_object = external("PyObject_Vectorcall", i8, i8, i8, i8, i8)
    clock = external("clock_gettime", i4, i4, i8)
    write_to = external("write", i8, i4, i8, i8)

    @kernel()
    def cached_route(state: Words, topic: int, tag: int) -> int:
        """First word of the cache entry of a pair (no tag: 0), or 0 if it was not met before."""
        slot = cache_set(topic, tag)
        for _ in range(ROUTE_WAYS):
            if state[slot] == topic and state[slot + 1] == tag:
                return slot
            slot += 4
        return 0

    @kernel()
    def _number_of(state: Words, mode: int, value: int) -> int:
        """What an entry says of a time or delay that a call gives; -1 for what is not plain."""
        number = -1
        kind: int = machine.words_at(value)[state[AT_CLASS]]
        if kind == state[INT_CLASS]:
            number = as_number(value)
            if number == -1:
                clear_error()
            if mode == AFTER and 0 <= number <= DELIVER_MS_MAX:
                number *= 1000
        elif kind == state[FLOAT_CLASS] and mode == AFTER:
            # As clients/delays.py does.
            seconds = as_seconds(value)
            if 0.0 <= seconds <= DELIVER_MS_MAX / 1000:
                number = int(seconds * 1000 + 0.5)
        if number > DELIVER_MS_MAX or (mode == LEVEL and number < 1):
            return -1
        return number

    @kernel()
    def _note_delay(state: Words, name: int, value: int) -> int:
        """Note when a message is due in MODE and VALUE; 0 if that is for Python to judge."""
        mode = 0
        if name == state[PART_NAMES]:
            mode = AT
        elif name == state[PART_NAMES + 1]:
            mode = AFTER
        elif name == state[PART_NAMES + 2]:
            mode = LEVEL
        if mode == 0 or state[MODE]:
            return 0
        number = _number_of(state, mode, value)
        if number < 0:
            return 0
        state[MODE] = mode
        state[VALUE] = number
        return 1

    @kernel()
    def tag_of(state: Words, arguments: int, count: int, names: int) -> int:
        """The tag's address, 0 without one, -1 for a call in another than the common form.

        Notes in ASKED which level the call wants, in MODE and VALUE when its message is due.
        `count` arguments are given by place.
        """
        state[ASKED] = NOT_ASKED
        state[MODE] = 0
        if not state[ENABLED] or count < 1:
            return -1
        if machine.load32(machine.bytes_at(state[CHANGES_AT]), 0) != state[CHANGES]:
            return -1  # a topic may have been made again, with another level
        tag = 0
        given = machine.words_at(arguments)
        for index in range(_names_size(names) if names else 0):
            name = _names_item(names, index)
            value = given[count + index]
            if name == state[TAG_NAME]:
                tag = value
            elif name == state[LEVEL_NAME] and value == state[DURABLE_TEXT]:
                state[ASKED] = 1
            elif name == state[LEVEL_NAME] and value == state[WRITTEN_TEXT]:
                state[ASKED] = 0
            elif not _note_delay(state, name, value):
                return -1
        return tag

    @kernel()
    def _set_number(target: int, name: int, value: int) -> None:
        """Give an object an attribute that is a number."""
        number = number_object(value)
        set_attribute(target, name, number)
        release(number)

    @kernel()
    def _future(state: Words, kind: int, topic: int, seq: int, facts: tuple[int, int, int]) -> int:
        """A receipt of a class with its attributes; 0 with an exception set.

        `facts`: the level that it waits for, mode and value of its delay.
        """
        level, mode, value = facts
        page = state[PAGE]
        retain(page)  # making objects may run Python, which may turn the page
        number = number_object(seq)
        receipt = call_object(kind, 0, 0, 0)
        if receipt != 0:
            set_attribute(receipt, state[NAME_PAGE], page)
            set_attribute(receipt, state[NAME_SEQ], number)
            set_attribute(receipt, state[NAME_TOPIC], topic)
            if level == 1:
                set_attribute(receipt, state[NAME_LEVEL], state[DURABLE_LEVEL])
            if mode:
                _set_number(receipt, state[NAME_MODE], mode)
                _set_number(receipt, state[NAME_VALUE], value)
        release(number)
        release(page)
        return receipt

    @kernel()
    def put_time(state: Words, base: int, flags: int) -> int:
        """Now, in milliseconds of the wall; 0 if Python is to look at the broker first.

        Who waits for the receipt hears of the broker's end there.
        """
        clock(CLOCK_REALTIME_COARSE, base + 8 * TIME)
        now: int = state[TIME] * 1000 + state[TIME + 1] // 1_000_000
        if not flags & URGENT and not 0 <= now - state[LOOKED] < LOOK_MS:
            return 0
        return now

    @kernel()
    def _put(state: Words, base: int, route: int, flags: int) -> int:
        """Put the body at DATA, later if MODE says so; its seq, or less than 0."""
        now = put_time(state, base, flags)
        if not now:
            return -1
        form = machine.words_at(state[FORM])
        form[0] = flags
        form[1] = route
        form[2] = -1
        form[3] = now
        form[4] = 0
        form[5] = 0
        body = machine.bytes_at(state[DATA])
        lane = machine.words_at(state[LANE])
        arena = machine.bytes_at(state[ARENA])
        payload = (body, state[LENGTH], machine.bytes_at(state[EXTRA_DATA]), state[EXTRA_LENGTH])
        if state[MODE]:
            form[6] = state[MODE]
            form[7] = state[VALUE]
            return put_park(arena, lane, form, payload)
        return put_send(arena, lane, form, payload)

    @kernel()
    def _fits_page(state: Words) -> bool:
        """Whether the completion of what is put next will be in PAGE."""
        return bool(machine.words_at(state[LANE])[frames.SEQ] < state[PAGE_LAST])

    @kernel()
    def _submit(state: Words, base: int, arguments: int, count: int, names: int, flags: int) -> int:
        """Put one message; its seq, or 0 if it must go the Python way.

        With flags of a receipt its completion will be in PAGE; if these are no others, ASKED
        becomes the level that it waits for.
        """
        call = machine.words_at(arguments)
        tag = tag_of(state, arguments, count, names)
        slot = cached_route(state, call[0], tag) if tag >= 0 and count == 2 else 0
        if not slot or (flags & RECEIPT and not _fits_page(state)):
            return 0
        if flags == RECEIPT:
            if state[ASKED] == NOT_ASKED:
                state[ASKED] = state[slot + 3]
            flags |= DURABLE if state[ASKED] == 1 else 0
        elif state[ASKED] != NOT_ASKED:
            return 0
        if as_bytes(call[1], base + 8 * DATA, base + 8 * LENGTH) != 0:
            clear_error()
            return 0
        seq = _put(state, base, state[slot + 2], flags)
        if seq < 0:
            return 0
        if machine.words_at(state[LANE])[frames.RING]:
            write_to(state[BELL], base + 8 * ONE, 8)
        return seq

    @kernel()
    def _submit_half(state: Words, base: int, arguments: int, names: int) -> int:
        """Put the half of a transaction; its seq, or 0 if it must go the Python way.

        Its completion will be in PAGE; ASKED becomes the level that it waits for. Arguments: topic,
        body, properties, flags. A delay is a property, for Python to write.
        """
        call = machine.words_at(arguments)
        tag = tag_of(state, arguments, 4, names)
        slot = cached_route(state, call[0], tag) if tag >= 0 else 0
        if not slot or state[MODE] or not _fits_page(state):
            return 0
        flags = as_number(call[3])
        # Who neither waits nor wishes so is content with the sync of the commit.
        is_wanted = state[ASKED] != NOT_ASKED or flags & URGENT
        if state[ASKED] == NOT_ASKED:
            state[ASKED] = state[slot + 3]
        if state[ASKED] == 1 and is_wanted:
            flags |= DURABLE
        body = as_bytes(call[1], base + 8 * DATA, base + 8 * LENGTH)
        if body != 0 or as_bytes(call[2], base + 8 * EXTRA_DATA, base + 8 * EXTRA_LENGTH) != 0:
            clear_error()
            state[EXTRA_LENGTH] = 0
            return 0
        state[MODE] = HALF
        state[VALUE] = 0
        seq = _put(state, base, state[slot + 2], flags)
        state[EXTRA_LENGTH] = 0
        if seq < 0:
            return 0
        if machine.words_at(state[LANE])[frames.RING]:
            write_to(state[BELL], base + 8 * ONE, 8)
        return seq

    @method
    def oneway(base: int, arguments: int, count: int, names: int) -> int:
        """METH_FASTCALL | METH_KEYWORDS: put one message, return None."""
        state = machine.words_at(base)
        if _submit(state, base, arguments, count, names, 0) == 0:
            return call_object(state[ONEWAY_METHOD], arguments, count, names)
        none: int = state[NONE]
        retain(none)
        return none

    @method
    def urgent(base: int, arguments: int, count: int, names: int) -> int:
        """As `asynchronous`, for a sender who waits: the writer is woken from a nap."""
        state = machine.words_at(base)
        seq = _submit(state, base, arguments, count, names, SYNC)
        if seq == 0:
            return call_object(state[URGENT_METHOD], arguments, count, names)
        facts = (0, state[MODE], state[VALUE])
        return _future(state, state[FUTURE], machine.words_at(arguments)[0], seq, facts)

    @method
    def asynchronous(base: int, arguments: int, count: int, names: int) -> int:
        """METH_FASTCALL | METH_KEYWORDS: put one message, return its receipt as a future."""
        state = machine.words_at(base)
        seq = _submit(state, base, arguments, count, names, RECEIPT)
        if seq == 0:
            return call_object(state[ASYNC_METHOD], arguments, count, names)
        facts = (state[ASKED], state[MODE], state[VALUE])
        return _future(state, state[FUTURE], machine.words_at(arguments)[0], seq, facts)

    @method
    def urgent_durable(base: int, arguments: int, count: int, names: int) -> int:
        """As `urgent`; the flusher is to sync at once."""
        state = machine.words_at(base)
        seq = _submit(state, base, arguments, count, names, SYNC_DURABLE)
        if seq == 0:
            return call_object(state[DURABLE_METHOD], arguments, count, names)
        facts = (1, state[MODE], state[VALUE])
        return _future(state, state[FUTURE], machine.words_at(arguments)[0], seq, facts)

    @method
    def half(base: int, arguments: int, count: int, names: int) -> int:
        """METH_FASTCALL | METH_KEYWORDS: put the half of a transaction, return its receipt.

        `half(topic, body, properties, flags, tag=..., durability=...)`; `properties` are bytes.
        """
        state = machine.words_at(base)
        seq = _submit_half(state, base, arguments, names) if count == 4 else 0
        if seq == 0:
            return call_object(state[HALF_METHOD], arguments, count, names)
        facts = (state[ASKED], 0, 0)
        topic = machine.words_at(arguments)[0]
        return _future(state, state[FUTURE_OF_HALF], topic, seq, facts)
