"""How every command ends: what went wrong told in a line, and the documented exit code."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import GantryError
from gantrymq.shm.exitcode import exit_code
from gantrymq.shm.readonly import told


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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """What standard output has not taken leads nowhere, also at the end of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


@contextmanager
def leaving() -> Iterator[None]:
    """Leave the process with the exit code of what is raised inside."""
    try:
        yield
    except GantryError as error:
        complain(str(error))
        sys.exit(exit_code(error))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the parser of options was faster
            sys.exit(0)
        raise
    except BrokenPipeError:
        # Whoever read the output has enough, `head` for example.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        complain(told(error))
        sys.exit(exit_code(error))
    except Exception:
        # Python's own code for this is 1, which here says that a check did not hold.
        traceback.print_exc()
        sys.exit(ExitCode.STORE)
