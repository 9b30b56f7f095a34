"""The lines of filters: expressions, tags, bitmaps."""

from __future__ import annotations

from typing import Final

from bench.harness import Bound, Line, value

_SQL: Final = {
    "simple": "SQL92 `a > 5`",
    "typical": "SQL92 of 4 terms, with IN and IS NOT NULL",
    "hard": "SQL92 of 9 terms, with BETWEEN, CONTAINS and NOT",
}
_TAGS: Final = {"rare": "tag of 1 %", "rarer": "tag of 0.01 %"}


def filters() -> list[Line]:
    """All in memory: messages, or units of queues, examined per second by one consumer."""
    return [
        *(
            Line(
                "sql",
                f"{what}, examined",
                value(what, "/s", "sql", kind),
                value("`a > 5`", "/s", "sql", "simple") if kind != "simple" else None,
                Bound("ours", ">=", 1e6) if kind != "hard" else None,
                Bound("ours", ">=", 2e6) if kind != "hard" else None,
            )
            for kind, what in _SQL.items()
        ),
        Line(
            "sql",
            f"{_SQL['typical']}, examined, beside the same in Python",
            value(_SQL["typical"], "/s", "sql", "typical"),
            value("loop over PullConsumer", "/s", "sql", "loop"),
            None,
            Bound("ratio", ">=", 10),
        ),
        *(
            Line(
                "tags",
                f"{what}, units examined",
                value(what, "/s", "tags", tag),
                None,
                Bound("ours", ">=", 10e6),
                Bound("ours", ">=", 20e6),
            )
            for tag, what in _TAGS.items()
        ),
        Line(
            "bitmaps",
            "SQL92 of 1 %, examined, bitmaps of all messages",
            value("with bitmaps", "/s", "bitmaps", "with"),
            value("without", "/s", "bitmaps", "without"),
            None,
            Bound("ratio", ">=", 2),
        ),
        Line(
            "bitmaps",
            "processor seconds of the reader for a million messages, one filter",
            value("with bitmaps", "s", "bitmaps", "reader_with"),
            value("without", "s", "bitmaps", "reader_without"),
        ),
        Line(
            "bitmaps",
            "records read in vain for their bits, as many filters TRUE as are expected",
            value("measured", "%", "false", "measured"),
            value("configured", "%", "false", "configured"),
        ),
    ]
