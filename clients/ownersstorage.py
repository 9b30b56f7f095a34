"""A store in which root makes files that its owner's broker has to read.

Root may look at another user's store, and a few commands of root's note something there. What they
make belongs to the store's owner, as if he had made it: by the descriptor of what was made, so that
nobody leads a change of owner to another file.
"""

from __future__ import annotations

import os

from gantrymq.shm.ownfiles import open_file
from gantrymq.shm.storage import PosixFile, PosixStorage


class OwnersStorage(PosixStorage):
    """Files and folders that are made below a root belong to the owner of its `gantry/`."""

    def create(self, name: str) -> PosixFile:
        """Make an empty file and its directories."""
        file = super().create(name)
        try:
            self._give(file.descriptor)
        except BaseException:
            file.close()
            raise
        return file

    def make_directory(self, name: str) -> None:
        """Make a directory and its parents."""
        super().make_directory(name)
        with open_file(self._folder(name), os.O_RDONLY | os.O_DIRECTORY) as opened:
            if not os.listdir(opened.number):  # what has files was not made just now
                self._give(opened.number)

    def _give(self, descriptor: int) -> None:
        if os.geteuid() != 0:
            return
        owner = os.lstat(f"{self.root}/gantry")
        if os.fstat(descriptor).st_uid != owner.st_uid:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
