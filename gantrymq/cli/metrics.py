"""`gantrymq metrics`: the board in Prometheus' text format."""

from __future__ import annotations

import sys

from clients.home import store_of
from gantrymq.cli.board import running_board
from gantrymq.cli.options import HomeOption, JsonOption, home_of, print_json

HELP = """Print what the board shows as Prometheus metrics. Nothing listens: see metrics_textfile.

\b
Example: gantrymq metrics --home ./mq | grep lag
Exit codes: 0 done; 69 no broker.
"""


def metrics(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Print all metrics once."""
    where = home_of(home)
    board = running_board(where)
    from brokerd.metrics import BoardCollector, render
    from shm.storage import PosixStorage

    storage = PosixStorage(str(store_of(where)))
    if not as_json:
        sys.stdout.write(render(board, storage).decode())
        return
    for family in BoardCollector(board, storage).collect():
        for sample in family.samples:
            print_json({"name": sample.name, "labels": sample.labels, "value": sample.value})
