"""Whether the topics that a read asks for are there: a name that is mistyped has no rows."""

from __future__ import annotations

from difflib import get_close_matches

from gantrymq.clients.spark.options import ReadOptions
from gantrymq.shm import sidecar
from gantrymq.shm.configfile import parse_config, read_config
from gantrymq.shm.errors import Corrupt, TopicNotFound
from gantrymq.shm.storage import PosixStorage, read_file
from gantrymq.shm.topicfiles import DELETED


def require_topics(options: ReadOptions) -> None:
    """Raise TopicNotFound for a topic that the store has never had, as far as the store says.

    Not if `allowMissing` is true: it may come.
    """
    if options.allow_missing or not options.topics:
        return
    storage = PosixStorage(options.store)
    known = _configured(storage)
    if not known or options.topics <= known:  # a log alone says nothing of its topics
        return
    known |= _in_log(storage)
    for name in sorted(options.topics - known):
        near = get_close_matches(name, sorted(known), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise TopicNotFound(
            f"{options.store} has no topic {name!r}: {hint}allowMissing (--allow-missing) waits for"
            " one that is still to come",
            topic=name,
        )


def _configured(storage: PosixStorage) -> set[str]:
    """Topics of the store's configuration, deleted ones too."""
    found = set(storage.list("consumequeue"))
    try:
        content = read_config(storage, "topics.json")
        found |= set(content["topicConfigTable"])
        found |= set(parse_config(read_file(storage, DELETED).decode()))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass  # damage there ends no read of the log
    return found


def _in_log(storage: PosixStorage) -> set[str]:
    """Topics that sealed segments have records of."""
    found: set[str] = set()
    for name in storage.list(sidecar.DIRECTORY):
        try:
            path = f"{sidecar.DIRECTORY}/{name}"
            found.update(sidecar.parse(read_file(storage, path), path).names)
        except (FileNotFoundError, Corrupt):
            continue
    return found
