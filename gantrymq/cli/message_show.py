"""What `gantrymq get` prints. Needs no parser of options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.cli.output import print_json
from gantrymq.cli.query_show import store_at
from gantrymq.cli.records import message_of, print_fields
from gantrymq.clients.queries.ids import find_message

if TYPE_CHECKING:
    from pathlib import Path


def show_message(
    message: str, *, home: Path | None, as_json: bool, topic: str | None = None
) -> None:
    """Print the message with an id, or at a position; keys of one topic only, if it is given."""
    found = message_of(find_message(store_at(home), message, topic))
    if as_json:
        print_json(found)
    else:
        print_fields(found)
