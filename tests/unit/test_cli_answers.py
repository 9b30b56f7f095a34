"""What commands hear of many messages that they have sent, once the broker is gone."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gantrymq.cli import delayed_recall, dlq_act
from gantrymq.cli.dlq_letters import DeadLetters, Letter
from gantrymq.cli.send import _Receipts
from gantrymq.clients import producer as producers
from gantrymq.clients.message import MessageQueue, SendReceipt
from gantrymq.clients.producer import Producer
from gantrymq.clients.recalloutcome import RecallOutcome
from gantrymq.shm.errors import BrokerGone, DiskFull, GantryError, Rejected, Timeout
from gantrymq.workers.groups.deadletternote import DeadLetterNote
from tests.support.trials import mends

STORED = SendReceipt("A", "B", MessageQueue("t", 0), 0, "written", None)


class Receipt(Future[SendReceipt]):
    """Ends by these, each time it is asked by the next one; notes how long it was waited for."""

    def __init__(self, waits: list[float | None], *ends: SendReceipt | BaseException) -> None:
        super().__init__()
        self._waits, self._ends = waits, [*ends]

    def result(self, timeout: float | None = None) -> SendReceipt:
        self._waits.append(timeout)
        end = self._ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end


def broken_off(receipts: _Receipts) -> BaseException:
    """What `gantrymq send` ends by, as it takes the receipts."""
    try:
        receipts.take(0)
    except BaseException as error:
        receipts.take_rest()
        receipts.tell()
        return error
    raise AssertionError("nothing was raised")


@mends("S187")
@pytest.mark.parametrize("kind", [BrokerGone, Timeout])
def test_a_broker_that_is_gone_is_waited_for_once(
    capsys: pytest.CaptureFixture[str], kind: type[GantryError]
) -> None:
    """Not once for each receipt; what has come by then counts."""
    waits: list[float | None] = []
    receipts, gone = _Receipts(as_json=False), kind("gone")
    for end in (STORED, gone, gone, STORED, gone):
        receipts.expect(Receipt(waits, end))
    assert broken_off(receipts) is gone
    assert waits == [None, None, 0.0, 0.0, 0.0]
    told = capsys.readouterr().err
    assert "messages stored before that: 2; they stay" in told
    assert "messages without an answer: 3; they may be stored or not" in told


@mends("S187")
def test_a_refusal_and_ctrl_c_leave_no_receipt_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The broker is there: the others are waited for as before, the one of ^C once more."""
    waits: list[float | None] = []
    receipts = _Receipts(as_json=False)
    receipts.expect(Receipt(waits, KeyboardInterrupt(), STORED))
    receipts.expect(Receipt(waits, DiskFull("full")))
    receipts.expect(Receipt(waits, STORED))
    assert isinstance(broken_off(receipts), KeyboardInterrupt)
    assert waits == [None] * 4
    assert capsys.readouterr().err == "gantrymq: messages stored before that: 2; they stay\n"


class Resends:
    """`dlq resend` of letters that end so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: SendReceipt | BaseException) -> None:
        self.waits: list[float | None] = []
        self.note = DeadLetterNote()
        dead = SimpleNamespace(note=self.note, storage=None)
        self.run = dlq_act._Resend(cast("DeadLetters", dead), "g")
        receipts = iter([Receipt(self.waits, end) for end in ends])
        self._producer = SimpleNamespace(send_async=lambda _message, **_level: next(receipts))
        self._letters = [SimpleNamespace(place=(0, offset)) for offset in range(len(ends))]
        monkeypatch.setattr(dlq_act, "_message", lambda _letter: SimpleNamespace(topic="t"))
        monkeypatch.setattr(dlq_act, "write_note", lambda *_: None)

    def send(self) -> None:
        """Send them."""
        given: Any = self._producer, self._letters
        self.run.send(cast("Producer", given[0]), cast("list[Letter]", given[1]))

    @property
    def remembered(self) -> list[tuple[int, int]]:
        """Offsets that are not sent again."""
        return self.note.of("g", 0).resent


@mends("S187")
def test_resends_wait_once_for_a_broker_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = BrokerGone("gone")
    resends = Resends(monkeypatch, STORED, gone, gone, STORED)
    with pytest.raises(BrokerGone):
        resends.send()
    resends.run.tell_broken_off()
    assert resends.waits == [None, None, 0.0, 0.0]
    assert resends.remembered == [(0, 1), (3, 4)]
    told = capsys.readouterr().err
    assert "sent again before that: 2" in told
    assert "without an answer: 2; the next run sends them once more" in told


@mends("S187")
def test_what_was_sent_again_before_ctrl_c_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    resends = Resends(monkeypatch, STORED, KeyboardInterrupt(), STORED)
    with pytest.raises(KeyboardInterrupt):
        resends.send()
    assert resends.remembered == [(0, 1)]


def recalled(
    monkeypatch: pytest.MonkeyPatch, *ends: RecallOutcome | GantryError
) -> delayed_recall._Recalls:
    """What `delayed recall orders -` notes of handles that end so."""
    left = [*ends]

    def recall_message(_topic: str, _handle: str) -> RecallOutcome:
        end = left.pop(0)
        if isinstance(end, GantryError):
            raise end
        return end

    producer = nullcontext(SimpleNamespace(recall_message=recall_message))
    monkeypatch.setattr(producers, "Producer", lambda **_: producer)
    told = delayed_recall._Recalls("orders", dry_run=False, as_json=False)
    delayed_recall._cancel(Path("home"), [f"h{number}" for number in range(len(ends))], told)
    return told


@mends("S188")
def test_a_recall_that_is_refused_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named; where no other one can be cancelled either, it is told where that began."""
    done = RecallOutcome.CANCELLED
    told = recalled(monkeypatch, done, Rejected("not carried out"), done)
    assert (told.counts, told.code) == ({"cancelled": 2, "refused": 1}, 1)
    assert capsys.readouterr().err == "gantrymq: h1: not carried out\n"
    with pytest.raises(DiskFull):
        recalled(monkeypatch, done, DiskFull("full"), done)
    assert "h1: not cancelled, or not known to be; nor those behind it" in capsys.readouterr().err
