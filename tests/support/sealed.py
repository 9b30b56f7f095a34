"""Segments made of records by the reference codec, and stores of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gantrymq.shm import layout, sidecar
from gantrymq.shm.record import Record, encode_filler, encode_record


def segment_of(
    records: Iterable[Record], segment_bytes: int, base: int = 0, *, sealed: bool = True
) -> tuple[NDArray[np.uint8], list[Record]]:
    """A segment's bytes and its records with their positions; sealed ones end with a filler."""
    view = np.zeros(segment_bytes, np.uint8)
    at, placed = 0, []
    for record in records:
        at_home = replace(record, physical_offset=base + at)
        raw = encode_record(at_home, trailer=True)
        assert at + len(raw) + layout.FILLER.size <= segment_bytes, "the segment is too small"
        view[at : at + len(raw)] = np.frombuffer(raw, np.uint8)
        placed.append(replace(at_home, total_size=len(raw)))
        at += len(raw)
    if sealed:
        filler = encode_filler(segment_bytes - at)
        view[at : at + len(filler)] = np.frombuffer(filler, np.uint8)
    return view, placed


def write_segment(store: Path, base: int, view: NDArray[np.uint8]) -> None:
    """Put a segment into a store's commit log."""
    folder = store / "commitlog"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{base:020d}").write_bytes(view.tobytes())


def write_sidecars(store: Path, bases: Sequence[int] | None = None) -> None:
    """Build and write the sidecars of a store's segments, of all but the last if none is named."""
    files = sorted((store / "commitlog").iterdir())
    chosen = [f for f in files if int(f.name) in bases] if bases is not None else files[:-1]
    folder = store / sidecar.DIRECTORY
    folder.mkdir(parents=True, exist_ok=True)
    for file in chosen:
        view = np.frombuffer(file.read_bytes(), np.uint8)
        built = sidecar.build_from_segment(view, int(file.name))
        (folder / file.name).write_bytes(built.encode())
