"""msgpack of somebody who is not believed: whatever is wrong with it is one kind of error.

What is recognized as a request, but holds a value out of its range (shm/valueranges.py), can be
answered: it is `Misfit`, which says what the request was.
"""

from __future__ import annotations

import re
import typing
from typing import Any, Final, TypeVar

import msgspec

from gantrymq.shm.fromhandlers import require_ours

T = TypeVar("T")

#: Where msgspec says that a value of an array is wrong; the tag is number 0.
_PLACE: Final = re.compile(r"\$\[(\d+)\]")


class Misfit(msgspec.ValidationError):
    """A request with a value that no request may have: whoever asked is told, and goes on."""

    def __init__(self, kind: str, serial: int, text: str) -> None:
        super().__init__(text)
        self.kind, self.serial, self.text = kind, serial, text


def decode_packed(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    """What the bytes say. Raises msgspec.DecodeError, or its ValidationError, if they are none."""
    try:
        return decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        require_ours(error)
        # msgspec lets text that is no UTF-8, and values nested without end, through as they are.
        raise msgspec.DecodeError(f"no msgpack of ours: {type(error).__name__}") from None


def decode_json(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """The same of JSON."""
    try:
        return decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        require_ours(error)
        raise msgspec.DecodeError(f"no JSON of ours: {type(error).__name__}") from None


def decode_anything(data: bytes) -> Any:  # noqa: ANN401 - msgpack
    """The value of any msgpack. Raises msgspec.DecodeError."""
    return decode_packed(_ANYTHING, data)


def decode_request(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    """A request of a lane, as arrays of tag, serial and more.

    Raises Misfit if only a value is wrong, else msgspec.DecodeError or its ValidationError.
    """
    try:
        return decode_packed(decoder, data)
    except msgspec.ValidationError as error:
        misfit = _misfit(decoder.type, data, str(error))
        if misfit is None:
            raise
        raise misfit from None


def _misfit(kinds: Any, data: bytes, text: str) -> Misfit | None:  # noqa: ANN401 - a union
    said = decode_anything(data)
    if not isinstance(said, list) or len(said) < 2 or not isinstance(said[0], str):
        return None
    for kind in typing.get_args(kinds) or (kinds,):
        fields = kind.__struct_fields__
        is_it = kind.__struct_config__.tag == said[0] and fields[0] == "serial"
        if is_it and type(said[1]) is int and 0 <= said[1] < 1 << 63:
            return Misfit(said[0], said[1], f"{said[0]}{_named(fields, text)}")
    return None


def _named(fields: tuple[str, ...], text: str) -> str:
    """What msgspec says, with the field's name instead of its place."""
    place = _PLACE.search(text)
    number = int(place[1]) - 1 if place else -1
    what = text.partition(" - at ")[0]
    return f".{fields[number]}: {what}" if 0 <= number < len(fields) else f": {text}"


_ANYTHING: Final = msgspec.msgpack.Decoder()
