"""The demo's story of transactions: it holds at a real broker, and would say if not."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from gantrymq.temporary import Broker
from scripts import demo_transactions
from scripts.demo_transactions import LOST, PAID, RESCUED, Story, problems
from tests.support.forked import run_program

SOUND = Story([PAID, RESCUED], {RESCUED: "paid", LOST: "not paid"}, [-signal.SIGKILL] * 2, 1.0)


def killed(home: Path, path: Path, payment: str) -> int:
    """What `_killed` does, without the interpreter's start."""
    return run_program(Path(demo_transactions.__file__), home, path, payment).returncode


def test_it_holds_at_a_real_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_transactions, "_killed", killed)
    said: list[str] = []
    with Broker.temporary(transaction_timeout_s=1, transaction_check_interval_s=1) as broker:
        assert demo_transactions.judge(broker.home, tmp_path, said.append), said
    assert re.fullmatch(r"'rescued' delivered \d+\.\d s after .* paid, rescued", said[2]), said
    assert said[-1] == "transactions: hold"


@pytest.mark.parametrize(
    "broken",
    [
        SOUND._replace(delivered=[PAID, RESCUED, RESCUED]),
        SOUND._replace(delivered=[PAID, LOST, RESCUED]),
        SOUND._replace(asked={RESCUED: "paid"}),
        SOUND._replace(killed=[-signal.SIGKILL, 0]),
    ],
)
def test_a_broken_promise_is_told(broken: Story) -> None:
    assert not problems(SOUND)
    assert problems(broken)
