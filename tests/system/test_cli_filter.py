"""`gantrymq filter explain`."""

from __future__ import annotations

import json

from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.shm.codes import ExitCode
from gantrymq.temporary import Broker
from tests.support.brokers import command


def test_each_part_says_what_it_is_worth() -> None:
    done = command(
        *("filter", "explain", "price > 10 AND (a IN ('x') OR b = 1)", "--json"),
        *("--message", "price=12", "--message", "b=none"),
    )
    assert done.returncode == ExitCode.DOES_NOT_HOLD
    found = json.loads(done.stdout)
    parts = {part["part"]: part["value"] for part in found["tree"]}
    assert parts["AND"] == "unknown"
    assert parts[">"] == "TRUE"
    assert parts["IN ('x')"] == "unknown"
    assert parts["price"] == "'12'"
    assert not found["passes"]
    assert found["program"][-1].endswith("END")


def test_a_dialect_is_followed_to_its_failures() -> None:
    """FL-31."""
    done = command(
        *("filter", "explain", "a > 5", "--dialect", "rocketmq", "--message", "a=5.5", "--json")
    )
    assert done.returncode == ExitCode.DOES_NOT_HOLD
    assert json.loads(done.stdout)["tree"][0]["value"] == "fails"


def test_what_does_not_compile_is_named_by_position() -> None:
    done = command("filter", "explain", "price >")
    assert done.returncode == ExitCode.USAGE
    assert "position 7" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_last_messages_of_a_topic_are_counted(unique_name: str) -> None:
    with Broker.temporary() as broker:
        with Producer(home=broker.home) as producer:
            producer.send_batch(
                [Message(unique_name, b"", properties={"n": str(n)}) for n in range(100)]
            )
        done = command(
            *("filter", "explain", "n >= 90", "--topic", unique_name, "--last", "40", "--json"),
            *("--home", str(broker.home)),
        )
    assert done.returncode == ExitCode.OK, done.stderr
    counted = json.loads(done.stdout)["topic"]
    assert counted == {"topic": unique_name, "examined": 40, "passed": 10}
