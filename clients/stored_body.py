"""Bodies as applications sent them, out of what is stored.

Senders compress, never the broker (SF-25). GantryMQ's producers do not; bodies of a RocketMQ's
clients are met in stores taken over from it, and by Spark. A decoder is loaded when a body first
needs it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gantrymq.shm.layout import SYS_COMPRESSED

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TYPE_SHIFT: Final = 8
_TYPE_MASK: Final = 0x7
#: A plain body is never longer: some KiB of a malicious sender could otherwise take all memory.
PLAIN_BYTES_MAX: Final = 256 << 20
#: What a decoder is given at a time. No decoder makes more than 32 MiB of it, so that the limit is
#: noticed in time.
_PIECE_BYTES: Final = 1024


class _Decoder(Protocol):
    """What decompressors of zlib, lz4 and zstandard have in common; each is good for one frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _Kind(NamedTuple):
    """A compression: what makes a decoder, and what such decoders raise."""

    name: str
    make: Callable[[], _Decoder]
    errors: Callable[[], tuple[type[Exception], ...]]


def plain_body(body: Buffer, sys_flag: int) -> bytes:
    """The body as its sender had it; `body` is what is stored.

    Raises ValueError, which says why, if the bytes are not what sysFlag promises.
    """
    if not sys_flag & SYS_COMPRESSED:
        return bytes(body)
    kind = sys_flag >> _TYPE_SHIFT & _TYPE_MASK
    if kind not in _KINDS:
        raise ValueError(f"compression type {kind} is unknown (LZ4 is 1, ZSTD 2, ZLIB 3)")
    name, make, errors = _KINDS[kind]
    refused: tuple[type[Exception], ...] = (*errors(), ValueError)
    try:
        return _decode(bytes(body), make, many=name != "ZLIB")
    except refused as error:
        raise ValueError(f"no {name} data: {error}") from error


def _decode(packed: bytes, make: Callable[[], _Decoder], *, many: bool) -> bytes:
    """All frames, or one: Java's inflater ignores what follows the stream, the others go on."""
    found: list[bytes] = []
    total = 0
    while True:
        decoder = make()
        at = 0
        while not decoder.eof and at < len(packed):
            found.append(decoder.decompress(packed[at : at + _PIECE_BYTES]))
            at += _PIECE_BYTES
            total += len(found[-1])
            if total > PLAIN_BYTES_MAX:
                raise ValueError(f"it unpacks to more than {PLAIN_BYTES_MAX} bytes")
        if not decoder.eof:
            raise ValueError("it ends early")
        packed = (decoder.unused_data or b"") + packed[at:]
        if not packed or not many:
            return b"".join(found)


def _lz4() -> _Decoder:
    from lz4.frame import LZ4FrameDecompressor

    decoder: _Decoder = LZ4FrameDecompressor()
    return decoder


def _zstd() -> _Decoder:
    from zstandard import ZstdDecompressor

    return ZstdDecompressor().decompressobj()


def _zstd_errors() -> tuple[type[Exception], ...]:
    from zstandard import ZstdError

    return (ZstdError,)


#: Old clients compress by ZLIB without saying so (type 0).
_ZLIB: Final = _Kind("ZLIB", zlib.decompressobj, lambda: (zlib.error,))
_KINDS: Final = {
    0: _ZLIB,
    1: _Kind("LZ4", _lz4, lambda: (RuntimeError,)),
    2: _Kind("ZSTD", _zstd, _zstd_errors),
    3: _ZLIB,
}
