"""The command line: one module per group of commands, none of them with logic of the broker.

A command loads what it needs when it runs, so that `--help` and `status` stay fast.
"""

import sys


def main() -> None:
    """Run the command line and leave the process with its documented exit code."""
    from gantrymq.cli.leave import leaving

    with leaving():
        if sys.argv[1:3] == ["store", "verify"]:
            from gantrymq.cli.store_verify import plain

            if call := plain(sys.argv[3:]):
                sys.exit(call())
        if sys.argv[1:2] == ["status"]:
            from gantrymq.cli.board import plain as plain_status

            if call := plain_status(sys.argv[2:]):
                sys.exit(call())
        from gantrymq.cli.app import app

        app()
