"""The command `gantrymq`: its groups, and the exit codes of all of them."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from gantrymq.cli import ingest, receive, send, serve, status, store, topic
from gantrymq.cli.options import complain
from shm.codes import ExitCode
from shm.errors import GantryError
from shm.exitcode import exit_code

_EPILOG = (
    "Exit codes: 0 done; 1 the checked thing does not hold; 2 usage; 69 no broker; 70 store corrupt"
    " or failed; 74 I/O error; 75 another broker holds the store; 77 not permitted."
)

app = typer.Typer(
    name="gantrymq",
    help="GantryMQ: Apache RocketMQ's broker on one host, over shared memory.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("serve", help=serve.HELP)(serve.serve)
app.command("status", help=status.HELP)(status.status)
app.command("send", help=send.HELP)(send.send)
app.command("receive", help=receive.HELP)(receive.receive)
app.add_typer(topic.app, name="topic")
app.add_typer(store.app, name="store")
app.command("ingest")(ingest.ingest)


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        sys.stdout.write(version_of("gantrymq") + "\n")
        raise typer.Exit


def main() -> None:
    """Run a command and leave with its documented exit code."""
    try:
        app()
    except GantryError as error:
        complain(str(error))
        sys.exit(exit_code(error))
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
