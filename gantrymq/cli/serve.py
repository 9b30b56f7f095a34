"""`gantrymq serve`."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gantrymq.cli.options import HomeOption, JsonOption, SettingsOption, home_of, print_json
from gantrymq.clients.home import store_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantrymq.brokerd.config import Configuration

HELP = """Run the broker in the foreground, until SIGTERM, SIGINT or SIGHUP.

\b
Example: gantrymq serve --home ./mq --set default_durability=durable
Example: gantrymq serve --home ./mq --check
Example: gantrymq serve --home ./mq --print-config > gantrymq.toml
Exit codes: 0 stopped cleanly; 2 a setting is wrong; 70 the store failed or is damaged;
74 an I/O error; 75 another broker holds the store; 77 not permitted.
"""
_COMMENT_WIDTH = 100


def serve(
    home: HomeOption = None,
    settings: SettingsOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check settings, also against store and limits.")
    ] = False,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print all settings as a gantrymq.toml, explained."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start the broker, or look at its settings."""
    from gantrymq.brokerd import config

    where = home_of(home)
    configuration = config.load(where, config.parse_assignments(settings or []))
    if print_config or check:
        configuration = _with_store(where, configuration)
    if print_config:
        _print(config.describe(configuration), as_json=as_json)
    elif check:
        from gantrymq.brokerd.startable import require_startable

        require_startable(where, configuration)
        _report(where, configuration, as_json)
    else:
        config.use_one_thread()
        from gantrymq.brokerd.serve import serve as run

        sys.exit(run(where, configuration))


def _with_store(home: Path, configuration: Configuration) -> Configuration:
    """Sizes of a store that is there already are its own; raises Incompatible as a start does."""
    if not store_of(home).is_dir():
        return configuration
    from gantrymq.brokerd.epoch import settle_sizes
    from gantrymq.brokerd.misplaced import require_files
    from gantrymq.shm.storage import PosixStorage

    storage = PosixStorage(str(store_of(home)))
    require_files(storage)
    return settle_sizes(storage, configuration)


def _warnings(home: Path, configuration: Configuration) -> Iterator[str]:
    """What a start would warn of, and start all the same."""
    for variable in configuration.unknown:
        yield f"{variable} looks like a setting, but there is none of that name"
    name = configuration.settings.metrics_textfile
    folder = (home / name).parent
    if name and folder != home and not os.access(folder, os.W_OK | os.X_OK):
        yield (
            f"metrics_textfile = {name!r}: {folder} is no directory that this user may write to;"
            " a broker starts without the file, and tries again"
        )


def _print(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Settings as JSON lines, or as TOML in which defaults are comments."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    for row in rows:
        unit = f" [{row['unit']}]" if row["unit"] else ""
        allowed = f" ({row['allowed']})" if row["allowed"] else ""
        text = f"{row['meaning']}{unit}{allowed}"
        for line in textwrap.wrap(text, _COMMENT_WIDTH, break_on_hyphens=False):
            sys.stdout.write(f"# {line}\n")
        origin, default = str(row["origin"]), json.dumps(row["default"], ensure_ascii=False)
        assignment = f"{row['name']} = {json.dumps(row['value'], ensure_ascii=False)}"
        if origin == "default":
            sys.stdout.write(f"#{assignment}\n\n")
        else:
            own = "#" if origin.startswith("default") else ""
            sys.stdout.write(f"# from {origin}; default {default}\n{own}{assignment}\n\n")


def _report(home: Path, configuration: Configuration, as_json: bool) -> None:
    warnings = list(_warnings(home, configuration))
    if as_json:
        unknown = configuration.unknown
        said = {"settings": "ok", "unknown_variables": unknown, "warnings": warnings}
        print_json({"home": str(home), **said})
        return
    for warning in warnings:
        sys.stderr.write(f"gantrymq: {warning}\n")
    sys.stdout.write(f"the settings of {home} are in order\n")
