"""Words of an arena that its client writes: where they are, by the layout and the arena's plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from gantrymq.shm import groupwire, layout, schedulerwire, transactionwire
from gantrymq.shm.arena import ArenaPlan, LanePlan
from gantrymq.shm.codes import EntryFlag, EntryKind, ParkMode
from gantrymq.shm.properties import GANTRY_TX, encode_properties
from gantrymq.shm.structs import Struct
from tests.support.extremes import words_of

#: Of the lanes whose agents hear requests, one each; the writer's has entries instead.
REQUESTS: Final = {
    "groups": groupwire.encode(groupwire.Commit(1, {0: 1}, {0: 1})),
    "scheduler": schedulerwire.encode(schedulerwire.Recall(1, "later", "x")),
    "transactions": transactionwire.encode(transactionwire.Enlist(1, "pay")),
}
#: What follows the header in an entry of a kind.
EXTENSIONS: Final = {EntryKind.APPEND: (layout.APPEND,), EntryKind.PARK: (layout.PARK,)}
BODY: Final = b"12345678"
#: Of a half: its transaction's properties.
HALF_EXTRAS: Final = encode_properties(
    {"TRAN_MSG": "true", "PGROUP": "pay", GANTRY_TX: f"{'a' * 32},1"}
)
#: Structs that a client writes whole; of the others it writes the fields that say so.
_OWN: Final = (layout.ROUTE, layout.ENTRY, layout.MESSAGE, layout.APPEND, layout.TELL, layout.PARK)


def lanes_of(plan: ArenaPlan) -> dict[str, LanePlan]:
    """All lanes of an arena by name."""
    found = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return {name: lane for name, lane in found.items() if isinstance(lane, LanePlan)}


@dataclass(frozen=True, slots=True)
class Form:
    """An entry of the writer's lane: its bytes, and the structs in it, with where each begins."""

    name: str
    entry: bytes
    structs: tuple[tuple[Struct, int], ...]
    is_clients: bool


def _form(kind: EntryKind, flags: int = 0, mode: ParkMode = ParkMode.NONE) -> Form:
    structs = [(layout.ENTRY, 0)]
    said = layout.ENTRY_BYTES
    between = b""
    for struct in EXTENSIONS.get(kind, ()):
        structs.append((struct, said + len(between)))
        is_when = struct is layout.PARK
        value = 0 if mode == ParkMode.HALF else 3
        between += struct.pack(mode=mode, value=value) if is_when else bytes(struct.size)
    extras = HALF_EXTRAS if mode == ParkMode.HALF else b""
    data = between + BODY + extras
    if flags & EntryFlag.TELL:
        structs.append((layout.TELL, said + len(data)))
        data += bytes(layout.TELL_BYTES)
    size = (said + len(data) + 7) & ~7
    head = layout.ENTRY.pack(
        length=size, kind=kind, flags=flags | EntryFlag.RECEIPT, seq=1, queue=-1,
        body_bytes=len(BODY), extra_bytes=len(extras), batch=int(bool(flags & EntryFlag.BATCH)),
    )  # fmt: skip
    is_clients = kind is EntryKind.SEND or mode != ParkMode.NONE
    name = f"{kind.name} {flags} {mode.name}"
    return Form(name, (head + data).ljust(size, b"\0"), tuple(structs), is_clients)


def forms() -> Iterator[Form]:
    """An entry of each kind, with each flag, and of each mode of parking."""
    for kind in EntryKind:
        if kind is not EntryKind.PARK:
            yield _form(kind)
    for flag in EntryFlag:
        yield _form(EntryKind.SEND, flag)
        yield _form(EntryKind.APPEND, flag)
    for mode in ParkMode:
        yield _form(EntryKind.PARK, mode=mode)


def sound_words(plan: ArenaPlan, form: Form, topic: int) -> list[tuple[int, bytes]]:
    """What a client has written: a route, an entry, a request in each other lane, their words."""
    found = [
        (layout.ROUTES_AT, layout.ROUTE.pack(ready=1, topic=topic)),
        (layout.ARENA_PROGRESS_COUNT, (1).to_bytes(4, "little")),
    ]
    for name, lane in lanes_of(plan).items():
        data = form.entry if name == "writer" else _request(REQUESTS[name])
        found.append((lane.up, data))
        found.append((lane.control + layout.LANE_UP_TAIL, len(data).to_bytes(8, "little")))
    return found


def _request(body: bytes) -> bytes:
    size = (layout.MESSAGE_BYTES + len(body) + 7) & ~7
    head = layout.MESSAGE.pack(length=size, kind=EntryKind.REQUEST, body_bytes=len(body))
    return (head + body).ljust(size, b"\0")


def words(plan: ArenaPlan) -> Iterator[tuple[Form, int, bytes]]:
    """Each word that its client writes at its ends: where, its bytes, and the entry beside it."""
    first, *others = forms()
    lanes = lanes_of(plan)
    structs = [(layout.ARENA, 0), (layout.PROGRESS, layout.PROGRESS_AT)]
    structs.append((layout.ROUTE, layout.ROUTES_AT))
    structs += [(layout.LANE, lane.control) for lane in lanes.values()]
    structs += [(layout.MESSAGE, lane.up) for name, lane in lanes.items() if name != "writer"]
    send = next(form for form in (first, *others) if form.name.startswith("SEND"))
    yield from ((send, at, word) for at, word in _extremes(structs))
    for form in (first, *others):
        inside = [(struct, plan.writer.up + at) for struct, at in form.structs]
        yield from ((form, at, word) for at, word in _extremes(inside))


def _extremes(structs: list[tuple[Struct, int]]) -> Iterator[tuple[int, bytes]]:
    for struct, start in structs:
        for field in struct.fields:
            is_number = isinstance(field.type, str)
            if is_number and (struct in _OWN or field.writer == "client"):
                for word in words_of(field):
                    yield start + struct.offset(field.name), word
