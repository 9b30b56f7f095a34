"""Known bugs of fairness that can be put into a run, as those of tests.sim.plants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gantrymq.workers.groups import agent as groups
from gantrymq.workers.scheduler import recalls
from gantrymq.workers.scheduler.agent import Scheduler
from gantrymq.workers.scheduler.recalls import RecallDesk
from gantrymq.workers.transactions import agent as checker
from gantrymq.workers.transactions import desk
from gantrymq.workers.transactions.desk import Desk
from tests.sim.plants import put_over

_ENDLESS = 1 << 40


def one_lane_until_empty() -> None:
    """The txn-checker takes all that a session has put before it looks at the next one."""
    requests_of = Desk._requests_of

    def endless(at_desk: Desk, peer: Any) -> Iterator[Any]:  # noqa: ANN401
        while peer.session.session in at_desk._peers and peer.lane.has_more:
            yield from requests_of(at_desk, peer)
            peer.unanswered = peer.searches = 0
            if peer.told:
                return

    put_over(Desk, "_requests_of", endless)
    put_over(checker, "REQUESTS_MAX", _ENDLESS)


def sessions_before_what_is_due() -> None:
    """The scheduler delivers when no session asks anything."""
    serve, deliver, asked = RecallDesk.serve, Scheduler._deliver, [0]

    def noting(at_desk: RecallDesk, *how: Any, **more: Any) -> int:  # noqa: ANN401
        asked[0] = serve(at_desk, *how, **more)
        return asked[0]

    def later(scheduler: Scheduler) -> int:
        return 0 if asked[0] else deliver(scheduler)

    put_over(RecallDesk, "serve", noting)
    put_over(Scheduler, "_deliver", later)


def always_the_first_session() -> None:
    """Agents begin each step with the session that came first."""
    for module in (groups, desk, recalls):
        put_over(module, "pass_turn", lambda *_: None)


def a_step_without_a_budget() -> None:
    """`groups` takes whatever there is in one step."""
    put_over(groups, "CYCLE_COST", _ENDLESS)
    put_over(groups, "SESSION_COST", _ENDLESS)


PLANTS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        one_lane_until_empty,
        sessions_before_what_is_due,
        always_the_first_session,
        a_step_without_a_budget,
    )
}
