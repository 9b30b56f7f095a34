"""Run the long counts of docs/faults.md round after round, each with a fresh seed.

`make soak ROUNDS=100` shows what it does and how long it took, ends at the first failure with exit
code 1 and the command that repeats it, and else sums up what was tried. ONLY=sim,kills chooses.
`make soak MINUTES=60` goes on for so long instead, with a tenth of each count and the parts in an
order by chance, so that an hour has a bit of all. Soaks may run side by side: floods, which are
judged by the clock, take turns with all else.
"""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINUTES = float(os.environ.get("MINUTES", "0"))
PYTHON = sys.executable


def share(count: int) -> int:
    """What of a round's count is done at a time."""
    return max(1, count // 10) if MINUTES else count


#: Seeds of the simulator, and kills of real processes, in one round.
SEEDS, KILLS, FEW = share(200), share(100), share(40)


@contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Share this machine with other soaks of this user, or have it alone.

    Who waits to have it alone keeps the gate shut meanwhile, so that no other part begins.
    """
    names = (f"/tmp/gantrymq-soak-{os.getuid()}-{name}" for name in ("gate", "turn"))
    gate, room = (os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600) for name in names)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
    finally:
        os.close(room)
        os.close(gate)


@dataclass(frozen=True)
class Part:
    """One thing that a round does: a command made from a seed, and its environment."""

    name: str
    command: Callable[[int], list[str]]
    environment: dict[str, str | int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    #: It is judged by the clock: no other soak's part runs beside it.
    alone: bool = False

    def run(self, seed: int) -> bool:
        """Run it; on failure say how to repeat it."""
        added = {name: str(value) for name, value in self.environment.items()}
        added |= {"GANTRYMQ_TEST_SEED": str(seed), "PYTHONHASHSEED": "0"}
        command = self.command(seed)
        with turn(alone=self.alone):
            done = subprocess.run(command, cwd=ROOT, env=os.environ | added, check=False)
        if done.returncode:
            words = [f"{name}={value}" for name, value in added.items()]
            words += ["python", *command[1:]]
            say(f"{self.name} fails with seed {seed}; repeat it: {' '.join(words)}")
        return done.returncode == 0


def module(name: str, *arguments: str) -> Callable[[int], list[str]]:
    """A program of tests/sim; in its arguments {seed} is the seed, {end} and {few} are ends."""

    def command(seed: int) -> list[str]:
        ends = {"end": seed + SEEDS, "few": seed + FEW}
        given = [text.format(seed=seed, **ends) for text in arguments]
        return [PYTHON, "-m", name, *given]

    return command


def suite(*paths: str) -> Callable[[int], list[str]]:
    """A run of tests."""
    return lambda seed: [PYTHON, "-m", "pytest", "-q", "-x", f"--hypothesis-seed={seed}", *paths]


PARTS = (
    Part("sim", module("tests.sim", "--seeds", "{seed}:{end}", "--faults", "all"),
         counts={"seeds": SEEDS}),
    Part("retries", module("tests.sim.retries", "--seeds", "{seed}:{few}"), {"PYTHONHASHSEED": "0"},
         {"seeds of failing push consumers": FEW}),
    Part("transactions", module("tests.sim.transactions", "--seeds", "{seed}:{few}"),
         {"PYTHONHASHSEED": "0"}, {"seeds of transactions": FEW}),
    Part("clients", module("tests.sim.clients", "--seeds", "{seed}:{end}"),
         counts={"seeds of real clients": SEEDS}),
    Part("fairness", module("tests.sim.floods", "--seeds", "{seed}:{few}"), {"PYTHONHASHSEED": "0"},
         {"seeds of floods": FEW}),
    Part("crowds", module("tests.sim.crowds", "--seeds", "{seed}:{few}"), {"PYTHONHASHSEED": "0"},
         {"sessions that come and go in the simulator": 2300 * FEW}),
    Part("accesses", module("tests.sim.accesses", "--seed", "{seed}", "--each", "5"),
         {"NUMBA_DISABLE_JIT": "1"}, {"deaths at each access": 5}),
    Part("calls", module("tests.sim.storage_calls", "kills", "--seed", "{seed}", "--nested", "all"),
         counts={"passes over all storage calls, nested": 1}),
    Part("states", module("tests.sim.storage_calls", "states", "--seed", "{seed}"),
         counts={"scripts of 200 calls, all states": 1}),
    Part("kills", suite("tests/crash/test_kill.py::test_a_producer_outlives_random_kills"),
         {"GANTRYMQ_TEST_KILLS": KILLS}, {"kills under load": KILLS}),
    Part("ingests", suite("tests/crash/test_ingest_kill.py"), {"GANTRYMQ_TEST_INGESTS": share(20)},
         {"kills of an ingest": share(20)}),
    Part("powercuts", lambda seed: [PYTHON, "-m", "tests.powercut", "--states", f"{share(500)}",
                                    "--seed", str(seed)],
         counts={"states after a power cut of real runs": 2 * share(500)}),
    Part("spark", suite("-s", "tests/crash/test_ingest_kill.py"),
         {"GANTRYMQ_TEST_INGESTS": share(20), "GANTRYMQ_TEST_INGEST_SPARK": "1",
          "GANTRYMQ_TEST_GRACE_S": "30"},
         {"kills of an ingest by Spark": share(20)}),
    Part("writes", suite("tests/crash/test_write_kill.py"), {"GANTRYMQ_TEST_WRITES": share(200)},
         {"kills of a write": share(200)}),
    Part("marks", suite("tests/crash/test_marks.py"), counts={"deaths at all marks": 1}),
    Part("litmus", suite("tests/unit/test_atomics.py"), {"GANTRYMQ_TEST_LITMUS": share(1_000_000)},
         {"turns of each litmus test": share(1_000_000)}),
    Part("stalls", suite("tests/crash/test_disk.py", "tests/crash/test_back_pressure.py"),
         {"GANTRYMQ_TEST_STALL_S": "5", "GANTRYMQ_TEST_STILL_S": "60"}, {"stalls": 2}),
    Part("churn", suite("-s", "tests/system/test_churn.py"),
         {"GANTRYMQ_TEST_SESSIONS": share(20_000), "GANTRYMQ_TEST_NAMES": share(5_000)},
         {"sessions that come and go": share(20_000), "topics that come and go": share(5_000),
          "groups that come and go": share(5_000)}),
    Part("floods", module("tests.system.floods", "--seconds", "30", "--some", f"{share(60)}",
                          "--seed", "{seed}"),
         counts={"floods of 30 s of one kind of request": share(60)}, alone=True),
    Part("extremes", module("tests.extremes", "--seed", "{seed}", "--count",
                            f"{share(1_000_000)}"),
         counts={"random and extreme calls, requests, frames and words each": share(1_000_000)}),
    Part("ends", suite("tests/system/test_method_ends.py"), {"GANTRYMQ_TEST_ENDS": share(100_000)},
         {"orders in which producers and their methods end": share(100_000)}),
    Part("interrupts", suite("tests/system/test_interrupts.py"),
         {"GANTRYMQ_TEST_INTERRUPT_EACH": 1}, {"exceptions at each place of a client's call": 1}),
    Part("broken", suite("tests/system/test_interrupted_calls.py", "tests/unit/test_queries.py"),
         {"GANTRYMQ_TEST_INTERRUPT_EACH": 3},
         {"passes over all public calls, each broken off at a third of its places": 1}),
    Part("timers", suite("tests/unit/test_timer_lives.py"),
         {"GANTRYMQ_TEST_TIMER_LIVES": share(300)},
         {"seeds of schedulers one after another": share(300)}),
    Part("flips", suite("tests/property/test_damaged_records.py"),
         {"GANTRYMQ_TEST_FLIPS": share(100)},
         {"flipped bits of each kind of record that agents read again": share(100)}),
    Part("bench", suite("tests/meta/test_bench_smoke.py"), {"GANTRYMQ_TEST_BENCH": "all"},
         {"smokes of the bench's rows": 1}),
    Part("models", suite("tests/sim/test_store_faults.py", "tests/sim/test_storage_sites.py",
                         "tests/property", "tests/crash/test_torn.py"),
         counts={"passes of models and sites": 1}),
)  # fmt: skip


def say(text: str) -> None:
    """Progress, on standard error."""
    print(f"soak: {text}", file=sys.stderr, flush=True)


def chosen() -> list[Part]:
    """The parts that ONLY names, or all."""
    only = set(os.environ.get("ONLY", ",".join(part.name for part in PARTS)).split(","))
    parts = [part for part in PARTS if part.name in only]
    if not parts:
        sys.exit(f"soak: ONLY names none of {', '.join(part.name for part in PARTS)}")
    return parts


def endless(parts: list[Part], until: float) -> Iterator[Part]:
    """Parts in orders by chance, up to a moment of the monotonic clock."""
    while True:
        random.SystemRandom().shuffle(parts)
        for part in parts:
            if time.monotonic() >= until:
                return
            yield part


def main() -> None:
    """Run ROUNDS rounds (default 10), or for MINUTES."""
    parts, began = chosen(), time.monotonic()
    rounds = int(os.environ.get("ROUNDS", "10"))
    wanted = endless(parts, began + MINUTES * 60) if MINUTES else iter(parts * rounds)
    done: Counter[str] = Counter()
    for number, part in enumerate(wanted):
        seed, started = secrets.randbelow(1 << 31), time.monotonic()
        of = f", minute {(started - began) / 60:.0f}" if MINUTES else f" of {rounds}"
        say(f"round {number // len(parts) + 1}{of}: {part.name}, seed {seed}")
        if not part.run(seed):
            sys.exit(1)
        done.update(part.counts)
        say(f"{part.name} took {time.monotonic() - started:.0f} s")
    took = time.monotonic() - began
    say(f"all held in {took:.0f} s: " + ", ".join(f"{n} {what}" for what, n in done.items()))


if __name__ == "__main__":
    main()
