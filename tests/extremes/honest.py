"""Clients that keep to all rules while others do not, and what has to be so behind all of it."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from gantrymq import ConsumeFrom, Producer, PullConsumer
from gantrymq.clients.message import Message
from gantrymq.shm.codes import Role
from tests.support.brokers import ServingBroker
from tests.support.watchdog import poll_until

TOPIC = "honest"
PATIENCE_S = 60.0
FAILURES = ("agent_failed", "agent_ended", "agent_hung", "failed")
#: Each so many rounds a message for later and a transaction as well.
RARE = 16


class QuietBroker(ServingBroker):
    """Its log goes to a file: hostile clients make many lines."""

    def _launch(self, arguments: list[str], **streams: Any) -> subprocess.Popen[str]:  # noqa: ANN401
        self.log = self.home.with_name(f"{self.home.name}.log")
        with self.log.open("ab") as log:
            return super()._launch(arguments, **streams | {"stderr": log})

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged."""
        texts = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [json.loads(line) for line in texts if line.startswith("{")]


class Honest:
    """A producer and a consumer; `round` shows that all agents serve them."""

    def __init__(self, broker: QuietBroker) -> None:
        self.broker = broker
        self.agents = broker.pids()
        home = broker.home
        self.producer = Producer(home, producer_group=TOPIC, timeout=PATIENCE_S)
        self.consumer = PullConsumer(
            TOPIC, [TOPIC], home=home, timeout=PATIENCE_S, consume_from=ConsumeFrom.FIRST_OFFSET
        )
        #: What only our bodies begin with: others may send to this topic, too.
        self.ours = secrets.token_hex(8).encode()
        self.rounds = 0
        self.sent: set[bytes] = set()
        self.read: list[bytes] = []

    def round(self) -> None:
        """Send and receive, commit; now and then a delayed message and a transaction."""
        self.rounds += 1
        self._send(b"sent")
        if self.rounds % RARE == 1:
            body = self._body(b"later")
            self.producer.send(TOPIC, body, delay=0.5)
            with self.producer.transaction() as transaction:
                committed = self._body(b"committed")
                self.producer.send(Message(TOPIC, committed), transaction=transaction)
        self.read += self._polled(0)
        self.consumer.commit()
        self.require_alive()

    def _body(self, what: bytes) -> bytes:
        body = b"%s %s %d" % (self.ours, what, self.rounds)
        self.sent.add(body)
        return body

    def _send(self, what: bytes) -> None:
        self.producer.send(TOPIC, self._body(what))

    def require_alive(self) -> None:
        """No agent has ended."""
        found = self.broker.pids()
        assert found == self.agents, {
            role.name: (self.agents.get(role), found.get(role)) for role in Role
        }

    def finish(self) -> None:
        """All of theirs is there once, and the store is sound."""
        poll_until(self._has_all, "each honest message is received", PATIENCE_S)
        assert sorted(self.read) == sorted(self.sent)
        self.require_alive()
        self.close()

    def close(self) -> None:
        """End both sessions."""
        self.consumer.close()
        self.producer.close()

    def _polled(self, timeout: float) -> list[bytes]:
        bodies = map(bytes, self.consumer.poll(timeout=timeout).bodies)
        return [body for body in bodies if body.startswith(self.ours)]

    def _has_all(self) -> bool:
        self.read += self._polled(0.2)
        return len(self.read) >= len(self.sent)


def require_sound(broker: QuietBroker) -> None:
    """A clean stop, nothing amiss in the log or the store."""
    broker.process.send_signal(signal.SIGTERM)
    code = broker.process.wait(120)
    lines = broker.lines()
    amiss = [line for line in lines if line.get("event") in FAILURES]
    assert code == 0, (code, amiss, lines[-3:])
    assert amiss == []
    verified = subprocess.run(
        [sys.executable, "-P", "-m", "gantrymq", "store", "verify", str(broker.home / "store")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stdout + verified.stderr


def started(home: Path, **settings: object) -> QuietBroker:
    """A broker with small files and room for the topics of all, ready."""
    room = {"topics_max": 4096, "board_queues_max": 32_768}
    return QuietBroker(home, **room | settings).wait_until_ready()
