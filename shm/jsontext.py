"""JSON that somebody else may have written: a file, a checkpoint, a line of standard input.

One kind of error for all that can be wrong with it. `json.loads` ends with RecursionError for
values nested too deeply, and gives numbers that are none (Infinity, 1e999), with which whoever
computes ends. Loads nothing but json.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from gantrymq.shm.fromhandlers import require_ours

#: Some editors begin a file in UTF-8 with it. Python's "utf-8-sig" takes it away in Python's code:
#: of what a signal handler raises there CPython makes another error, which seems to be the text's.
BYTE_ORDER_MARK: Final = "\ufeff"


def parse_json(data: bytes | bytearray | str) -> Any:  # noqa: ANN401 - JSON
    """The value of a text, in UTF-8 if it is bytes. Raises ValueError, and nothing else."""
    text = data if isinstance(data, str) else data.decode().removeprefix(BYTE_ORDER_MARK)
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        require_ours(error)
        raise ValueError("values are nested too deeply") from None


def parse_object(data: bytes | bytearray | str) -> dict[str, Any]:
    """The same of an object. Raises ValueError, also for any other value."""
    found = parse_json(data)
    if not isinstance(found, dict):
        raise ValueError(f"no object, but {type(found).__name__}")
    return found


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number")
    return value


_DECODER: Final = json.JSONDecoder(parse_float=_number, parse_constant=_number)
