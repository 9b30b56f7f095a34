"""`python -m gantrymq.brokerd.dump DIR [--settings FILE] [--stage recovered|disk]`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gantrymq.brokerd.dump import dump_store
from gantrymq.shm.codes import ExitCode
from gantrymq.shm.errors import Incompatible, SettingIllegal


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m gantrymq.brokerd.dump", description="Print a store directory as JSON lines."
    )
    parser.add_argument("dir", type=Path, help="store root, for example HOME/store")
    parser.add_argument("--settings", type=Path, help="key=value lines with RocketMQ's names")
    parser.add_argument("--stage", choices=("recovered", "disk"), default="recovered")
    chosen = parser.parse_args(arguments)
    try:
        dump_store(chosen.dir, sys.stdout, chosen.settings, chosen.stage)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (Incompatible, SettingIllegal) as error:
        print(f"store dump: {error}", file=sys.stderr)
        return ExitCode.STORE if isinstance(error, Incompatible) else ExitCode.USAGE
    except OSError as error:
        print(f"store dump: {error}", file=sys.stderr)
        return ExitCode.IO_ERROR
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
