"""What a start is refused for before it opens anything; `gantrymq serve --check` asks the same."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

from gantrymq.brokerd import config, processlimits, textfile
from gantrymq.brokerd.config import Configuration, Settings
from gantrymq.brokerd.misplaced import require_files
from gantrymq.clients.home import run_of, store_of
from gantrymq.shm import ownfiles
from gantrymq.shm.storage import PosixStorage


def require_startable(home: Path, configuration: Configuration) -> None:
    """Give this process what a broker may have, and raise GantryError or OSError if it lacks more.

    Nothing outside of this process is changed.
    """
    require_settings(home, configuration.settings)
    for folder in (store_of(home), run_of(home)):
        _require_place(folder)
    require_files(PosixStorage(str(store_of(home))))
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
        _soft, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (hard, hard))
    _require_descriptors()
    _require_file_size(configuration.settings)
    config.stay_on_cpu(configuration)


def require_settings(home: Path, settings: Settings) -> None:
    """Raise Rejected, NotPermitted for what would be refused whoever starts it, however."""
    config.require_told(home)
    if (given := home / config.FILE_NAME).exists():
        ownfiles.require_settings(given)
    textfile.require_place(home, settings)


def _require_place(folder: Path) -> None:
    """Raise NotADirectoryError where something else stands in a folder's place, or on the way."""
    found = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if found.exists() and not found.is_dir():
        raise NotADirectoryError(
            errno.ENOTDIR,
            f"a broker needs the directory {folder}, and this is none: move it away, or name"
            " another home (--home, GANTRYMQ_HOME)",
            str(found),
        )


def _require_descriptors() -> None:
    """Raise OSError if this process may open too little to let in some clients."""
    least = processlimits.OTHER_DESCRIPTORS
    if not processlimits.has_descriptors(least):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        raise OSError(
            errno.EMFILE,
            f"RLIMIT_NOFILE {hard}, a broker with some clients takes {least}: raise the hard limit"
            " (LimitNOFILE=, ulimit -Hn)",
        )


def _require_file_size(settings: Settings) -> None:
    """Raise OSError if this process may make no segment, or no file of the key index."""
    if found := processlimits.too_small_for(settings):
        raise OSError(
            errno.EFBIG,
            f"{found}: raise the limit (ulimit -f, LimitFSIZE=infinity), or lower"
            " mapped_file_size_commit_log, max_hash_slot_num and max_index_num",
        )
