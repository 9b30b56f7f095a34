"""A broker at work with all that it does, and applications that tell what they were told.

`python -m tests.powercut.work HOME TOLD SEED PROFILE SECONDS` runs under strace. The broker is
killed amid it and started again, so that a recovery's own writes are among the recorded ones; each
of its lives goes on until the housekeeper has sealed, retention has removed and `groups` has
written its ledger anew. Each line of the file TOLD is a JSON list that names an event from an
application's view, written right after it:

    ["ready"]                the first life of the broker is ready
    ["killed"], ["again"]    it is about to be killed; the next life is ready
    ["intent", kind, body, due_ms, topic]   before the send: "now", "later" (due), "far", "half"
    ["durable", body]        a receipt of durability "durable"; also of a half or a delayed message
    ["deciding", body, "commit" | "rollback"]   before the transaction's end is asked for
    ["decided", body, "commit" | "rollback"]    the transaction's end was answered
    ["recalling", body]      before a message is recalled
    ["recalled", body, outcome]   the recall was answered: a RecallOutcome
    ["making", topic], ["made", topic], ["unmaking", topic], ["unmade", topic]
                             before and after a topic is created and deleted
    ["got", group, body]     a listener returned SUCCESS, or a pull loop has the message
    ["error", what]          an application failed: the recording is worth nothing
    ["end"]                  all is done, just before the broker is killed
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gantrymq.brokerd import epoch, retention
from gantrymq.brokerd.__main__ import main as serve_home
from gantrymq.brokerd.batchunits import DIRECTORY
from gantrymq.brokerd.topics import TopicConfig
from gantrymq.clients.consumer import ConsumeFrom, PullConsumer
from gantrymq.clients.groupreset import reset_offsets
from gantrymq.clients.home import read_board_file, store_of
from gantrymq.clients.message import Message
from gantrymq.clients.producer import Producer
from gantrymq.clients.push.consumer import PushConsumer
from gantrymq.clients.push.consumeresult import ConsumeResult
from gantrymq.clients.running import ready_board
from gantrymq.shm import jit, wire
from gantrymq.shm.board import Board, TopicSlot
from gantrymq.shm.configfile import write_config
from gantrymq.shm.errors import BrokerGone
from gantrymq.shm.ownfiles import make_store
from gantrymq.shm.storage import PosixStorage
from gantrymq.shm.topicfiles import LEVEL_ATTRIBUTE
from gantrymq.workers.groups import ledger, ledgersuccessor
from gantrymq.workers.scheduler import progress as timer_progress
from gantrymq.workers.transactions import progress as half_progress
from tests.powercut.settings import (
    AUDIT,
    BATCH_FILE_BYTES,
    BILLING,
    BULK,
    CASHIER,
    DLQ_EVERY,
    FAILS_EVERY,
    FAR_MS,
    LIVES,
    MAX_ATTEMPTS,
    PLAIN,
    PRODUCERS,
    READ_BY,
    RETRY_S,
    SAFE,
    TILLS,
    settings_of,
)  # fmt: skip
from tests.support.watchdog import poll_until

#: Ends a hang; strace makes all slow.
PATIENCE_S = 120.0
_TOPICS = (SAFE, SAFE, SAFE, PLAIN, PLAIN, BULK, TILLS)
_KINDS = (*["now"] * 9, *["level", "later", "half", "batch"] * 3, "recalled", "far")
_ENDS = (*["commit", "rollback"] * 5, "leave")
_NOTES_NS = 300_000_000


class Told:
    """The file; one write a line, so that strace sees when each was known."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, *event: object) -> None:
        os.write(self._descriptor, json.dumps(event).encode() + b"\n")


class Life:
    """A life of the broker: a fork of this process, with files so small that all is full soon."""

    def __init__(self, home: Path, profile: str, log: Path) -> None:
        earlier = read_board_file(home).get("board", "")
        self._pid = os.fork()
        if not self._pid:
            _become_broker(home, profile, log)
        poll_until(lambda: self._is_ready(home, earlier), "the broker is ready", PATIENCE_S)

    def _is_ready(self, home: Path, earlier: str) -> bool:
        if os.waitpid(self._pid, os.WNOHANG)[0]:
            raise BrokerGone(f"the broker at {home} has ended")
        return ready_board(home, but=earlier) is not None

    def kill(self) -> None:
        """SIGKILL to all of its processes."""
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _become_broker(home: Path, profile: str, log: Path) -> None:
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        _hurry()
        sys.argv = ["brokerd", "--home", str(home)]
        for name, value in settings_of(profile).items():
            sys.argv += ["--set", f"{name}={value}"]
        os._exit(serve_home())
    finally:
        os._exit(1)


def _hurry() -> None:
    """What a broker does each few seconds, minutes or MiB it does many times in a recording."""
    retention.PACE.first = retention.PACE.between = 300_000_000
    retention.PACE.look = retention.PACE.grace = 100_000_000
    retention.PACE.patience = 300_000_000
    vars(retention)["_HOUR_MS"] = 1  # so that `file_reserved_time` counts milliseconds
    ledger.compact_bytes, ledgersuccessor.step_pieces = 2_000, 5
    for noted in (timer_progress, half_progress):  # retention waits for their notes
        vars(noted)["interval_ns"] = _NOTES_NS
    vars(epoch)["boot_id"] = lambda: "00000000-0000-4000-8000-000000000000"  # before the cut


def fate(body: str, attempt: int) -> str:
    """What the listener does with a message: by its content, so that any life does the same."""
    number = int(body.split("-")[1])
    if number % DLQ_EVERY == 0:
        return "fails"
    return "fails" if number % FAILS_EVERY == 0 and attempt < 2 else "succeeds"


class Work:
    """Applications of all kinds in one process."""

    def __init__(self, home: Path, profile: str, told: Told, seed: int) -> None:
        self.home = home
        self.profile = profile
        self.told = told
        self.dice = random.Random(seed)
        self.calm = threading.Event()  # nothing more is sent
        self.stop = threading.Event()
        self._number = self._brief = 0
        self._lock = threading.Lock()
        self._reading: list[threading.Thread] = []

    def body(self) -> str:
        with self._lock:
            self._number += 1
            text = f"m-{self._number}-"
            return text + "." * self.dice.choice([0, 10, 100, 900])

    def run(self, seconds: float) -> None:
        """Work through a life: send for so long, then go on until the broker has done all.

        A loaded machine may need longer for a segment, which all else waits for.
        """
        self.calm.clear()
        self.stop.clear()
        before, segment = self._marks(), self._active()
        sending = self._started(*[self.send] * PRODUCERS, self.make_topics, self.operate)
        self._reading = self._started(self.listen, self.have_in_order, self.pull)
        self.calm.wait(seconds)
        poll_until(lambda: self._active() > segment, "a segment is full", PATIENCE_S)
        self.calm.set()
        for thread in sending:
            thread.join()
        poll_until(lambda: self._has_done_all(before), f"all of {before} is passed", PATIENCE_S)

    def leave(self) -> None:
        """End the consumers of a life that was killed: they are told nothing more."""
        self.stop.set()
        for thread in self._reading:
            thread.join()

    def _marks(self) -> list[int]:
        """The newest sealed segment, the ledger's file, and where the log begins: each changes.

        But for the last in a temporary broker, which has no retention. What retention has removed
        was sealed, and has no sidecar any more.
        """
        store = store_of(self.home)
        low = min(_numbers(store / "commitlog"), default=0)
        marks = [max([*_numbers(store / "gantry/segments"), low - 1])]
        marks.append((store / "gantry/ledger").stat().st_ino)
        if self.profile != "temporary":
            marks.append(low)
        return marks

    def _active(self) -> int:
        return max(_numbers(store_of(self.home) / "commitlog"), default=0)

    def _has_done_all(self, before: list[int]) -> bool:
        return all(now != was for now, was in zip(self._marks(), before, strict=True))

    def _started(self, *jobs: Callable[[], None]) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._quietly, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        return threads

    def _quietly(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            if not self.stop.is_set():
                self.told("error", f"{job.__name__}: {error!r}")

    # ------------------------------------------------------------------------------------ senders

    def send(self) -> None:
        """Sends of all kinds."""
        with Producer(self.home, durability="durable", producer_group="bank") as producer:
            left: list[str] = []
            while not self.calm.is_set():
                left += getattr(self, f"_send_{self.dice.choice(_KINDS)}")(producer) or ()
            for body in left:  # the producer's end rolls them back
                self.told("deciding", body, "rollback")

    def _send_now(self, producer: Producer) -> None:
        pending = []
        for _ in range(self.dice.randint(1, 12)):
            body = self.body()
            topic = self.dice.choice(_TOPICS)
            self.told("intent", "now", body, 0, topic)
            keys = [body[:8]]
            pending.append((body, producer.send_async(topic, body.encode(), keys=keys)))
        for body, future in pending:
            future.result()
            self.told("durable", body)

    def _send_batch(self, producer: Producer) -> None:
        bodies = [self.body() for _ in range(self.dice.randint(2, 5))]
        topic = self.dice.choice([SAFE, TILLS])
        for body in bodies:
            self.told("intent", "now", body, 0, topic)
        producer.send_batch([Message(topic, body.encode()) for body in bodies])
        for body in bodies:
            self.told("durable", body)

    def _send_later(self, producer: Producer) -> None:
        body, delay = self.body(), self.dice.choice([0.05, 0.3, 0.9, 1.5])
        self.told("intent", "later", body, int(time.time() * 1000) + int(delay * 1000), SAFE)
        producer.send(SAFE, body.encode(), delay=delay)
        self.told("durable", body)

    def _send_recalled(self, producer: Producer) -> None:
        body, delay = self.body(), self.dice.choice([0.02, 0.3, 0.9])
        self.told("intent", "later", body, int(time.time() * 1000) + int(delay * 1000), SAFE)
        receipt = producer.send(SAFE, body.encode(), delay=delay)
        self.told("durable", body)
        if receipt.recall_handle is None:
            return
        self.told("recalling", body)
        outcome = producer.recall_message(SAFE, receipt.recall_handle)
        self.told("recalled", body, outcome.value)

    def _send_level(self, producer: Producer) -> None:
        body = self.body()
        self.told("intent", "later", body, int(time.time() * 1000) + 1000, SAFE)
        producer.send(SAFE, body.encode(), delay_level=1)
        self.told("durable", body)

    def _send_far(self, producer: Producer) -> None:
        body = self.body()
        self.told("intent", "far", body, FAR_MS, SAFE)
        producer.send(SAFE, body.encode(), delivery_timestamp=FAR_MS)
        self.told("durable", body)

    def _send_half(self, producer: Producer) -> list[str]:
        """Returns what is left open."""
        bodies = [self.body() for _ in range(self.dice.randint(1, 3))]
        transaction = producer.begin_transaction()
        for body in bodies:
            self.told("intent", "half", body, 0, SAFE)
            producer.send(SAFE, body.encode(), transaction=transaction)
            self.told("durable", body)
        end = self.dice.choice(_ENDS)
        for body in bodies if end != "leave" else ():
            self.told("deciding", body, end)
        if end == "commit":
            transaction.commit()
        elif end == "rollback":
            transaction.rollback()
        for body in bodies if end != "leave" else ():
            self.told("decided", body, end)
        return bodies if end == "leave" else []

    def make_topics(self) -> None:
        """Topics that come, get a message, and go, but for each third."""
        with Producer(self.home, durability="durable") as producer:
            while not self.calm.wait(0.1):
                self._brief += 1
                name = f"brief-{self._brief}"
                self._change_topic("making", "made", name, wire.CreateTopic(name, 1, "durable"))
                body = self.body()
                self.told("intent", "now", body, 0, name)
                producer.send(name, body.encode())
                self.told("durable", body)
                if self._brief % 3:
                    self._change_topic("unmaking", "unmade", name, wire.DeleteTopic(name))

    def _change_topic(self, before: str, after: str, name: str, frame: wire.Frame) -> None:
        self.told(before, name)
        with Producer(self.home) as producer:
            producer._link.session.request(frame)
        self.told(after, name)

    def operate(self) -> None:
        """An operator: sets a group back, and makes a back-up."""
        self.calm.wait(0.5)
        reset_offsets(self.home, AUDIT, PLAIN, _to_begin, 10.0)
        copy = self.home.parent / f"copy-{self._number}"
        command = ["store", "backup", str(copy), "--home", str(self.home)]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "gantrymq", *command], capture_output=True, check=False
        )
        if done.returncode:
            self.told("error", f"{command}: {done.stderr.decode()}")

    # ---------------------------------------------------------------------------------- consumers

    def listen(self) -> None:
        """A push consumer of which some messages fail for a while, and some for ever."""
        self._push(PushConsumer(
            BILLING, [*READ_BY[BILLING]], lambda message: heard(message, self.told), home=self.home,
            max_attempts=MAX_ATTEMPTS, consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=4,
        ))  # fmt: skip

    def have_in_order(self) -> None:
        """A push consumer that has a queue's messages in their order, some at the second go."""
        self._push(PushConsumer(
            CASHIER, [*READ_BY[CASHIER]], lambda message: cashed(message, self.told),
            home=self.home, orderly=True, consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=2,
        ))  # fmt: skip

    def _push(self, consumer: PushConsumer) -> None:
        with suppress(BrokerGone), consumer:
            self.stop.wait()

    def pull(self) -> None:
        """A pull consumer that commits now and then."""
        first = ConsumeFrom.FIRST_OFFSET
        topics = [*READ_BY[AUDIT]]
        with PullConsumer(AUDIT, topics, home=self.home, consume_from=first) as consumer:
            while not self.stop.is_set():
                with suppress(BrokerGone):  # between two lives; the next call attaches again
                    batch = consumer.poll(max_messages=20, timeout=0.2)
                    for body in batch.bodies:
                        self.told("got", AUDIT, bytes(body).decode())
                    if self.dice.random() < 0.3:
                        consumer.commit()


def _to_begin(board: Board, topic: TopicSlot) -> dict[int, int]:
    """The first queue goes back to its first message."""
    return {0: board.queue(topic.queue_base)["min_offset"]}


def _numbers(folder: Path) -> list[int]:
    names = os.listdir(folder) if folder.is_dir() else []
    return [int(name) for name in names if name.isdecimal()]


def heard(message: Message, told: Callable[..., None]) -> ConsumeResult:
    """The listener, in every life."""
    body = bytes(message.body).decode()
    if fate(body, message.delivery_attempt or 1) == "fails":
        message.retry_after(RETRY_S)
        return ConsumeResult.FAILURE
    told("got", BILLING, body)
    return ConsumeResult.SUCCESS


def cashed(message: Message, told: Callable[..., None]) -> ConsumeResult:
    """The orderly listener, in every life: it fails some messages once."""
    body = bytes(message.body).decode()
    if int(body.split("-")[1]) % FAILS_EVERY == 0 and (message.delivery_attempt or 1) < 2:
        message.retry_after(RETRY_S)
        return ConsumeResult.FAILURE
    told("got", CASHIER, body)
    return ConsumeResult.SUCCESS


def _make_topics(home: Path) -> None:
    """The topics, as a RocketMQ's tools would: only so there is one of type BatchCQ."""
    make_store(store_of(home))
    storage = PosixStorage(str(store_of(home)))
    storage.make_directory("config")
    levels = {SAFE: "durable", PLAIN: "written", BULK: "durable", TILLS: "durable"}
    table = {}
    for name, level in levels.items():
        attributes = {LEVEL_ATTRIBUTE: level} | ({"queue.type": "BatchCQ"} if name == BULK else {})
        table[name] = TopicConfig(name, 2, 2, 6, attributes).to_json()
    for queue_id in range(2):
        file = storage.create(f"{DIRECTORY}/{BULK}/{queue_id}/{0:020d}")
        file.truncate(BATCH_FILE_BYTES)  # as long as all that follow
        file.sync()
        file.close()
    write_config(storage, "topics.json", {"topicConfigTable": table})
    folders = [f"{DIRECTORY}/{BULK}/{queue_id}" for queue_id in range(2)]
    for folder in (*folders, f"{DIRECTORY}/{BULK}", DIRECTORY, "config", ""):
        storage.sync_directory(folder)


def main() -> None:
    """See the module."""
    home, told_path = map(Path, sys.argv[1:3])
    seed, profile, seconds = int(sys.argv[3]), sys.argv[4], float(sys.argv[5])
    told = Told(told_path)
    jit.warm()
    _make_topics(home)
    work = Work(home, profile, told, seed)
    for number in range(LIVES):
        life = Life(home, profile, told_path.with_name("broker.log"))
        told("ready" if not number else "again")
        try:
            work.run(seconds / LIVES)
        except BaseException:  # neither threads nor broker let strace wait for ever
            traceback.print_exc()
            life.kill()
            os._exit(1)
        told("end" if number + 1 == LIVES else "killed")
        life.kill()
        work.leave()
    os._exit(0)


if __name__ == "__main__":
    main()
