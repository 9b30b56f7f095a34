"""`gantrymq store dump`: a store directory as JSON lines, ours or a real RocketMQ's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from gantrymq.brokerd.dump import Stage


def dump(dir: Path, settings_file: Path | None, stage: Stage, out: TextIO) -> None:
    """Write the dump of the store root `dir` to `out`; no file of the store changes.

    `settings_file` holds `key=value` lines with RocketMQ's names, for a store whose sizes are
    neither in `gantry/store.json` nor to be seen from its files. Raises FileNotFoundError,
    Incompatible or SettingIllegal if it cannot be read so.
    """
    from gantrymq.brokerd.dump import dump_store

    dump_store(dir, out, settings_file, stage)
