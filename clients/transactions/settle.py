"""An operator's hand on a half message: commit, roll back, or have its producer asked again."""

from __future__ import annotations

import os
import time
from typing import Final

from gantrymq.clients.closing import Closing
from gantrymq.clients.session import Session, now_ns
from gantrymq.shm import errors, transactionwire
from gantrymq.shm.codes import ClientState
from gantrymq.shm.controllane import ControlLane, End
from gantrymq.shm.transactionwire import Settle, Settled

#: A request is repeated: the checker that it was said to may have died.
_REPEAT_NS: Final = 1_000_000_000
_ANSWER_NS: Final = 30_000_000_000
#: A half that has just been stored is looked up in the half queue now and then only.
_UNKNOWN_NS: Final = 3_000_000_000
_AGAIN_S: Final = 0.1
_ERRORS: Final[dict[str, type[errors.GantryError]]] = {
    transactionwire.DISK_FULL: errors.DiskFull,
    transactionwire.DECIDED: errors.TransactionDecided,
}
#: What to do about it, where the answer does not say that.
_MENDS: Final = {
    transactionwire.UNSTORABLE: (
        ": make its topic (`gantrymq topic create`), or take it back (`gantrymq tx rollback`)"
    ),
}


class Settler(Closing):
    """A session with the txn-checker. Raises BrokerGone, NotPermitted if there is none."""

    def __init__(self, home: str | os.PathLike[str], who: str) -> None:
        """`who` is kept in the log with each decision."""
        self._session = Session(home, transactions=True)
        self._lane = ControlLane(self._session.arena, self._session.plan.transactions, End.CLIENT)
        self._who = who
        self._serial = 0

    def settle(self, position: int, action: str) -> str:
        """Have the half at a log position settled; what it is then, as transactionwire calls it.

        `action` is transactionwire.COMMIT, ROLLBACK or RECHECK. Raises TransactionDecided if it was
        decided otherwise before, Rejected, DiskFull, Timeout (it may still be settled), BrokerGone.
        """
        patient_ns = now_ns() + _UNKNOWN_NS
        while True:
            self._serial += 1
            answer = self._ask(Settle(self._serial, position, action, self._who))
            if answer.error != transactionwire.UNKNOWN or now_ns() > patient_ns:
                break
            time.sleep(_AGAIN_S)
        if answer.error:
            text = (answer.text or answer.error) + _MENDS.get(answer.error, "")
            raise _ERRORS.get(answer.error, errors.Rejected)(text)
        return answer.outcome

    def _ask(self, request: Settle) -> Settled:
        body = transactionwire.encode(request)
        heard: list[Settled] = []

        def ready() -> bool:
            self._lane.arm(ClientState.ARMED)
            while (notice := self._lane.take()) is not None:
                found = transactionwire.decode_notice(notice)
                if isinstance(found, Settled) and found.serial == request.serial:
                    heard.append(found)
            return bool(heard)

        end_ns = now_ns() + _ANSWER_NS
        while now_ns() < end_ns:
            if self._lane.put(body):
                self._session.checker_bell.ring()
            if self._session.wait(min(now_ns() + _REPEAT_NS, end_ns), ready):
                return heard[0]
        raise errors.Timeout("the txn-checker did not answer: it may still settle the transaction")

    def close(self) -> None:
        """End the session. Safe to call twice."""
        self._session.close()
