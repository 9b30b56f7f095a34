"""`make demo`: real data takes the whole way, and two processes are killed on the way.

336,776 flights from two producers through the log to a group of two consumers; one consumer and the
broker's writer are killed amid it. An SQL subscription gets the late ones of two carriers, as many
as the CSV has (scripts/demo_filter.py). Then a message waits for its time, one is cancelled, one
comes again and one becomes a dead letter (scripts/demo_delays.py); a transaction is committed, one
rolled back, and a check rescues that of a killed producer (scripts/demo_transactions.py). Spark
reads the rotated segments, and its means per carrier are compared with the CSV's. Exit code 0 only
if everything holds, and within three minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts import demo_delays, demo_filter, demo_transactions  # noqa: E402 - importable by the line above
from scripts import demo_flights as data  # noqa: E402

PRODUCERS = 2
SEGMENT = 16 << 20
STEP_S = 150.0
ALL_S = 180.0  # for the whole story, on two processors


def say(text: str) -> None:
    """One line of the demo's story."""
    print(f"[{time.monotonic() - STARTED:5.1f} s] {text}", flush=True)


STARTED = time.monotonic()
PROCESSES: list[subprocess.Popen[bytes]] = []


def run(*arguments: str) -> subprocess.Popen[bytes]:
    """A process of the demo."""
    process = subprocess.Popen(
        [sys.executable, "-P", *arguments], cwd=ROOT, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    PROCESSES.append(process)
    return process


def end_all() -> None:
    """Whatever happened, nothing is left running."""
    for process in PROCESSES:
        if process.poll() is None:
            process.kill()
        process.wait()


def command(*arguments: str, expect: int = 0) -> str:
    """Run a command of gantrymq and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gantrymq", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != expect:
        raise SystemExit(f"gantrymq {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + STEP_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"demo: {what} did not come within {STEP_S:.0f} s")
        time.sleep(0.01)


class Member:
    """A consumer process and its notes."""

    def __init__(self, home: Path, notes: Path) -> None:
        self.notes = notes
        self.process = run("-m", "scripts.demo_roles", "consume", str(home), str(notes))

    def numbers(self) -> array[int]:
        """Flights it got, in order."""
        return _read(self.notes.with_suffix(".got"))

    def acknowledged(self) -> int:
        """How many of them it has acknowledged for sure."""
        counts = _read(self.notes.with_suffix(".acked"))
        return counts[-1] if counts else 0

    def stop(self) -> None:
        """Let it end by itself."""
        self.notes.with_suffix(".stop").touch()


def _read(path: Path) -> array[int]:
    numbers = array("q")
    if path.exists():
        content = path.read_bytes()
        numbers.frombytes(content[: len(content) // 8 * 8])
    return numbers


@contextlib.contextmanager
def broker(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`gantrymq serve` on a fresh directory."""
    process = run(
        "-m", "gantrymq", "serve", "--home", str(home),
        "--set", f"mapped_file_size_commit_log={SEGMENT}", "--set", "log_level=warning",
        "--set", "transaction_timeout_s=2",
    )  # fmt: skip
    try:
        until(lambda: _ready(home), "the broker")
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def _ready(home: Path) -> bool:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gantrymq", "status", "--home", str(home), "--json"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


def processes_of(home: Path) -> dict[str, dict[str, int]]:
    """Pid and restarts of each process of the broker."""
    status = json.loads(command("status", "--home", str(home), "--json"))
    return {row["agent"]: row for row in status["processes"]}


class Traces:
    """What a running broker must not leave behind: its processes and its board."""

    def __init__(self, home: Path) -> None:
        from gantrymq.clients.home import read_board_file

        self.processes = {name: row["pid"] for name, row in processes_of(home).items()}
        self.board = Path("/dev/shm", read_board_file(home)["board"])

    def left(self) -> list[str]:
        """What of it is there still."""
        running = [name for name, pid in self.processes.items() if Path(f"/proc/{pid}").exists()]
        return running + [str(self.board)] * self.board.exists()


def send_and_consume(home: Path, work: Path) -> tuple[int, list[Member]]:
    """Producers and consumers under way; kill a consumer and the writer; wait for the end."""
    command("topic", "create", data.TOPIC, "--queues", "4", "--home", str(home))
    members = [Member(home, work / f"consumer-{number}") for number in range(2)]
    producers = [
        run("-m", "scripts.demo_roles", "produce", str(home), str(part), str(PRODUCERS))
        for part in range(PRODUCERS)
    ]
    until(lambda: all(len(m.numbers()) > 20_000 for m in members), "the first flights")
    members[0].process.kill()
    say(f"killed consumer 1 after {len(members[0].numbers()):,} flights")
    writer = processes_of(home)["writer"]
    os.kill(writer["pid"], signal.SIGKILL)
    say(f"killed the writer (pid {writer['pid']}); the broker replaces it alone")
    members.append(Member(home, work / "consumer-3"))
    sent = sum(int(process.communicate()[0] or 0) for process in producers)
    say(f"producers are done: {sent:,} flights sent")
    until(lambda: len(distinct(members)) >= sent, "the last flight")
    after = processes_of(home)["writer"]
    say(f"writer was restarted {after['restarts']} time(s), now pid {after['pid']}")
    for member in members:
        member.stop()
    for member in members[1:]:
        member.process.wait(60)
    members[0].process.wait()
    return sent, members


def distinct(members: list[Member]) -> set[int]:
    """Numbers of all flights that anybody got."""
    return {number for member in members for number in member.numbers()}


def judge_delivery(sent: int, members: list[Member]) -> bool:
    """Sent = distinct consumed, doubles at most what was not acknowledged."""
    total = sum(len(member.numbers()) for member in members)
    found = len(distinct(members))
    doubles = total - found
    open_at_death = len(members[0].numbers()) - members[0].acknowledged()
    holds = sent == found == data.FLIGHTS and doubles <= open_at_death
    say(
        f"sent {sent:,}, distinct consumed {found:,}, doubles {doubles:,} (not yet acknowledged by"
        f" the killed consumer: {open_at_death:,}): {'holds' if holds else 'DOES NOT HOLD'}"
    )
    return holds


def judge_store(home: Path) -> bool:
    """`store verify` on the stopped store."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gantrymq", "store", "verify", str(home / "store")],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    say(f"store verify: {(done.stdout or done.stderr).strip().splitlines()[-1]}")
    return done.returncode == 0


def judge_spark(home: Path) -> bool:
    """Rows and means per carrier from Spark equal the CSV's."""
    from gantrymq.spark import session

    say("Spark reads the segments (the last one, never rotated, too)")
    expected = data.from_csv()
    spark = session("gantrymq-demo", memory="1g")
    try:
        frame = (
            spark.read.format("gantrymq")
            .option("store", str(home / "store"))
            .option("topic", data.TOPIC)
            .option("includeActive", "true")
            .load()
        )
        found = data.from_spark(frame)
    finally:
        spark.stop()
    wrong = data.differences(expected, found)
    for line in data.table(found):
        print(f"          {line}")
    print("          a flight without a delay counts as a row and not for the mean")
    say("Spark and CSV agree" if not wrong else "Spark and CSV differ:\n" + "\n".join(wrong))
    return not wrong


def main() -> int:
    """Run the story in a temporary directory."""
    work = Path(tempfile.mkdtemp(prefix="gantrymq-demo-"))
    home = work / "home"
    try:
        with broker(home) as process:
            say(f"broker is ready (pid {process.pid})")
            sent, members = send_and_consume(home, work)
            stories_hold = [
                demo_filter.judge(home, say),
                demo_delays.judge(home, say),
                demo_transactions.judge(home, work, say),
            ]
            traces = Traces(home)
        segments = sorted(path.name for path in (home / "store" / "commitlog").iterdir())
        say(f"clean stop; {len(segments)} segments")
        holds = [judge_delivery(sent, members), judge_store(home), judge_spark(home)]
    finally:
        end_all()
        shutil.rmtree(work, ignore_errors=True)
    left = traces.left()
    say(f"left running or in /dev/shm: {', '.join(left) or 'nothing'}")
    took = time.monotonic() - STARTED
    in_time = took <= ALL_S
    say(f"took {took:.0f} s of {ALL_S:.0f} s: {'in time' if in_time else 'TOO LONG'}")
    return 0 if all([*holds, *stories_hold]) and not left and in_time else 1


if __name__ == "__main__":
    sys.exit(main())
