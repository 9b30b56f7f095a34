"""Recorded runs, and the judgement of states that a power cut amid them could have left."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gantrymq.clients.home import read_board_file, store_of
from gantrymq.shm.board import unlink_board
from tests.powercut.judge import Broken, Known, judge
from tests.powercut.states import FileSystem, differences, lay_out, state_at
from tests.powercut.trace import Recording, read, record

PROFILES = ("standard", "temporary")
FILE_BYTES_MAX = 4 << 20
#: Brokers that are judged at a time: most of their time they wait for a delay to pass.
AT_A_TIME = 4
#: Kinds of effects next to which a cut is likely to find something.
_EVENTFUL = ("sync", "sync_names", "rename", "unlink", "create")
#: Part of the cuts that hit the second start.
_RECOVERIES = 0.2


@dataclass(frozen=True)
class Run:
    """A recorded run."""

    profile: str
    recording: Recording

    def cut(self, seed: int, home: Path) -> Known:
        """Lay the state of a seed out; what applications knew at that moment."""
        dice = random.Random(seed)
        line = self._line(dice)
        disk = FileSystem(file_bytes_max=FILE_BYTES_MAX)
        state_at(self.recording.effects, line, disk)
        disk.power_cut(dice)
        lay_out(disk, store_of(home))
        return Known.of(told.text for told in self.recording.told if told.at <= line)

    def _line(self, dice: random.Random) -> int:
        """A moment after the broker was ready: any, right behind an event, or amid a recovery."""
        how = dice.random()
        first, last = self._told("killed"), self._told("again")
        if how >= _RECOVERIES:
            first, last = self._told("ready"), self._told("end")
        if how < _RECOVERIES / 2 or how >= (1 + _RECOVERIES) / 2:
            return dice.randint(first, last)
        eventful = [e for e in self.recording.effects if e.kind in _EVENTFUL]
        return dice.choice([e.ended for e in eventful if first <= e.ended <= last])

    def _told(self, event: str) -> int:
        return next(each.at for each in self.recording.told if each.text == f'["{event}"]')


def recorded(profile: str, seed: int, seconds: float, folder: Path) -> Run:
    """Record a run. Raises RuntimeError if it fails."""
    home, told = folder / "home", folder / "told"
    home.mkdir(mode=0o700)
    command = [sys.executable, "-m", "tests.powercut.work", home, told, seed, profile, seconds]
    (folder / "store").write_text(str(store_of(home)), encoding="utf-8")
    recording = record([*map(str, command)], store_of(home), told, folder / "calls")
    errors = [each.text for each in recording.told if each.text.startswith('["error"')]
    if errors:
        raise RuntimeError(f"the work failed: {errors[:3]}")
    disk = FileSystem(file_bytes_max=FILE_BYTES_MAX)
    state_at(recording.effects, recording.lines, disk)
    unseen = [name for name in differences(disk, store_of(home)) if name not in recording.in_doubt]
    if unseen:
        raise RuntimeError(f"the recording does not explain what is in {unseen[:3]}")
    _clear(home)
    return Run(profile, recording)


def read_again(profile: str, folder: Path) -> Run:
    """A run that was recorded in a folder before."""
    store = Path((folder / "store").read_text(encoding="utf-8"))
    return Run(profile, read(folder / "calls", store, store.parent.with_name("told")))


def try_state(run: Run, seed: int, folder: Path) -> str:
    """Judge the state of a seed; what it breaks, or nothing."""
    home = folder / f"state-{seed}"
    home.mkdir(mode=0o700)
    known = run.cut(seed, home)
    try:
        judge(home, run.profile, known)
    except Broken as broken:
        return str(broken)
    finally:
        _clear(home)
    return ""


def _clear(home: Path) -> None:
    board = read_board_file(home).get("board")
    if board:
        unlink_board(board)
    shutil.rmtree(home)


def try_states(
    run: Run, seeds: range, folder: Path, tell: Callable[[int, str], None]
) -> list[tuple[int, str]]:
    """Judge states, several at a time; those that break something."""
    found = []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        judged = pool.map(lambda seed: try_state(run, seed, folder), seeds)
        for seed, broken in zip(seeds, judged, strict=True):
            tell(seed, broken)
            if broken:
                found.append((seed, broken))
    return found
