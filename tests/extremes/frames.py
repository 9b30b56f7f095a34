"""Frames for the supervisor: of any kind and with any value, cut, with gifts, by the flood."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress

from gantrymq.clients.home import connect
from gantrymq.shm import layout, wire
from tests.extremes.honest import Honest
from tests.extremes.values import packed, spoiled
from tests.support.extremes import kinds_of

#: Frames of one connection at most, and how many are on their way before answers are read.
OF_ONE = 400
UNREAD = 8
#: Of so many connections the first frame is no Hello; of frames so many are none at all.
NO_HELLO, NO_FRAME = 0.05, 0.005
#: Of frames so many come with descriptors.
GIFTS = 0.02
_KINDS = [kind for kind in kinds_of(wire.AnyFrame) if kind is not wire.StopBroker]


class Caller:
    """A connection, and what it says."""

    def __init__(self, honest: Honest, dice: random.Random) -> None:
        self.dice = dice
        self.base = {
            "serial": 1, "pid": os.getpid(), "fingerprint": layout.FINGERPRINT, "kind": "look",
            "name": f"any{dice.randrange(4)}", "queues": 1, "level": "written", "group": "g",
        }  # fmt: skip
        self.channel = connect(honest.broker.home, 60.0)
        self.taken = 0  # frames that were answered, and one that ended the connection

    def talk(self) -> int:
        """Say a lot; how much the broker has taken."""
        with self.channel, suppress(ConnectionError):
            if self.dice.random() > NO_HELLO:
                kind = self.dice.choice(("look", "client"))
                wire.send(self.channel, wire.Hello(os.getpid(), layout.FINGERPRINT, kind))
                self.hear()
            for number in range(1, self.dice.randrange(1, OF_ONE)):
                self.say()
                if number % UNREAD == 0 and not self.hear():
                    break
        return self.taken

    def say(self) -> None:
        """One frame."""
        body = packed(self.dice.choice(_KINDS), self.base, self.dice)
        if self.dice.random() < NO_FRAME:
            body = spoiled(body, self.dice)
        gifts = [0, 1, 2][: self.dice.randrange(4)] if self.dice.random() < GIFTS else []
        socket.send_fds(self.channel, [body[: wire.FRAME_BYTES_MAX + 1]], gifts)

    def hear(self) -> bool:
        """Read what has come; False at the end."""
        received = wire.receive(self.channel)
        while True:
            self.taken += 1
            if received is None:
                return False
            for descriptor in received[1]:
                os.close(descriptor)
            self.channel.setblocking(False)
            try:
                received = wire.receive(self.channel)
            except BlockingIOError:
                return True
            finally:
                self.channel.settimeout(60.0)


def play(honest: Honest, count: int, seed: int) -> Iterator[int]:
    """Say so many frames; yields how many there were, after some connections."""
    dice = random.Random(seed)
    done = 0
    while done < count:
        for _ in range(10):
            done += Caller(honest, dice).talk()
        yield done
