"""`gantrymq metrics`: the board in Prometheus' text format."""

from __future__ import annotations

from gantrymq.cli.metrics_show import show_metrics
from gantrymq.cli.options import HomeOption, JsonOption

HELP = """Print what the board shows as Prometheus metrics. Nothing listens: see metrics_textfile.

\b
Example: gantrymq metrics --home ./mq | grep lag
Exit codes: 0 done; 69 no broker.
"""


def metrics(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Print all metrics once."""
    show_metrics(home=home, as_json=as_json)
