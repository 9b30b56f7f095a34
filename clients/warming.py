"""Compiling the machine code: once for each version and processor, and not in silence."""

from __future__ import annotations

import sys
from pathlib import Path

from gantrymq.shm import jit
from gantrymq.shm.fromhandlers import require_ours

_NOTICE = (
    "gantrymq: machine code is being compiled for this processor, once; that takes about a minute"
    " (`gantrymq warm` does it beforehand)\n"
)


def library() -> Path:
    """Where the compiled kernels are kept for exactly these sources, Python and processor.

    Raises FileNotFoundError where no folder of this user is known.
    """
    return jit.cache_directory() / "kernels"


def warm_up() -> None:
    """Load the machine code; if it has to be compiled, or waited for, one line on stderr says so.

    Raises OSError if it cannot be compiled.
    """
    if not (jit.JIT_OFF or jit.COMPILING or _is_kept()) and sys.stderr is not None:
        sys.stderr.write(_NOTICE)
        sys.stderr.flush()
    jit.warm()


def _is_kept() -> bool:
    try:
        return library().exists()
    except FileNotFoundError as error:
        require_ours(error)
        return False
