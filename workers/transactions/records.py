"""Records of `rmq_sys_gantry_trans`: how often halves were checked, what an operator has settled.

msgpack bodies: `["checked", {half queue offset: checks}]`,
`["settled", position of the half, action, who, Unix ms]`. So check counts and settlements are in
the log, as all else that is decided, and a half is not written again for a check (LW-40). That of a
settlement has the half's transaction as its property GANTRY_TX: the half may be gone by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.shm.packed import decode_anything
from gantrymq.shm.properties import GANTRY_TX, NOTES_TOPIC, encode_properties
from gantrymq.workers.outlet import Copy

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOST: Final = bytes([127, 0, 0, 1]) + bytes(4)
CHECKED: Final = "checked"
SETTLED: Final = "settled"
WHO_BYTES_MAX: Final = 120
#: What comes of a body that `_copy` has not made.
_NO_RECORD: Final = (
    msgspec.DecodeError, ValueError, TypeError, LookupError, AttributeError, OverflowError
)  # fmt: skip


def checked(slots: Mapping[str, int], checks: Mapping[int, int], now_ms: int) -> Copy:
    """The record of one pass: half queue offset -> checks so far."""
    counts: dict[int, int] = dict(checks)
    return _copy(slots, [CHECKED, counts], now_ms)


def settled(
    slots: Mapping[str, int], half: tuple[int, str], action: str, who: str, now_ms: int
) -> Copy:
    """The record of an operator's settlement of a half: its position, and its transaction's id."""
    name = who.encode()[:WHO_BYTES_MAX].decode(errors="ignore")
    copy = _copy(slots, [SETTLED, half[0], action, name, now_ms], now_ms)
    return copy._replace(properties=encode_properties({GANTRY_TX: half[1] or None}))


def _copy(slots: Mapping[str, int], content: object, now_ms: int) -> Copy:
    body = msgspec.msgpack.encode(content)
    return Copy(slots[NOTES_TOPIC], 0, body, b"", -1, 0, 0, now_ms, _HOST, _HOST, 0)


def read_record(body: bytes) -> tuple[dict[int, int], tuple[int, str] | None]:
    """Checks by half queue offset, or position and action of a settlement; nothing if damaged."""
    try:
        content = decode_anything(body)
        if content[0] == CHECKED:
            return {int(offset): int(count) for offset, count in content[1].items()}, None
        if content[0] == SETTLED:
            return {}, (int(content[1]), str(content[2]))
    except _NO_RECORD:
        return {}, None
    return {}, None


def settlement_of(body: bytes) -> tuple[str, str, int] | None:
    """What, who, and when in Unix ms, of a settlement's record; None for anything else."""
    try:
        kind, _position, action, who, when_ms = decode_anything(body)
        return (str(action), str(who), int(when_ms)) if kind == SETTLED else None
    except _NO_RECORD:
        return None
