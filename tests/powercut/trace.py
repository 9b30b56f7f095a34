"""What a program and its children did to the files of a store, as strace saw it.

Each call has the lines at which strace saw it begin and end: what lies between belongs to others.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.tree import ROOT

#: Calls by which files and names change, or become durable.
_CALLS = (
    "creat", "openat", "open", "pwrite64", "write", "pwritev", "pwritev2", "writev", "fsync",
    "fdatasync", "sync_file_range", "rename", "renameat", "renameat2", "unlink", "unlinkat",
    "mkdir", "mkdirat", "rmdir", "ftruncate", "truncate", "fallocate", "link", "linkat", "symlink",
    "symlinkat", "copy_file_range", "sendfile", "sync", "syncfs",
)  # fmt: skip
_LINE = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\d+)")
_BEGUN = re.compile(r"^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
#: What a process was killed amid: strace never saw it return, whatever it has done.
_ENDLESS = re.compile(r"^(\d+) +(\w+)\((.*?)(?:\) += \?.*| <detached \.\.\.>)$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)\) += (-?\d+)")
_DESCRIPTOR = re.compile(r"^(?:-?\d+|AT_FDCWD)<(.*)>(\(deleted\))?$")
_STRING_BYTES_MAX = 1 << 26


@dataclass(frozen=True, slots=True)
class Call:
    """One call that succeeded: `arguments` as strace prints them, its lines, what it returned."""

    name: str
    arguments: tuple[str, ...]
    begun: int
    ended: int
    returned: int


@dataclass(frozen=True, slots=True)
class Effect:
    """What a call did to the store, below which names are relative.

    `kind` is one of create, directory, write, sync, sync_names, rename, unlink, length, allocate.
    """

    kind: str
    name: str
    begun: int
    ended: int
    position: int = 0
    data: bytes = b""
    other: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """A line that the program wrote to its own file: what an application knew from then on."""

    at: int
    text: str


@dataclass(frozen=True)
class Recording:
    """All effects by their ends, and what was told meanwhile.

    `in_doubt` names what calls would have changed that never returned, for their process was
    killed: some of them have happened.
    """

    effects: list[Effect]
    told: list[Told]
    lines: int
    in_doubt: frozenset[str]


def record(command: Sequence[str], store: Path, told: Path, output: Path) -> Recording:
    """Run a command under strace and read what it did. Raises RuntimeError if it fails."""
    strace = shutil.which("strace")
    if strace is None:
        raise RuntimeError("strace is not installed: `apt-get install strace`, or run `make setup`")
    options = ["-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-s", str(_STRING_BYTES_MAX)]
    options += [
        "-e",
        "signal=none",
        "-e",
        "trace=" + ",".join(f"?{call}" for call in _CALLS),
        "-o",
        str(output),
    ]
    done = subprocess.run([strace, *options, *command], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} under strace: {done.stderr.decode(errors='replace')}")
    return read(output, store, told)


def read(output: Path, store: Path, told: Path) -> Recording:
    """Read strace's output."""
    effects: list[Effect] = []
    texts: list[Told] = []
    reader = _Reader(store)
    count = 0
    endless: list[Call] = []
    with output.open(encoding="ascii", errors="replace") as lines:
        for call in _calls(lines, endless):
            count = max(count, call.ended)
            if _is_in_doubt(call):
                endless.append(call)
                continue
            if call.name == "write" and reader.path_of(call.arguments[0]) == str(told):
                text = _bytes(call.arguments[1]).decode()
                texts += [Told(call.begun, line) for line in text.splitlines()]
            effects += reader.effects(call)
    effects.sort(key=lambda effect: effect.ended)
    lost = [effect for call in endless for effect in reader.effects(call)]
    in_doubt = {effect.name for effect in lost} | {effect.other for effect in lost} - {""}
    return Recording(effects, texts, count + 1, frozenset(in_doubt))


def _is_in_doubt(call: Call) -> bool:
    """Whether a write says that it was cut short, as one may in a process that is being killed.

    What it returned is then perhaps another call's: all of it may be in the file.
    """
    return call.name == "pwrite64" and call.returned < int(call.arguments[2])


def _calls(lines: Iterable[str], endless: list[Call]) -> Iterator[Call]:
    """Calls that returned without an error, by their ends; those that never did go to a list."""
    begun: dict[str, tuple[str, str, int]] = {}
    for number, text in enumerate(lines):
        line = text.rstrip("\n")
        if whole := _LINE.match(line):
            _pid, name, arguments, returned = whole.groups()
            call = (name, arguments, number, number, int(returned))
        elif first := _BEGUN.match(line):
            begun[first[1]] = (first[2], first[3], number)
            continue
        elif (rest := _RESUMED.match(line)) and rest[1] in begun:
            name, start, at = begun.pop(rest[1])
            call = (name, start + rest[3], at, number, int(rest[4]))
        else:
            if cut := _ENDLESS.match(line):
                endless.append(Call(cut[2], tuple(cut[3].split(", ")), number, number, 0))
            continue
        if call[4] >= 0:
            name, arguments, at, ended, result = call
            yield Call(name, tuple(arguments.split(", ")), at, ended, result)
    for name, arguments, at in begun.values():
        endless.append(Call(name, tuple(arguments.split(", ")), at, at, 0))


def _bytes(text: str) -> bytes:
    """A string as -xx prints it: hexadecimal digits, cut or not."""
    if not text.startswith('"') or text.endswith("..."):
        raise ValueError(f"strace has cut a string: {text[:40]}")
    return bytes.fromhex(text[1:-1].replace("\\x", ""))


def _path(text: str) -> str:
    return bytes.fromhex(text.replace("\\x", "")).decode() if text.startswith("\\x") else text


class _Reader:
    """Turns calls into effects below one folder."""

    def __init__(self, store: Path) -> None:
        self._store = str(store)
        self._files: set[str] = set()

    def path_of(self, descriptor: str) -> str | None:
        """The path that a descriptor stands for; None once its file has no name any more."""
        found = _DESCRIPTOR.match(descriptor)
        return None if found is None or found[2] else _path(found[1])

    def effects(self, call: Call) -> Iterator[Effect]:
        """What a call did below the folder."""
        handler = getattr(self, f"_{call.name}", None)
        if handler is not None:
            yield from handler(call)

    def _name(self, path: str | None) -> str | None:
        """Relative to the store, None elsewhere."""
        if path is None or not (path == self._store or path.startswith(self._store + "/")):
            return None
        return path[len(self._store) + 1 :]

    def _file(self, call: Call) -> str | None:
        return self._name(self.path_of(call.arguments[0]))

    def _at(self, folder: str, text: str) -> str | None:
        """A name given by a folder's descriptor and a path."""
        path = _bytes(text).decode()
        return self._name(os.path.normpath(os.path.join(self.path_of(folder) or "", path)))

    def _plain(self, text: str) -> str | None:
        return self._name(os.path.normpath(_bytes(text).decode()))

    def _openat(self, call: Call) -> Iterator[Effect]:
        flags, name = call.arguments[2], self._at(call.arguments[0], call.arguments[1])
        if name is None or "O_CREAT" not in flags:
            if name is not None and "O_TRUNC" in flags:
                yield Effect("length", name, call.begun, call.ended, 0)
            return
        if name not in self._files:
            self._files.add(name)
            yield Effect("create", name, call.begun, call.ended)
        elif "O_TRUNC" in flags:
            yield Effect("length", name, call.begun, call.ended, 0)

    def _pwrite64(self, call: Call) -> Iterator[Effect]:
        name = self._file(call)
        if name is not None:
            data = _bytes(call.arguments[1])[: call.returned]
            yield Effect("write", name, call.begun, call.ended, int(call.arguments[3]), data)

    def _write(self, call: Call) -> Iterator[Effect]:
        if self._file(call) is not None:
            raise ValueError(f"a write without a position into {self._file(call)}")
        yield from ()

    _writev = _pwritev = _pwritev2 = _sendfile = _write

    def _copy_file_range(self, call: Call) -> Iterator[Effect]:
        if self._name(self.path_of(call.arguments[2])) is not None:
            raise ValueError(f"{call.name} is not known here: {call.arguments}")
        yield from ()

    def _fdatasync(self, call: Call) -> Iterator[Effect]:
        name = self._file(call)
        if name is not None:
            kind = "sync" if name in self._files else "sync_names"
            yield Effect(kind, name, call.begun, call.ended)

    _fsync = _fdatasync

    def _ftruncate(self, call: Call) -> Iterator[Effect]:
        name = self._file(call)
        if name is not None:
            yield Effect("length", name, call.begun, call.ended, int(call.arguments[1]))

    def _fallocate(self, call: Call) -> Iterator[Effect]:
        name, mode = self._file(call), call.arguments[1]
        if name is None:
            return
        start, count = int(call.arguments[2]), int(call.arguments[3])
        if "PUNCH_HOLE" in mode or "ZERO_RANGE" in mode:
            yield Effect("write", name, call.begun, call.ended, start, bytes(count))
        else:
            yield Effect("allocate", name, call.begun, call.ended, start + count)

    def _moved(self, old: str | None, new: str | None, call: Call) -> Iterator[Effect]:
        if old is None and new is None:
            return
        if old is None or new is None:
            raise ValueError(f"a file is moved over the store's border: {old}, {new}")
        inside = {name for name in self._files if name.startswith(f"{old}/")}
        if old in self._files or not inside:
            self._files.discard(old)
            self._files.add(new)
        yield Effect("rename", old, call.begun, call.ended, other=new)

    def _rename(self, call: Call) -> Iterator[Effect]:
        yield from self._moved(self._plain(call.arguments[0]), self._plain(call.arguments[1]), call)

    def _renameat(self, call: Call) -> Iterator[Effect]:
        old, new = call.arguments[:2], call.arguments[2:4]
        yield from self._moved(self._at(*old), self._at(*new), call)

    _renameat2 = _renameat

    def _gone(self, name: str | None, call: Call) -> Iterator[Effect]:
        if name is not None:
            self._files.discard(name)
            yield Effect("unlink", name, call.begun, call.ended)

    def _unlink(self, call: Call) -> Iterator[Effect]:
        yield from self._gone(self._plain(call.arguments[0]), call)

    def _unlinkat(self, call: Call) -> Iterator[Effect]:
        yield from self._gone(self._at(call.arguments[0], call.arguments[1]), call)

    _rmdir = _unlink

    def _mkdir(self, call: Call) -> Iterator[Effect]:
        name = self._plain(call.arguments[0])
        if name is not None:
            yield Effect("directory", name, call.begun, call.ended)

    def _mkdirat(self, call: Call) -> Iterator[Effect]:
        name = self._at(call.arguments[0], call.arguments[1])
        if name is not None:
            yield Effect("directory", name, call.begun, call.ended)

    def _linkat(self, call: Call) -> Iterator[Effect]:
        raise ValueError(f"{call.name} is not known here: {call.arguments}")
        yield

    _link = _symlink = _symlinkat = _creat = _truncate = _sync = _syncfs = _linkat
