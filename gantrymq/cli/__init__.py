"""The command line: one module per group of commands, none of them with logic of the broker.

A command loads what it needs when it runs, so that `--help` and `status` stay fast.
"""

import sys
from typing import Final

#: What a command ends with that Ctrl-C ends: 128 and the signal's number, as shells say it.
INTERRUPTED: Final = 130


def main() -> None:
    """Run the command line and leave the process with its documented exit code."""
    try:
        _run()
    except KeyboardInterrupt:  # also amid an import: nobody else is there yet who would take it
        sys.exit(INTERRUPTED)


def _run() -> None:
    from gantrymq.cli.leave import have_streams, leaving

    have_streams()
    with leaving():
        if sys.argv[1:3] == ["store", "verify"]:
            from gantrymq.cli.store_verify import plain

            if call := plain(sys.argv[3:]):
                sys.exit(call())
        from gantrymq.cli.quick import plain as looks

        if call := looks(sys.argv[1:]):
            sys.exit(call())
        from gantrymq.cli.app import command_line

        command_line()()
