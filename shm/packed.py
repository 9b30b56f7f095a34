"""msgpack of somebody who is not believed: whatever is wrong with it is one kind of error."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode_packed(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    """What the bytes say. Raises msgspec.DecodeError, or its ValidationError, if they are none."""
    try:
        return decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        # msgspec lets text that is no UTF-8, and values nested without end, through as they are.
        raise msgspec.DecodeError(f"no msgpack of ours: {type(error).__name__}") from None
