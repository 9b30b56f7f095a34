"""The JSON files: `config/` as RocketMQ has it, and those of `gantry/` (shm.jsonsum)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gantrymq.brokerd import storefiles
from gantrymq.brokerd.epoch import faults_of
from gantrymq.shm import jsonsum
from gantrymq.shm.configfile import BACKUP_SUFFIX, fault_in, parse_config, read_config
from gantrymq.shm.lineage import FIELD as LINEAGE
from gantrymq.shm.lineage import Lineage
from gantrymq.shm.storage import read_file
from gantrymq.shm.topicfiles import DELETED, TOPICS, of_one_moment

if TYPE_CHECKING:
    from gantrymq.brokerd.verify.report import Report
    from gantrymq.brokerd.verify.scope import Scope
    from gantrymq.shm.storage import Storage


def read_object(storage: Storage, path: str, report: Report) -> dict[str, Any] | None:
    """A JSON object of a file; None without the file, or, told, if it is damaged."""
    try:
        data = read_file(storage, path)
    except FileNotFoundError:
        return None
    return _object_of(path, data, report)


def _object_of(path: str, data: bytes, report: Report) -> dict[str, Any] | None:
    if fault := fault_in(data):
        report.add(path, fault[0], "no JSON", found=fault[1])
        return None
    content = parse_config(data.decode())
    if not isinstance(content, dict):
        report.add(path, 0, "no JSON object", found=type(content).__name__)
        return None
    if not _sum_is_true(path, data, content, report):
        return None
    return dict(jsonsum.without_sum(content))


def _sum_is_true(path: str, data: bytes, content: dict[str, Any], report: Report) -> bool:
    damaged = [name for name in content if jsonsum.looks_like_sum(name)]
    if damaged:
        at = data.rfind(damaged[0].encode())
        report.add(path, at, "damaged name of the checksum", jsonsum.FIELD, damaged[0])
        return False
    if jsonsum.sum_holds(data) is not False:
        return True
    at = data.rfind(jsonsum.FIELD.encode())
    report.add(
        path, at, "wrong checksum", "that of the file's bytes; edited by hand or damaged",
        str(content.get(jsonsum.FIELD)),
    )  # fmt: skip
    return False


class ConfigCheck:
    """Checks `config/`, and that it knows the log's topics."""

    def __init__(self, storage: Storage, scope: Scope, report: Report) -> None:
        self._storage = storage
        self._scope = scope
        self._report = report

    def run(self, topics: frozenset[str], *, exact: bool) -> None:
        """Check each file; `topics` are those of the log. `exact`: all is as we left it."""
        for name in self._storage.list("config"):
            path, plain = f"config/{name}", name.removesuffix(BACKUP_SUFFIX)
            if plain.endswith(".json"):
                self._check(path, plain)
            if self._scope.ours and exact and not self._is_known(path, plain):
                self._report.add(path, None, "stray file")
        if self._scope.ours:
            self._check_backed_up()
            self._check_topics(topics)

    def _check_backed_up(self) -> None:
        """A start puts back a file of which only the backup is left."""
        for name in storefiles.CONFIG_TABLES:
            path = f"config/{name}"
            alone = self._storage.exists(path + BACKUP_SUFFIX) and not self._storage.exists(path)
            if alone and self._scope.whole:
                self._report.add(path, None, "missing file", "one besides its backup")

    def _is_known(self, path: str, plain: str) -> bool:
        known = plain in storefiles.CONFIG_TABLES or plain in storefiles.OTHER_CONFIG
        return known or self._storage.is_directory(path)

    def _check(self, path: str, plain: str) -> None:
        try:
            data = read_file(self._storage, path)
            if not self._scope.whole:  # one that is being replaced, or was when the broker died
                parse_config(data.decode())
        except (ValueError, FileNotFoundError):
            return
        content = _object_of(path, data, self._report)
        table = storefiles.CONFIG_TABLES.get(plain)
        if content is None or table is None or not self._scope.ours:
            return
        if not isinstance(content.get(table), dict):
            self._report.add(path, 0, f"no {table}", "a table of that name", ", ".join(content))

    def _check_topics(self, topics: frozenset[str]) -> None:
        """SF-113: what topics.json does not name can't be read."""
        content, data = of_one_moment(self._read_topics, self._read_deleted)
        table = content.get("topicConfigTable") if isinstance(content, dict) else None
        named = set(table) if isinstance(table, dict) else set()
        deleted = {} if data is None else _object_of(DELETED, data, self._report) or {}
        for name, queues in deleted.items():
            if not isinstance(queues, int):
                self._report.add(DELETED, 0, f"no number of queues of {name}", found=repr(queues))
        for topic in sorted(topics - named - set(deleted)):
            wanted = f"{topic} here or in {DELETED}"
            self._report.add(TOPICS, None, "a topic of the log is missing", wanted)

    def _read_topics(self) -> Any:  # noqa: ANN401 - JSON
        return read_config(self._storage, "topics.json")

    def _read_deleted(self) -> bytes | None:
        try:
            return read_file(self._storage, DELETED)
        except FileNotFoundError:
            return None


def store_file_is_sound(storage: Storage, path: str, report: Report) -> bool:
    """Whether `gantry/store.json` can be believed; if not, that is told."""
    if not storage.exists(path):
        report.add(path, None, "missing file")
        return False
    content = read_object(storage, path, report)
    if content is None:
        return False
    faults = list(faults_of(content))
    for fault in faults:
        report.add(path, 0, *fault)
    try:
        Lineage.of(content)
    except ValueError as error:
        report.add(path, 0, str(error), "[[id, position], ...]", json.dumps(content[LINEAGE]))
        return False
    return not faults
