"""`gantrymq serve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gantrymq.cli.options import HomeOption, JsonOption, home_of, print_json, print_rows

HELP = """Run the broker in the foreground, until SIGTERM or SIGINT.

\b
Example: gantrymq serve --home ./mq --set default_durability=durable
Exit codes: 0 stopped cleanly; 2 a setting is wrong; 70 the store failed or is damaged;
74 an I/O error; 75 another broker holds the store.
"""


def serve(
    home: HomeOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting; may be given repeatedly."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only check the settings.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show all settings and where each comes from.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start the broker, or look at its settings."""
    from brokerd import config

    where = home_of(home)
    configuration = config.load(where, config.parse_assignments(settings or []))
    if print_config:
        print_rows(config.describe(configuration), as_json=as_json)
    elif check:
        _report(where, configuration.unknown, as_json)
    else:
        config.use_one_thread()
        from brokerd.serve import serve as run

        sys.exit(run(where, configuration))


def _report(home: Path, unknown: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        print_json({"home": str(home), "settings": "ok", "unknown_variables": unknown})
        return
    for name in unknown:
        sys.stderr.write(f"gantrymq: {name} looks like a setting, but there is none of that name\n")
    sys.stdout.write(f"the settings of {home} are in order\n")
