"""`python -P -m gantrymq.brokerd --home DIR`: the broker without the command line around it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gantrymq.brokerd import config, temporaryhome
from gantrymq.clients.home import find_home
from gantrymq.shm.errors import GantryError
from gantrymq.shm.exitcode import exit_code


def main() -> int:
    """Parse, load the settings, serve; returns the exit code."""
    parser = argparse.ArgumentParser(prog="brokerd", description=__doc__)
    parser.add_argument("--home", type=Path, help="directory of the broker")
    parser.add_argument("--profile", help="standard, small or temporary")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--lifeline", metavar="WORD", default="",
        help="when standard input ends: stop, and remove the home, which was made with that word",
    )  # fmt: skip
    options = parser.parse_args()
    home = find_home(options.home)
    try:
        if options.lifeline:
            temporaryhome.require(home, options.lifeline)
        given = config.parse_assignments(options.set)
        if options.profile:
            given["profile"] = options.profile
        configuration = config.load(home, given)
    except GantryError as error:
        print(f"brokerd: {error}", file=sys.stderr)
        return exit_code(error)
    config.use_one_thread()
    from gantrymq.brokerd.serve import serve

    return serve(home, configuration, lifeline=options.lifeline)


if __name__ == "__main__":
    sys.exit(main())
