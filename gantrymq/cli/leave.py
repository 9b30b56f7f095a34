"""How every command ends: what went wrong told in a line, and the documented exit code."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import GantryError
from gantrymq.shm.exitcode import exit_code
from gantrymq.shm.readonly import told

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _AsFarAsTaken(io.FileIO):
    """Standard error: what a full disk does not take is lost, and changes no exit code."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data) or memoryview(data).nbytes
        except OSError:
            return memoryview(data).nbytes


def complain(text: str) -> None:
    """What went wrong and what to do, on standard error."""
    sys.stderr.write(f"gantrymq: {text}\n")


def have_streams() -> None:
    """Standard streams that were closed lead nowhere: what is opened next would take their place.

    A broker's lock would then be its standard input, and what is printed would go into a file.
    Names of files may be no Unicode: they are printed with escapes, which are JSON's as well.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115 - for good
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_AsFarAsTaken(2, "w", closefd=False)),
        encoding=sys.stderr.encoding, errors="backslashreplace", line_buffering=True,
    )  # fmt: skip


def require_output() -> None:
    """End the process if standard output was closed as it began.

    For those who take what they print: it would be gone, and nobody would have seen it.
    """
    if sys.__stdout__ is None:
        complain(
            "standard output is closed, so nothing is taken that it would show: open it, or send it"
            " to /dev/null"
        )
        sys.exit(ExitCode.IO_ERROR)


def drop_output() -> None:
    """What standard output has not taken leads nowhere, also at the end of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


@contextmanager
def _all_printed() -> Iterator[None]:
    """Raise here what keeps the output from being written: at Python's end it has another code."""
    try:
        yield
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _end(code: object) -> NoReturn:
    """End the process with a code, though standard output may have taken nothing."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()
    raise SystemExit(code)


@contextmanager
def leaving() -> Iterator[None]:
    """Leave the process with the exit code of what is raised inside."""
    code: object = ExitCode.OK
    try:
        with _all_printed():
            yield
    except GantryError as error:
        complain(str(error))
        code = exit_code(error)
    except SystemExit as end:
        # The parser of options was faster with a pipe that is broken.
        code = ExitCode.OK if isinstance(end.__context__, BrokenPipeError) else end.code
    except BrokenPipeError:
        pass  # whoever read the output has enough, `head` for example
    except OSError as error:
        complain(told(error))
        code = exit_code(error)
    except Exception:
        # Python's own code for this is 1, which here says that a check did not hold.
        traceback.print_exc()
        code = ExitCode.STORE
    _end(code)
