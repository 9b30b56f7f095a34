"""What a query asks for, judged before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gantrymq.clients.queries.inner import Messages
from gantrymq.clients.queries.search import SCAN_BYTES, Search, Wanted
from gantrymq.clients.queries.view import NO_END, no_topic
from gantrymq.shm.errors import ArgumentIllegal
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.indexreader import EVER_MS
from gantrymq.shm.innerbatch import is_inner_batch
from gantrymq.shm.limits import PROPERTIES_BYTES_MAX
from gantrymq.shm.properties import index_hash

if TYPE_CHECKING:
    from gantrymq.clients.queries.view import StoreView
    from gantrymq.shm.record import Record

_SHOWN: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A topic's messages with a key, with a message id (UNIQ_KEY), or all; times in Unix ms.

    Only messages stored from `begin_ms` to `end_ms` (both count), below the log position `before`,
    which may lie amid an inner batch: then its messages that begin below.
    Up to `scan_bytes` of the log are looked through where the index does not reach, or, without
    `index`, in its place.
    """

    topic: str
    key: str | None = None
    message_id: str | None = None
    begin_ms: int = -EVER_MS
    end_ms: int = EVER_MS
    before: int | None = None
    scan_bytes: int = SCAN_BYTES
    index: bool = True

    def results(self, view: StoreView, before: int | None = None) -> Messages:
        """The messages, newest first, below `before` if given.

        Raises ArgumentIllegal, TopicNotFound.
        """
        self._require_sense()
        if self.topic not in view.topics():
            raise no_topic(self.topic)
        text = self.key if self.key is not None else self.message_id
        codes = [] if text is None else [index_hash(self.topic, text)]
        before = self.before if before is None else before
        before = NO_END if before is None else before
        times = self.begin_ms, self.end_ms
        wanted = Wanted(codes, self._matches, *times, before, [self.topic])
        if codes:
            search = Search(view, wanted, self.scan_bytes, self.index)
            return Messages(search, self._has, before)
        from gantrymq.clients.queries.bytime import TopicSearch

        return Messages(TopicSearch(view, self.topic, wanted), self._has, before)

    def _require_sense(self) -> None:
        if self.key is not None and self.message_id is not None:
            raise ArgumentIllegal("give a key or a message_id, not both")
        if self.key is not None:
            check_key("key", self.key)
        if self.message_id is not None:
            check_key("message_id", self.message_id)
        if self.begin_ms > self.end_ms:
            raise ArgumentIllegal(
                f"the begin ({self.begin_ms} ms) is after the end ({self.end_ms} ms): swap them"
            )
        if self.before is not None and self.before < 0:
            raise ArgumentIllegal(f"before is {self.before}: log positions are 0 and more")
        if self.scan_bytes < 0:
            raise ArgumentIllegal(
                f"scan_bytes {self.scan_bytes}: 0 and more bytes can be looked through"
            )

    def _matches(self, record: Record) -> bool:
        """The record decides: hashes are those of other keys, too (SF-82). A batch may have it."""
        if record.topic != self.topic:
            return False
        return is_inner_batch(record.sys_flag) or self._has(record)

    def _has(self, record: Record) -> bool:
        if self.key is not None:
            return self.key in record.property_map().get("KEYS", "").split(" ")
        if self.message_id is not None:
            return record.property_map().get("UNIQ_KEY") == self.message_id
        return True


def check_key(what: str, text: str) -> None:
    """Raise ArgumentIllegal for what no message can have as a key."""
    if not isinstance(text, str):
        raise ArgumentIllegal(f"a {what} is text, not {type(text).__name__}")
    shown = repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        require_ours(error)
        raise ArgumentIllegal(
            f"{what} {shown} is no Unicode text: keys are stored as UTF-8, so give it as that"
        ) from None
    if not text:
        raise ArgumentIllegal(
            f"the {what} is empty: no message has an empty one; leave it out for all"
        )
    if " " in text:
        raise ArgumentIllegal(
            f"{what} {shown}: blanks separate keys, so ask for one of them at a time"
        )
    if any(separator in text for separator in "\x00\x01\x02"):
        raise ArgumentIllegal(
            f"{what} {shown} holds a byte that separates properties: no message has it"
        )
    if size > PROPERTIES_BYTES_MAX:
        raise ArgumentIllegal(
            f"{what} {shown} has {size} bytes: a message's properties have"
            f" {PROPERTIES_BYTES_MAX} at most, so none has it"
        )
