"""Bodies that clients compressed (SF-25)."""

from __future__ import annotations

import zlib
from typing import Final

SYS_COMPRESSED: Final = 0x1
_TYPE_SHIFT: Final = 8
_TYPE_MASK: Final = 0x7
_LZ4: Final = 1
_ZSTD: Final = 2
_ARROW_NAMES: Final = {_LZ4: "lz4", _ZSTD: "zstd"}


def plain_body(body: bytes, sys_flag: int) -> bytes:
    """Body as the application sent it.

    LZ4 frames and ZSTD need pyarrow (extra `spark`). Raises ModuleNotFoundError without it,
    ValueError if the bytes are not what sysFlag says.
    """
    if not sys_flag & SYS_COMPRESSED:
        return body
    kind = sys_flag >> _TYPE_SHIFT & _TYPE_MASK
    if kind not in _ARROW_NAMES:
        try:
            return zlib.decompress(body)
        except zlib.error as error:
            raise ValueError(str(error)) from error
    import pyarrow as pa

    try:
        with pa.input_stream(pa.BufferReader(body), compression=_ARROW_NAMES[kind]) as stream:
            plain: bytes = stream.read()
    except OSError as error:
        raise ValueError(str(error)) from error
    return plain
