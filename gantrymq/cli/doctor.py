"""`gantrymq doctor`: what is wrong with the machine or the home, and how to mend it."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict

import typer

from gantrymq.cli.options import HomeOption, JsonOption, home_of, print_json
from gantrymq.shm.codes import ExitCode

HELP = """Look at all that a broker needs: what is wrong, and how to mend it. Changes nothing.

Run it as the user of the broker, best with the broker's own environment.

\b
Example: gantrymq doctor --home ./mq
Exit codes: 0 all is well; 1 something is wrong.
"""


def doctor(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Print the findings."""
    from gantrymq.brokerd.doctor import examine

    findings = examine(home_of(home), os.environ)
    for finding in findings:
        if as_json:
            print_json(asdict(finding))
            continue
        sys.stdout.write(f"{finding.verdict:5}  {finding.check}: {finding.found}\n")
        if finding.mend:
            sys.stdout.write(f"       -> {finding.mend}\n")
    if any(finding.verdict == "wrong" for finding in findings):
        raise typer.Exit(ExitCode.DOES_NOT_HOLD)
