"""What `gantrymq metrics` prints. Needs no parser of options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gantrymq.cli.board import running_board
from gantrymq.cli.output import home_of, print_json
from gantrymq.clients.home import store_of

if TYPE_CHECKING:
    from pathlib import Path


def show_metrics(*, home: Path | None, as_json: bool) -> None:
    """Print all metrics once, as Prometheus' text or a line of JSON each."""
    where = home_of(home)
    board = running_board(where)
    from gantrymq.brokerd.metrics import BoardCollector, render
    from gantrymq.shm.storage import PosixStorage

    storage = PosixStorage(str(store_of(where)))
    if not as_json:
        sys.stdout.write(render(board, storage).decode())
        return
    for family in BoardCollector(board, storage).collect():
        for sample in family.samples:
            print_json({"name": sample.name, "labels": sample.labels, "value": sample.value})
