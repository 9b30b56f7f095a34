"""Two agents in one process: the first never waits for more than a step of the second."""

from __future__ import annotations

from dataclasses import dataclass, field

from gantrymq.workers.agent import IDLE_NS
from gantrymq.workers.sparetime import PATIENCE_NS, InSpareTime

NAP_NS = 200_000


@dataclass
class Part:
    """An agent that does what it is told, and writes down when it was asked."""

    name: str
    story: list[str]
    work: list[int] = field(default_factory=list)
    sleeps: list[int] = field(default_factory=list)
    closed: bool = False

    def do_work(self, now_ns: int) -> int:
        """The next amount of work, 0 if there is none."""
        self.story.append(self.name)
        return self.work.pop(0) if self.work else 0

    def arm(self, now_ns: int) -> int:
        """The next sleep."""
        return self.sleeps.pop(0) if self.sleeps else IDLE_NS

    def disarm(self) -> None:
        """Awake."""

    def close(self) -> None:
        """Remembered."""
        self.closed = True


def pair() -> tuple[InSpareTime, Part, Part, list[str]]:
    story: list[str] = []
    first, second = Part("first", story), Part("second", story)
    return InSpareTime(first, second), first, second, story


def test_the_second_waits_while_the_first_has_work() -> None:
    both, first, second, story = pair()
    first.work, second.work = [3, 2], [1, 1]
    assert [both.do_work(now) for now in range(3)] == [3, 2, 1]
    assert story == ["first", "first", "first", "second"]


def test_the_first_looks_after_each_step_of_the_second() -> None:
    both, _first, second, story = pair()
    second.work = [1, 1]
    assert [both.do_work(now) for now in range(3)] == [1, 1, 0]
    assert story == ["first", "second"] * 3
    assert both.arm(3) == IDLE_NS


def test_while_the_first_naps_the_second_has_the_time_to_itself() -> None:
    both, first, second, story = pair()
    first.sleeps, second.work = [NAP_NS], [1, 1, 1, 1]
    for now in (0, NAP_NS // 2, NAP_NS - 1, NAP_NS):
        assert both.do_work(now) == 1
    assert story == ["first", "second", "second", "second", "first", "second"]


def test_a_nap_ends_when_the_second_has_nothing_to_do() -> None:
    """A stop that comes meanwhile must reach the first before both count as idle."""
    both, first, second, _story = pair()
    first.sleeps, first.work, second.work = [NAP_NS], [0, 7], [1]
    assert both.do_work(0) == 1
    assert both.do_work(1) == 7


def test_the_shorter_sleep_counts_and_both_are_closed() -> None:
    both, first, second, _story = pair()
    first.sleeps, second.sleeps = [IDLE_NS, 0], [NAP_NS, NAP_NS]
    assert both.name == "first"
    assert [both.arm(0), both.arm(0)] == [NAP_NS, 0]
    both.disarm()
    both.close()
    assert first.closed
    assert second.closed


def test_a_first_that_never_rests_leaves_the_second_a_step_now_and_then() -> None:
    both, first, second, story = pair()
    first.work, second.work = [1] * 6, [1] * 6
    for cycle in range(6):
        both.do_work(cycle * PATIENCE_NS // 2 + 1)
    assert story.count("first") == 6
    assert 1 <= story.count("second") <= 3
