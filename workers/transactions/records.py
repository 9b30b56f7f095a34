"""Records of `rmq_sys_gantry_trans`: how often halves were checked, what an operator has settled.

msgpack bodies: `["checked", {half queue offset: checks}]`,
`["settled", position of the half, action, who, Unix ms]`. So check counts and settlements are in
the log, as all else that is decided, and a half is not written again for a check (LW-40).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.shm.properties import NOTES_TOPIC
from gantrymq.workers.outlet import Copy

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOST: Final = bytes([127, 0, 0, 1]) + bytes(4)
CHECKED: Final = "checked"
SETTLED: Final = "settled"
WHO_BYTES_MAX: Final = 120


def checked(slots: Mapping[str, int], checks: Mapping[int, int], now_ms: int) -> Copy:
    """The record of one pass: half queue offset -> checks so far."""
    counts: dict[int, int] = dict(checks)
    return _copy(slots, [CHECKED, counts], now_ms)


def settled(slots: Mapping[str, int], position: int, action: str, who: str, now_ms: int) -> Copy:
    """The record of an operator's settlement."""
    name = who.encode()[:WHO_BYTES_MAX].decode(errors="ignore")
    return _copy(slots, [SETTLED, position, action, name, now_ms], now_ms)


def _copy(slots: Mapping[str, int], content: object, now_ms: int) -> Copy:
    body = msgspec.msgpack.encode(content)
    return Copy(slots[NOTES_TOPIC], 0, body, b"", -1, 0, 0, now_ms, _HOST, _HOST, 0)


def read_record(body: bytes) -> tuple[dict[int, int], tuple[int, str] | None]:
    """Checks by half queue offset, or position and action of a settlement; nothing if damaged."""
    try:
        content = msgspec.msgpack.decode(body)
        if content[0] == CHECKED:
            return {int(offset): int(count) for offset, count in content[1].items()}, None
        if content[0] == SETTLED:
            return {}, (int(content[1]), str(content[2]))
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, TypeError, LookupError):
        return {}, None
    except AttributeError:
        return {}, None
    return {}, None
