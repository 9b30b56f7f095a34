"""Which exit code an error ends a process with."""

from __future__ import annotations

import errno
from typing import Final

from gantrymq.shm import errors
from gantrymq.shm.codes import ExitCode

# The first that fits counts, so the special ones come first.
_BY_ERROR: Final = (
    (errors.BrokerGone, ExitCode.NO_BROKER),
    (errors.StoreBusy, ExitCode.STORE_BUSY),
    (errors.NotPermitted, ExitCode.NOT_PERMITTED),
    (errors.DiskFull, ExitCode.IO_ERROR),
    (errors.StoreFailed, ExitCode.STORE),
    (errors.Rejected, ExitCode.USAGE),
    (errors.Unavailable, ExitCode.NO_BROKER),
    (errors.Incompatible, ExitCode.USAGE),
    (OSError, ExitCode.IO_ERROR),
)


def exit_code(error: BaseException) -> ExitCode:
    """The documented code; what nobody foresaw counts as a failed store."""
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return ExitCode.NOT_PERMITTED
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    return ExitCode.STORE
