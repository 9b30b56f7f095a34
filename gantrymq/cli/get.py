"""`gantrymq get`: one message by its id."""

from __future__ import annotations

from typing import Annotated

import typer

from gantrymq.cli.message_show import show_message
from gantrymq.cli.options import HomeOption, JsonOption

HELP = """Print the message with an id, or at a position.

The id is that of receipts: `message_id`, looked up in the key index (the newest counts), or the
place's, `offset_msg_id`. It is read from the store itself, also while no broker runs. Of a batch
in a RocketMQ's topic of type BatchCQ the first message is printed, unless the id is another one's.

\b
Example: gantrymq get 7F00000100002A9F0000000000000000 --home ./mq
Exit codes: 0 done; 2 there is no such message; 70 it is damaged; 74 unreadable.
"""


def get(
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE_ID", help="Message id, or a log position.")
    ],
    topic: Annotated[
        str | None, typer.Option(help="Look the id up in this topic only: quicker.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print one message."""
    show_message(message, home=home, as_json=as_json, topic=topic)
