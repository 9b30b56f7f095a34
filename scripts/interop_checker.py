"""A real RocketMQ as `make interop` uses it: the checker's `run.sh`, and comparisons with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gantrymq.brokerd.dump import dump_objects, encode_line

SEGMENT_BYTES: Final = 256 * 1024
QUEUE_FILE_BYTES: Final = 50 * 20
INDEX_SLOTS: Final = 500
INDEX_ENTRIES: Final = 1000
#: Sizes of a broker of ours; RocketMQ is given the same.
SETTINGS: Final[dict[str, object]] = {
    "mapped_file_size_commit_log": SEGMENT_BYTES,
    "mapped_file_size_consume_queue": QUEUE_FILE_BYTES,
    "max_hash_slot_num": INDEX_SLOTS,
    "max_index_num": INDEX_ENTRIES,
}
_THEIR_SETTINGS: Final = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
    "maxHashSlotNum": INDEX_SLOTS,
    "maxIndexNum": INDEX_ENTRIES,
}
#: One thread instead of eight that its stop waits for, one after the other: half of the time.
_ONE_REVIVER: Final = ("-D", "reviveQueueNum=1")
#: Lines that only one of two looks at a store has: 5.4.0 makes its RocksDB before it lists files.
_OF_ROCKSDB: Final = "rocksdbstore/"
PATIENCE_S: Final = 120.0
_STOP_S: Final = 240.0
_NOT_ARRIVED: Final = "a message just sent did not arrive"
_PORT: Final = re.compile(r"broker 127\.0\.0\.1:(\d+)")
_UP: Final = "name server"  # what `serve --keep` prints when everything is done


class Refused(Exception):
    """RocketMQ did not accept a store, or something of ours did not hold."""


@dataclass(frozen=True)
class Checker:
    """One RocketMQ version; logs and copies lie in `folder`."""

    runner: Path
    version: str
    folder: Path
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    #: What RocketMQ is told of the store, by its names.
    sizes: Mapping[str, object] = field(default_factory=lambda: _THEIR_SETTINGS)

    def settings_of_ours(self, target_version: str) -> dict[str, object]:
        """Settings of a broker of ours."""
        return {**SETTINGS, "target_version": target_version}

    def check(self, store: Path, options: Sequence[str], log: Path) -> str:
        """`check`, with every line of our dump expected; its last word. Raises Refused."""
        dump = log.with_suffix(".dump.jsonl")
        with dump.open("w", encoding="ascii") as out:
            for line in dump_objects(store, self._settings_file()):
                out.write(encode_line(line) + "\n")
        return self._finish(["check", store, *options, "--expect", dump], log)

    def serve(self, store: Path, options: Sequence[str], log: Path) -> str:
        """`serve` to its end: consumed and extended; its last word. Raises Refused."""
        return self._finish(["serve", store, *_ONE_REVIVER, *options], log)

    def go_on(
        self, store: Path, sends: tuple[int, str], log: Path, *, killed: bool = False,
        stay: float = 0.0, options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Serve a store and send `sends` (how many, topic) to it, stop or be killed.

        With `stay` it is up for some seconds more, to deliver what waits; that may be taken for the
        sends that have to arrive, so they are the caller's to look for. What it leaves replaces the
        store's files. Raises Refused.
        """
        work = log.with_suffix(".work")
        command = ["serve", store, *_ONE_REVIVER, *options, "--work", work]
        command += ["--send", sends[0], "--send-topic", sends[1]]
        if killed:
            self._serve_and_kill([*command, "--keep", "600"], log, stay)
        else:
            keep = ("--keep", str(int(stay))) if stay else ()
            self._finish([*command, *keep], log, but_for=_NOT_ARRIVED if stay else "")
        _take_over(work, store)

    def go_on_with(
        self, store: Path, sends: tuple[int, str], log: Path, meanwhile: Callable[[int], None],
        *, stay: float, options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """As `go_on` for `stay` seconds, in which `meanwhile` has the broker's port.

        Raises Refused, and what `meanwhile` raises.
        """
        work = log.with_suffix(".work")
        command = ["serve", store, *_ONE_REVIVER, *options, "--work", work, "--keep", int(stay)]
        command += ["--send", sends[0], "--send-topic", sends[1]]
        with log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                self._command(command), stdout=out, stderr=subprocess.STDOUT,
                env=self._environment(),
            )  # fmt: skip
            try:
                wait_until(lambda: _UP in log.read_text() or process.poll() is not None)
                port = _PORT.search(log.read_text(encoding="utf-8", errors="replace"))
                if port is None:
                    raise Refused(_complaint(log.read_text(encoding="utf-8", errors="replace")))
                meanwhile(int(port.group(1)))
                process.wait(_STOP_S)
            finally:
                process.kill()
                process.wait()
        said = log.read_text(encoding="utf-8", errors="replace")
        failures = [line for line in said.splitlines() if line.startswith("FAIL")]
        if not all(_NOT_ARRIVED in line for line in failures):
            raise Refused(_complaint(said))
        _take_over(work, store)

    def compare_dumps(self, store: Path, log: Path) -> int:
        """RocketMQ's dump against ours, all kinds but indexQuery; how many lines. Raises Refused.

        What a query finds depends on how often a restart has indexed the last message (SF-120).
        """
        out = log.with_suffix(".theirs.jsonl")
        self._finish(["dump", store, "--out", out], log)
        theirs = [json.loads(line) for line in out.read_text(encoding="ascii").splitlines()]
        ours = dump_objects(store, self._settings_file(), now_ms=_clock_of(theirs))
        wanted, found = list(_compared(theirs)), list(_compared(ours))
        for number, (line, expected) in enumerate(zip(found, wanted, strict=False)):
            if line != expected:
                raise Refused(f"dump differs at line {number}: {line} is {expected} for RocketMQ")
        if len(found) != len(wanted):
            raise Refused(f"dump has {len(found)} lines, RocketMQ's {len(wanted)}")
        return len(found)

    def _serve_and_kill(self, words: Sequence[object], log: Path, stay: float) -> None:
        with log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                self._command(words), stdout=out, stderr=subprocess.STDOUT, env=self._environment()
            )
            try:
                wait_until(lambda: _UP in log.read_text() or process.poll() is not None)
                time.sleep(stay)
            finally:
                process.kill()
                process.wait()
        said = log.read_text(encoding="utf-8", errors="replace")
        if _UP not in said or "FAIL" in said:
            raise Refused(_complaint(said))

    def _finish(self, words: Sequence[object], log: Path, but_for: str = "") -> str:
        with log.open("w", encoding="utf-8") as out:
            done = subprocess.run(
                self._command(words), stdout=out, stderr=subprocess.STDOUT, check=False,
                env=self._environment(), timeout=_STOP_S,
            )  # fmt: skip
        said = log.read_text(encoding="utf-8", errors="replace")
        failures = [line for line in said.splitlines() if line.startswith("FAIL")]
        if but_for and failures and all(but_for in line for line in failures):
            return but_for
        if done.returncode or "FAIL" in said:
            raise Refused(_complaint(said))
        return said.splitlines()[-1] if said else ""

    def _command(self, words: Sequence[object]) -> list[str]:
        return [str(self.runner), *map(str, words), "--settings", str(self._settings_file())]

    def _environment(self) -> dict[str, str]:
        environment = self.environment | {"ROCKETMQ_VERSION": self.version}
        java = environment.get("JAVA_HOME")
        if java:
            environment["PATH"] = f"{java}/bin{os.pathsep}{environment.get('PATH', '')}"
        return environment

    def _settings_file(self) -> Path:
        file = self.folder / "settings"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.sizes.items()))
        return file


def _take_over(work: Path, store: Path) -> None:
    """What a broker has left of its copy is the store from now on."""
    (copy,) = work.glob("rmq*/store")
    for old in store.iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    shutil.copytree(copy, store, dirs_exist_ok=True)
    shutil.rmtree(work)


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll a condition. Raises Refused after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise Refused("it takes too long")
        time.sleep(0.05)


def _complaint(said: str) -> str:
    lines = said.splitlines()
    failures = [line for line in lines if line.startswith("FAIL")]
    return failures[0] if failures else (lines[-1] if lines else "it said nothing")


def _compared(lines: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - JSON objects
    for line in lines:
        rocksdb = line["kind"] == "file" and line["path"].startswith(_OF_ROCKSDB)
        if line["kind"] != "indexQuery" and not rocksdb:
            yield line


def _clock_of(lines: list[dict[str, Any]]) -> int | None:
    """Unix ms at which RocketMQ made an index file while it took the dump (SF-96)."""
    known = {line["name"] for line in lines if line["kind"] == "indexFile"}
    made = sorted(set(lines[-1]["indexFilesAfterLoad"]) - known)
    if not made:
        return None
    seconds = time.mktime(time.strptime(made[0][:14], "%Y%m%d%H%M%S"))
    return int(seconds) * 1000 + int(made[0][14:])
