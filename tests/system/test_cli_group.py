"""`gantrymq group describe`: who is in a group, those for whom no queue is left too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from gantrymq.cli.board import running_board
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.home import store_of
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.shm.codes import Role
from gantrymq.temporary import Broker
from tests.support.brokers import command
from tests.support.forked import start_forked
from tests.support.push import Seen
from tests.support.watchdog import poll_until

SENT = 5


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker.temporary() as running:
        yield running


def described(broker: Broker, group: str) -> dict[str, Any]:
    ran = command("group", "describe", group, "--json", "--home", broker.home)
    assert ran.returncode == 0, ran
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def shares(broker: Broker, group: str) -> list[int]:
    """How many queues each member has."""
    return sorted(row["queues"] for row in described(broker, group)["members"])


def test_three_members_over_two_queues(broker: Broker, unique_name: str) -> None:
    """CQ-46: one gets none, and is shown; it takes over when a member leaves or is killed."""
    topic, group, at = unique_name, "g-" + unique_name, ("--home", broker.home)
    assert command("topic", "create", topic, "--queues", 2, *at).returncode == 0
    first = ConsumeFrom.FIRST_OFFSET
    line = ["receive", topic, "--group", group, "--wait", "120", "--home", str(broker.home)]
    one = PullConsumer(group, [topic], home=broker.home, consume_from=first)
    two = PullConsumer(group, [topic], home=broker.home, consume_from=first)
    with one:
        with two:
            poll_until(lambda: shared_out(broker, group, one, two), "each has a queue")
            with start_forked("gantrymq", line, stdout=subprocess.DEVNULL) as other:
                poll_until(lambda: shares(broker, group) == [0, 1, 1], "the third has joined")
                with Producer(broker.home) as producer:
                    for number in range(SENT):
                        producer.send(topic, b"%d" % number, queue_id=number % 2)
                check_three(described(broker, group), topic, other.pid)
                for_people = command("group", "describe", group, *at).stdout
                assert f"members 3, queues 2, lag {SENT}, the oldest" in for_people
                assert str(other.pid) in for_people
                (listed,) = [row for row in all_groups(broker) if row["group"] == group]
                assert (listed["members"], listed["queues"]) == (3, 2)
                other.kill()
            poll_until(lambda: shares(broker, group) == [1, 1], "it is a member no more")
        poll_until(lambda: shares(broker, group) == [2], "who left has left its queue")
    left = described(broker, group)
    assert left["members"] == []
    assert {row["session"] for row in left["queues"]} == {None}


def check_three(shown: dict[str, Any], topic: str, pid: int) -> None:
    members = shown["members"]
    assert {row["pid"] for row in members} == {os.getpid(), pid}
    assert {row["subscription"] for row in members} == {f"{topic}: *"}
    assert all(row["joined_ms"] > 0 and not row["by_hand"] for row in members)
    owners = [row["session"] for row in members if row["queues"]]
    assert sorted(row["session"] for row in shown["queues"]) == owners
    assert shown["lag"] == sum(row["lag"] for row in shown["queues"]) == SENT
    ages = [row["oldest_ms"] for row in shown["queues"] if row["lag"]]
    assert shown["oldest_ms"] == max(ages) > 0


def all_groups(broker: Broker) -> list[dict[str, Any]]:
    ran = command("group", "list", "--json", "--home", broker.home)
    return [json.loads(line) for line in ran.stdout.splitlines()]


def shared_out(broker: Broker, group: str, *members: PullConsumer) -> bool:
    """Whether two members have a queue each; who is to give one back does it as it polls."""
    for member in members:
        member.poll(timeout=0)
    return shares(broker, group) == [1, 1]


def test_what_a_member_states_is_shown(broker: Broker, unique_name: str) -> None:
    """Tags, order and attempts of a push consumer; a reader that names its queues does so."""
    topic, group, by_hand = unique_name, "g-" + unique_name, "h-" + unique_name
    with Producer(broker.home) as producer:
        producer.send(topic, b"x")
    seen = Seen()
    with PushConsumer(
        group, {topic: "a || b"}, seen, home=broker.home, orderly=True, max_attempts=3
    ) as consumer:
        poll_until(lambda: described(broker, group)["members"], "it has joined")
        (member,) = described(broker, group)["members"]
        assert (member["orderly"], member["max_attempts"]) == (True, 3)
        assert f"{topic}: a || b" in member["subscription"]
        assert member["assignment"] == "sticky"
        assert member["queues"] == len(consumer.assignment())
    with PullConsumer(by_hand, [topic], home=broker.home) as reader:
        queues = reader.assignment()
        reader.assign(queues[:1])
        (member,) = described(broker, by_hand)["members"]
        assert (member["by_hand"], member["queues"], member["max_attempts"]) == (True, 1, None)


def test_a_member_is_named_once_for_each_page_of_them(broker: Broker, unique_name: str) -> None:
    """More members than one answer of the supervisor has room for."""
    group, count = "g-" + unique_name, 14
    with Producer(broker.home) as producer:
        producer.send(unique_name, b"x")
    members = [PullConsumer(group, [unique_name], home=broker.home) for _ in range(count)]
    try:
        shown = described(broker, group)["members"]
        assert len({row["session"] for row in shown}) == len(shown) == count
    finally:
        for member in members:
            member.close()


def test_without_a_supervisor_holders_are_shown(unique_name: str) -> None:
    """One that hangs is not waited for long, and what is missing is said."""
    with Broker.temporary() as broker:
        with Producer(broker.home) as producer:
            producer.send(unique_name, b"x")
        with PullConsumer("holds", [unique_name], home=broker.home) as member:
            held = len(member.assignment())
            poll_until(lambda: shares(broker, "holds") == [held], "it is in the ledger")
            pid = running_board(broker.home).process(Role.SUPERVISOR)["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                ran = command("group", "describe", "holds", "--json", "--home", broker.home)
            finally:
                os.kill(pid, signal.SIGCONT)
        assert ran.returncode == 0
        assert "members without queues are not shown" in ran.stderr
        (row,) = json.loads(ran.stdout)["members"]
        assert (row["pid"], row["queues"], row["joined_ms"]) == (None, held, None)


def test_a_group_is_deleted_by_hand(broker: Broker, unique_name: str) -> None:
    """Refused while it has members; then its entry, offsets and retry topic go."""
    topic, group, at = unique_name, "g-" + unique_name, ("--home", broker.home)
    with Producer(broker.home) as producer:
        producer.send(topic, b"one")
    seen = Seen()
    first = ConsumeFrom.FIRST_OFFSET
    with PushConsumer(group, {topic: "*"}, seen, home=broker.home, consume_from=first):
        poll_until(lambda: len(seen.messages) == 1, "it is delivered")
        refused = command("group", "delete", group, *at)
        assert refused.returncode == 2
        assert "1 member" in refused.stderr
    done = command("group", "delete", group, "--json", *at)
    assert done.returncode == 0, done
    assert json.loads(done.stdout) == {
        "group": group, "deleted": True, "topics": [f"%RETRY%{group}", f"%DLQ%{group}"],
    }  # fmt: skip
    assert group not in [row["group"] for row in all_groups(broker)]
    table = store_of(broker.home) / "config" / "subscriptionGroup.json"
    poll_until(lambda: table.exists() and group not in table.read_text(), "its entry is gone")
    again = command("group", "delete", group, *at)
    assert (again.returncode, "there is no group" in again.stderr) == (2, True)
    with PullConsumer(group, [topic], home=broker.home, consume_from=first) as consumer:
        assert bytes(consumer.poll(1, timeout=60.0).bodies[0]) == b"one", "it begins anew"
    deleted = command("group", "delete", group, *at)
    assert deleted.stdout.startswith(f"group {group} is deleted")
