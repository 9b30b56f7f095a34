"""A table's folder and the one way to change it: intent, files, manifest; each step durable.

Data is written aside (`_gantry/aside/`) first. Then 1. the intent says what becomes of it, 2. files
get their names, and partitions that were built anew change places with the old ones, 3. the
manifest is replaced. Whoever opens the table finishes what an intent says and throws away all else
that lies aside. So whatever is killed, each file is there once, under its name, or not at all, and
who lists the folder sees a message twice at no moment.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from gantrymq.clients.spark.sumfile import save
from gantrymq.clients.spark.table.files import TableFiles
from gantrymq.clients.spark.table.manifest import (
    DIRECTORY,
    INTENT,
    MANIFEST,
    Intent,
    Manifest,
    Move,
    Swap,
    load_intent,
    load_manifest,
)
from gantrymq.shm.errors import Corrupt, SettingIllegal
from gantrymq.shm.held import Descriptor

ASIDE: Final = f"{DIRECTORY}/aside"
_LOCK: Final = f"{DIRECTORY}/lock"


class Table:
    """The folder, held by this process alone. `manifest` is None in a new one."""

    def __init__(self, files: TableFiles) -> None:
        """Open or make it, and finish what a killed writer had begun.

        Raises SettingIllegal if the folder has other contents, StoreBusy if another process has
        it, Corrupt, OSError.
        """
        if not files.exists(MANIFEST) and not _is_new(files):
            text = f"{files.root} has files, and is no table of an ingest: name another folder"
            raise SettingIllegal(text)
        self.files = files
        files.make_directory(DIRECTORY)
        files.sync_directory("")
        files.sync_parent()  # a manifest that is lost with its folder would begin anew
        self._lock: Descriptor | None = files.lock(_LOCK)
        try:
            self.manifest = load_manifest(files)
            intent = load_intent(files)
            if intent is not None and self._names_too_long(intent):
                self._undo(intent)
            elif intent is not None:
                self._finish(intent)
            files.remove_tree(ASIDE)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others write. Safe to call twice."""
        self._lock = None

    @contextmanager
    def aside(self) -> Iterator[str]:
        """A folder for one step, whose name no other step has: killed tasks may live on.

        It goes with the step, unless an intent that was broken off needs what lies there.
        """
        name = f"{ASIDE}/{uuid.uuid4().hex}"
        self.files.make_directory(name)
        try:
            yield name
        finally:
            if not self.files.exists(INTENT):
                self.files.remove_tree(name)

    def commit(
        self, manifest: Manifest, moves: Iterable[Move] = (), swaps: Iterable[Swap] = ()
    ) -> None:
        """Put durable files into place and the manifest behind them; all of it or nothing.

        Raises SettingIllegal, before anything is done, for names that no folder can have.
        """
        intent = Intent(manifest, tuple(moves), tuple(swaps))
        if long := self._names_too_long(intent):
            raise SettingIllegal(
                f"{self.files.path(long[0])} is too long a name here: give a table of this log a"
                " folder with a shorter path, on a file system with names of 255 bytes",
                path=long[0],
            )
        if intent.moves or intent.swaps:
            save(self.files, INTENT, intent)
        self._finish(intent)

    def _names_too_long(self, intent: Intent) -> list[str]:
        """Of an intent's names those that cannot be given."""
        finals = [*(move.final for move in intent.moves), *(swap.final for swap in intent.swaps)]
        return [name for name in finals if not self.files.can_have(name)]

    def _undo(self, intent: Intent) -> None:
        """Take back an intent of an older version, which checked no names: its step is done again.

        What lies in place of it is not in the manifest, and so not in the table.
        """
        known = {file.path for file in self.manifest.files} if self.manifest else set()
        for move in intent.moves:
            if move.final not in known and self.files.exists(move.final):
                self.files.unlink(move.final)
                self.files.remove_empty(os.path.dirname(move.final))
        self.files.unlink(INTENT)

    def _finish(self, intent: Intent) -> None:
        """Steps 2 and 3; safe to do again from any point on."""
        done = self.manifest.generation if self.manifest else 0
        if intent.manifest.generation > done:
            self._move(intent.moves)
            for swap in intent.swaps:
                self._swap(swap)
            save(self.files, MANIFEST, intent.manifest)
            self.manifest = intent.manifest
        if self.files.exists(INTENT):
            self.files.unlink(INTENT)

    def _move(self, moves: tuple[Move, ...]) -> None:
        folders = set()
        for move in moves:
            if self.files.exists(move.aside):
                folder = os.path.dirname(move.final)
                self.files.make_directory(folder)
                self.files.rename(move.aside, move.final)
            elif not self.files.exists(move.final):
                raise Corrupt(f"{move.final} of {self.files.root} is gone", path=move.final)
            folders |= _folders_of(move.final)
        for folder in sorted(folders):
            self.files.sync_directory(folder)

    def _swap(self, swap: Swap) -> None:
        if not self.files.exists(f"{swap.final}/{swap.proof}"):
            if not self.files.exists(swap.aside):
                raise Corrupt(f"{swap.final} of {self.files.root} is gone", path=swap.final)
            swapped = self.files.exists(swap.final) and self.files.exchange(swap.aside, swap.final)
            if not swapped:
                self._replace(swap)
        self.files.sync_directory(os.path.dirname(swap.final) or ".")
        self.files.remove_tree(swap.aside)
        self.files.remove_tree(f"{swap.aside}.old")

    def _replace(self, swap: Swap) -> None:
        """In two steps, with a moment without the partition: the system knows no better."""
        if self.files.exists(swap.final):
            self.files.rename(swap.final, f"{swap.aside}.old")
        self.files.rename(swap.aside, swap.final)


def _is_new(files: TableFiles) -> bool:
    """Whether nothing is in the folder, or only what a killed opening leaves."""
    return set(files.list("")) <= {DIRECTORY}


def _folders_of(name: str) -> set[str]:
    """All folders above a file, "." for the root."""
    found = {"."}
    while "/" in name:
        name = os.path.dirname(name)
        found.add(name)
    return found
