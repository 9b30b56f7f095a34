"""`gantrymq get`: one message by its id."""

from __future__ import annotations

from typing import Annotated

import typer

from clients.home import store_of
from gantrymq.cli.options import HomeOption, JsonOption, home_of, print_json

HELP = """Print the message with an offset message id (`offset_msg_id` of receipts), or a position.

It is read from the log itself, also while no broker runs.

\b
Example: gantrymq get 7F00000100002A9F0000000000000000 --home ./mq
Exit codes: 0 done; 2 no message begins there; 70 it is damaged; 74 unreadable.
"""


def get(
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE_ID", help="Offset message id, or a log position.")
    ],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print one message."""
    from gantrymq.cli.records import message_of, print_fields
    from shm.storage import PosixStorage
    from shm.storereader import StoreReader, position_of

    reader = StoreReader(PosixStorage(str(store_of(home_of(home)))))
    found = message_of(reader.record(position_of(message)))
    if as_json:
        print_json(found)
    else:
        print_fields(found)
