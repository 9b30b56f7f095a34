"""Stores of ours, opened by a real RocketMQ: it must accept, consume and extend them.

`make interop` makes each store with a broker of ours and hands it to the checker that the
environment variable GANTRYMQ_ROCKETMQ names: a directory with a `run.sh` that starts RocketMQ's
own classes on a copy (`check`: load, recover, compare every record and queue; `serve`: name server,
broker, consumers and sends). Exit 0: all accepted; 1: something was refused; 77: no checker.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantrymq import Broker, GantryError, Message, Producer
from scripts import interop_goes_on

VARIABLE: Final = "GANTRYMQ_ROCKETMQ"
SKIPPED: Final = 77
SEGMENT_BYTES: Final = 256 * 1024
QUEUE_FILE_BYTES: Final = 50 * 20
SIZES: Final = (
    *("--commitlog-size", str(SEGMENT_BYTES), "--cq-size", str(QUEUE_FILE_BYTES)),
    *("--index-slots", "500", "--index-num", "1000"),
)
#: The same of a broker of ours.
SETTINGS: Final = {
    "mapped_file_size_commit_log": SEGMENT_BYTES,
    "mapped_file_size_consume_queue": QUEUE_FILE_BYTES,
    "max_hash_slot_num": 500,
    "max_index_num": 1000,
}
#: RocketMQ then takes a record for valid only with a true checksum trailer (SF-24).
BINDING: Final = ("-D", "enabledAppendPropCRC=true", "-D", "forceVerifyPropCRC=true")
#: Every key of every record has to be found.
INDEX: Final = ("--index", "strict")
#: SF-123: without this 5.4.0 rebuilds queues from the last ten segments only.
WHOLE_LOG: Final = ("-D", "commitLogRecoverMaxNum=100000")


@dataclass(frozen=True)
class Trial:
    """One store and what RocketMQ has to do with it."""

    name: str
    make: Callable[[Broker], None]
    checks: tuple[tuple[str, ...], ...]
    #: Changes the store's files before RocketMQ sees them.
    alter: Callable[[Path], None] | None = None


# ----------------------------------------------------------------------------------------- stores


def send_mixed(broker: Broker) -> None:
    """Three topics, tags and keys not only ASCII, bodies of 1 B to 100 KiB; many files."""
    with Producer(broker.home) as producer:
        for number in range(900):
            topic = ("orders", "audit-2026", "a%b|c")[number % 3]
            size = 100 * 1024 if number % 300 == 7 else 1 + number * 37 % 3000
            producer.send_async(
                Message(
                    topic,
                    bytes([number % 251]) * size,
                    tag=(None, "paid", "refunded", "übergabe")[number % 4],
                    keys=(f"k{number}", f"group{number % 10}") if number % 2 else (),
                    properties={"region": "eu", "größe": str(size)} if number % 5 == 0 else {},
                )
            )
        producer.flush()


def send_durable(broker: Broker) -> None:
    """Durable sends and batches, two sessions side by side."""
    with Producer(broker.home, durability="durable") as first, Producer(broker.home) as second:
        for number in range(60):
            first.send("orders", b"durable %d" % number, tag="paid", keys=(f"d{number}",))
            members = [
                Message("batches", b"%d/%d " % (number, i) * 200, tag=f"t{i % 3}")
                for i in range(1 + number % 15)
            ]
            second.send_batch(members)
            second.send_oneway("orders", b"written %d" % number)
        second.flush()


def send_fitting(broker: Broker) -> None:
    """Records that would leave 7 bytes of their segment (so they roll), 8, 9 and more (SF-20)."""
    with Producer(broker.home) as producer:
        for left_over in (*range(7, 17), 28, 99):
            start = producer.send("edges", b"x", queue_id=0)
            first = int(start.offset_msg_id[16:], 16)
            probe = producer.send("edges", b"y", queue_id=0)
            record = int(probe.offset_msg_id[16:], 16) - first
            position = int(probe.offset_msg_id[16:], 16) + record
            left = SEGMENT_BYTES - position % SEGMENT_BYTES
            bare = record - len(b"y")
            producer.send("edges", b"z" * (left - left_over - bare), queue_id=0)
            producer.send("edges", b"behind", queue_id=0)


def send_through_restarts(broker: Broker) -> None:
    """A clean stop, then a kill, with messages before, between and after."""
    send_mixed(broker)
    broker.stop()
    broker.start()
    send_durable(broker)
    broker.process.send_signal(signal.SIGKILL)
    broker.process.wait()
    broker.start()
    send_fitting(broker)


def send_and_kill(broker: Broker) -> None:
    """Killed with everything still in memory; RocketMQ recovers it, not we."""
    send_mixed(broker)
    broker.process.send_signal(signal.SIGKILL)
    broker.process.wait()


def without_queues(store: Path) -> None:
    """What is derived may go: RocketMQ builds queues and index from our log alone (SF-111)."""
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")  # or the last message is indexed twice (SF-120)


TRIALS: Final = (
    Trial("mixed", send_mixed, (("check", *INDEX), ("check", *INDEX, *BINDING), ("serve",))),
    Trial("durable, batches", send_durable, (("check", *INDEX, *BINDING), ("serve",))),
    Trial("filler edges", send_fitting, (("check", *INDEX, *BINDING),)),
    Trial("stopped, killed", send_through_restarts, (("check", *INDEX, *BINDING), ("serve",))),
    Trial("killed", send_and_kill, (("check", "--abort", "keep"), ("serve",))),
    Trial(
        "log alone", send_mixed,
        (("check", *INDEX, *WHOLE_LOG), ("serve", *WHOLE_LOG)), without_queues,
    ),
)  # fmt: skip


# ---------------------------------------------------------------------------------------- running


@contextmanager
def made(trial: Trial) -> Iterator[Path]:
    """The store of a trial, its broker stopped (or killed)."""
    with Broker.temporary(**SETTINGS) as broker:
        trial.make(broker)
        broker.stop()
        store = broker.home / "store"
        if trial.alter:
            trial.alter(store)
        yield store


def run_checker(runner: Path, store: Path, check: tuple[str, ...], log: Path) -> tuple[bool, str]:
    """Run one command of the checker; whether it said OK, and its last word."""
    command = [str(runner), check[0], str(store), *SIZES, *check[1:]]
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, env=_environment(), check=False
        )
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    failures = [line for line in lines if line.startswith("FAIL")]
    said = failures[0] if failures else (lines[-1] if lines else "said nothing")
    return done.returncode == 0 and not failures, said


def run_leg(leg: interop_goes_on.Leg, runner: Path, logs: Path) -> bool:
    """RocketMQ goes on with a store, then we do, then it checks the outcome."""
    log = logs / f"{leg.name.replace(' ', '-').replace(',', '').replace(':', '')}.log"
    started = time.monotonic()
    checker = interop_goes_on.Checker(runner, SIZES, _environment())
    try:
        store, said = interop_goes_on.run(leg, checker, SETTINGS, log)
        accepted, word = run_checker(
            runner, store, ("check", *INDEX), log.with_suffix(".check.log")
        )
        said = f"{said}; {word}"
    except (AssertionError, GantryError) as error:
        accepted, said = False, str(error)
    outcome = f"accepted: {said}" if accepted else f"REFUSED: {said} ({log})"
    did = f"serve --send {interop_goes_on.THEIRS}, then ours again, check"
    print(f"{leg.name:<18} {did:<75}{time.monotonic() - started:>6.1f}  {outcome}", flush=True)
    return accepted


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    java = environment.get("JAVA_HOME")
    if java:
        environment["PATH"] = f"{java}/bin{os.pathsep}{environment.get('PATH', '')}"
    return environment


def find_runner() -> Path | None:
    """The checker's `run.sh`, or None after telling what is missing."""
    place = os.environ.get(VARIABLE)
    if not place:
        problem = f"set {VARIABLE} to the directory of the RocketMQ checker (it holds run.sh)"
    elif not (Path(place) / "run.sh").is_file():
        problem = f"{VARIABLE}={place} has no run.sh"
    else:
        return Path(place) / "run.sh"
    print(f"interop: skipped: {problem}", file=sys.stderr)
    return None


def main() -> None:
    """Run all trials, or those whose names contain an argument, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="run only trials whose name contains one of these")
    names: list[str] = parser.parse_args().names
    runner = find_runner()
    if runner is None:
        sys.exit(SKIPPED)
    chosen = [t for t in TRIALS if not names or any(name in t.name for name in names)]
    logs = Path(tempfile.mkdtemp(prefix="gantrymq-interop-"))
    refused = 0
    print(f"{'store':<18}{'RocketMQ does':<76}{'s':>6}  outcome", flush=True)
    for trial in chosen:
        with made(trial) as store:
            for number, check in enumerate(trial.checks):
                log = logs / f"{trial.name.replace(' ', '-').replace(',', '')}-{number}.log"
                started = time.monotonic()
                accepted, said = run_checker(runner, store, check, log)
                refused += not accepted
                seconds = time.monotonic() - started
                outcome = f"accepted: {said}" if accepted else f"REFUSED: {said} ({log})"
                did = " ".join(word for word in check if word != "-D")
                print(f"{trial.name:<18}{did:<76}{seconds:>6.1f}  {outcome}", flush=True)
    for leg in interop_goes_on.LEGS:
        if not names or any(name in leg.name for name in names):
            refused += not run_leg(leg, runner, logs)
    print(f"interop: {refused} refused")
    if not refused:
        shutil.rmtree(logs)
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
