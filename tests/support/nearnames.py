"""Names of properties that an application may use, and that are nearly the broker's own."""

from __future__ import annotations

from typing import Final

from gantrymq.shm.properties import (
    CHECK_IMMUNITY,
    GANTRY_TX,
    GANTRY_TX_DELAY,
    HALF_DROPPED,
    RETRY_DROPPED,
)

#: Names that mean something to the broker.
RESERVED: Final = sorted(
    {
        "UNIQ_KEY", "TAGS", "KEYS", "PGROUP", "TRAN_MSG", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID",
        "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", GANTRY_TX, GANTRY_TX_DELAY, CHECK_IMMUNITY,
        *RETRY_DROPPED, *HALF_DROPPED,
    }
)  # fmt: skip


def near(name: str) -> set[str]:
    """Other names: one letter more, less or other; as long, with the same ends and middle."""
    middle = len(name) // 2
    found = {f"{name}S", f"X{name}", name[1:], name[:-1], f"{name[:1]}{name[2:]}", name.lower()}
    found |= {f"{name[:at]}X{name[at + 1 :]}" for at in range(len(name))}
    start = len("TIMER_") if name.startswith("TIMER_") else 0
    kept = {start, (start + len(name)) // 2, middle, len(name) - 1}
    found.add("".join(c if at in kept or at < start else "X" for at, c in enumerate(name)))
    return {other for other in found if other and other not in RESERVED}


#: All of these, and a published one that once was taken for TIMER_DEL_UNIQKEY.
NEAR: Final = sorted({other for name in RESERVED for other in near(name)} | {"TIMER_DOMAIN_ONLY"})
