"""ConsumeQueueExt against the units that have its addresses (SF-71, SF-72)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from gantrymq.shm import layout
from gantrymq.shm.bitmapnote import extension_directory, extension_files
from gantrymq.shm.lognames import is_position
from gantrymq.shm.storage import map_still

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gantrymq.brokerd.verify.report import Report
    from gantrymq.shm.storage import Storage

_HEAD = layout.CQ_EXT_UNIT_BYTES


class ExtensionCheck:
    """Looks for the extension of each unit that says it has one."""

    def __init__(self, storage: Storage, report: Report) -> None:
        self._storage = storage
        self._report = report
        self._queue = ("", -1)
        self._files: list[tuple[int, NDArray[np.uint8]]] = []

    def fits(
        self, topic: str, queue_id: int, units: NDArray[np.void], tags: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """For each unit whether there is an extension with the tag code that the log says."""
        if self._queue != (topic, queue_id):
            self._queue = (topic, queue_id)
            self._files = self._open(extension_directory(topic, queue_id))
        addresses = units["tags_code"].astype(np.int64) - layout.CQ_EXT_ADDRESS_BASE
        has_one = units["tags_code"] <= layout.CQ_EXT_ADDRESS_MAX
        found = np.zeros(len(units), np.bool_)
        bases = [base for base, _view in self._files]
        for number, (base, view) in enumerate(self._files):
            end = min([base + len(view), *bases[number + 1 : number + 2]])
            here = has_one & (addresses >= base) & (addresses <= end - _HEAD)
            places = addresses[here] - base
            heads = view[places[:, None] + np.arange(_HEAD)]
            rows: Any = np.ascontiguousarray(heads).view(layout.CQ_EXT_UNIT.dtype).reshape(-1)
            size = rows["size"].astype(np.int64)
            whole = (rows["bitmap_bytes"] >= 0) & (size == _HEAD + rows["bitmap_bytes"])
            found[here] = whole & (places + size <= len(view)) & (rows["tags_code"] == tags[here])
        return found

    def _open(self, folder: str) -> list[tuple[int, NDArray[np.uint8]]]:
        found = []
        for name in self._storage.list(folder):
            if not name.isdigit():
                continue  # told by `check_names`
            with suppress(FileNotFoundError):  # one of records that have expired
                view = map_still(self._storage, f"{folder}/{name}")
                if len(view):
                    found.append((int(name), view))
        return sorted(found, key=lambda item: item[0])

    def check_names(self) -> None:
        """Files are named by their first address, and all are of one length (SF-9)."""
        lengths: dict[int, str] = {}
        for path in extension_files(self._storage):
            name = path.rpartition("/")[2]
            try:
                size = self._storage.size_of(path)
            except FileNotFoundError:
                continue  # it has expired since it was listed
            if not is_position(name) or (size and int(name) % size):
                self._report.add(path, None, "stray file", f"multiples of {size} as names")
                continue
            lengths.setdefault(size, path)
        for path in list(lengths.values())[1:]:
            self._report.add(path, None, "wrong length", "that of the others")
