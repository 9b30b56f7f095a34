"""How every command ends: what went wrong told in a line, and the documented exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from shm.codes import ExitCode
from shm.errors import GantryError
from shm.exitcode import exit_code


def complain(text: str) -> None:
    """What went wrong and what to do, on standard error."""
    sys.stderr.write(f"gantrymq: {text}\n")


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
        complain(str(error))
        sys.exit(exit_code(error))
    except Exception:
        # Python's own code for this is 1, which here says that a check did not hold.
        traceback.print_exc()
        sys.exit(ExitCode.STORE)
