"""What a power cut could have left of a real broker at work (P1, P4, P7 to P10, P13, P14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.powercut.runs import PROFILES, recorded, try_states
from tests.powercut.trace import read
from tests.support.trials import mends

#: Of each profile; `make soak` has 500.
STATES = 25


@mends("R5.1", "R5.2", "R7.1")
@pytest.mark.parametrize("profile", PROFILES)
def test_what_was_promised_holds_after_a_power_cut(profile: str, tmp_path: Path, seed: int) -> None:
    """Sends, delays, retries, transactions, retention, ledger compaction and sealing go on.

    So do a second start, recalls, an order, topics that come and go, a back-up and a reset.
    """
    run = recorded(profile, seed, 4.0, tmp_path)
    kinds = {effect.kind for effect in run.recording.effects}
    assert {"write", "sync", "sync_names", "rename", "unlink"} <= kinds
    gone = [e for e in run.recording.effects if e.kind == "rename" and "/expired/" in e.other]
    assert bool(gone) == (profile != "temporary"), "retention; a temporary broker has none"
    states = range(seed, seed + STATES)
    assert try_states(run, states, tmp_path, lambda *_: None) == [], "seed and what is broken"


def test_calls_that_a_kill_let_never_return_are_in_doubt(tmp_path: Path) -> None:
    """Of a recording: they are no effects, though some of them have happened."""
    store, calls = tmp_path / "store", tmp_path / "calls"
    folder, name = f"AT_FDCWD<{tmp_path}>", "".join(f"\\x{byte:02x}" for byte in bytes(store))
    flags, file = "O_WRONLY|O_CREAT, 0600", rf"3<{name}\x2f\x61>"
    others = [rf"3<{name}\x2f\x{ord(letter):02x}>" for letter in "cde"]
    lines = [
        rf'11 openat({folder}, "{name}\x2f\x61", {flags}) = 3',
        f'11 pwrite64({file}, "\\x01", 1, 0 <unfinished ...>',
        rf'12 openat({folder}, "{name}\x2f\x62", {flags} <unfinished ...>',
        "11 <... pwrite64 resumed>) = 1",
        f"11 fdatasync({file} <unfinished ...>",
        "12 <... openat resumed> <unfinished ...>) = ?",
        f'13 pwrite64({others[0]}, "\\x01", 1, 0) = ?',
        f'14 pwrite64({others[1]}, "\\x01", 1, 0) = ? <unavailable>',
        f'15 pwrite64({others[2]}, "\\x01", 1, 0 <detached ...>',
        "16 ???()                             = ?",
    ]
    calls.write_text("\n".join(lines) + "\n")
    recording = read(calls, store, tmp_path / "told")
    assert [(effect.kind, effect.name) for effect in recording.effects] == [
        ("create", "a"),
        ("write", "a"),
    ]
    assert recording.in_doubt == {"a", "b", "c", "d", "e"}
