"""The lines of scale: what many queues, sessions and a long log cost, and 1 KiB for a while."""

from __future__ import annotations

from bench.harness import Line, Value, ratio_at_least, ratio_at_most, value
from bench.sizes import BUSY_SESSIONS, Sizes


def scale(sizes: Sizes) -> list[Line]:
    """What a message costs, in processor seconds of all processes for a million of them."""

    def cost(label: str, contestant: str, metric: str = "cost") -> Value:
        return value(label, "s", contestant, metric)

    short, long = (f"{size / 2**30:,.3g} GiB" for size in sizes.log_bytes)
    one = cost("1 busy session", "sessions-1")
    compared = [
        ("1000 queues", cost("1000 queues", "queues-1000"), cost("1 queue", "queues-1")),
        (f"{BUSY_SESSIONS} busy sessions", cost("10 busy", "sessions-10"), one),
        (
            f"{sizes.sessions} sessions, {BUSY_SESSIONS} busy",
            cost("all", "sessions-all"),
            one,
        ),
        (
            f"{long} of log, or 75 % of the free disk",
            cost("long", "log-length", "cost_long"),
            cost(f"{short} of log", "log-length", "cost_short"),
        ),
    ]
    bounds = ratio_at_most(2), ratio_at_most(1.3)
    return [
        *(
            Line("scale", f"processor time for a million messages, {what}", ours, other, *bounds)
            for what, ours, other in compared
        ),
        Line(
            "sustained",
            f"1 KiB end to end, {sizes.sustained_s:g} s, bytes of log on the disk",
            value("sustained", "MB/s", "sustained", "disk_mb_s"),
            value("plain pwrite, then fdatasync", "MB/s", "pwrite", "disk_mb_s"),
            ratio_at_least(0.7),
            ratio_at_least(0.9),
        ),
        Line(
            "sustained",
            "the same, beside what the page cache takes",
            value("sustained", "MB/s", "sustained", "mb_s"),
            value("plain pwrite", "MB/s", "pwrite", "mb_s"),
        ),
        Line(
            "sustained",
            "the same, on the disk, beside what lets pages go as the broker does",
            value("sustained", "MB/s", "sustained", "disk_mb_s"),
            value("pwrite, synced and let go of", "MB/s", "pwrite-lets-go", "disk_mb_s"),
        ),
    ]
