"""`gantrymq bench`: the figures of the README on this machine."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from gantrymq.cli.options import JsonOption, print_json
from gantrymq.shm.errors import Rejected
from gantrymq.shm.jsontext import parse_json

HELP = """Measure the figures of the README on this machine. Needs a checkout of the project.

\b
Example: gantrymq bench --quick sync paced
Example: gantrymq bench --smoke floors sustained
Exit codes: 0 done; 1 a measurement failed; 2 no checkout, or no such row.
"""


def bench(
    rows: Annotated[
        list[str] | None, typer.Argument(help="Rows to measure; all without any.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes: smaller data.")] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Seconds: only shows that it runs.")
    ] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="For stores; on a disk. Else the user's cache.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with plots there.")
    ] = None,
    list_rows: Annotated[bool, typer.Option("--list", help="Name the rows, and end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the benchmarks of the checkout that this package lies in."""
    root = Path(__file__).absolute().parents[2]
    if not (root / "bench" / "__main__.py").is_file():
        raise Rejected(
            "the benchmarks are not part of the installed package: clone the project and run"
            " `make bench`, or this command there"
        )
    command = [sys.executable, "-m", "bench"]
    command += [name for name, on in {"--quick": quick, "--smoke": smoke}.items() if on]
    if list_rows:
        command.append("--list")
    given = {"--dir": directory, "--html": html}
    command += [
        word for name, path in given.items() if path for word in (name, str(path.absolute()))
    ]
    with tempfile.TemporaryDirectory(prefix="gantrymq-") as folder:
        figures = Path(folder) / "figures.json"
        command += ["--json", str(figures)] if as_json else []
        command += ["--only", *rows] if rows else []
        # With --json the table is for the eye only.
        done = subprocess.run(command, cwd=root, check=False, stdout=2 if as_json else None)
        if figures.exists():
            print_json(parse_json(figures.read_text(encoding="utf-8")))
    raise typer.Exit(done.returncode)
