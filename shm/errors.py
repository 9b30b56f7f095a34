"""Every error that applications and operators meet.

::

    GantryError
    ├── Unavailable        retry may help
    │   ├── BrokerGone     no broker answers at the home directory
    │   ├── QueueFull      no room in the ring before the deadline
    │   ├── Timeout        the answer did not come before the deadline
    │   ├── Evicted        the broker ended this session
    │   └── TransactionInDoubt  asked for, but not known to be committed or rolled back
    ├── Rejected           the caller's fault; do not retry
    │   ├── ArgumentIllegal     a ValueError: an argument is of a wrong type or value
    │   │   ├── MessageIllegal
    │   │   ├── GroupIllegal
    │   │   ├── SettingIllegal
    │   │   └── FilterSyntaxError
    │   ├── TopicNotFound
    │   ├── NotPermitted
    │   ├── TransactionDecided  otherwise, before: `outcome` says how
    │   └── Closed         the object was closed, or belongs to the parent of this fork
    ├── TransactionFailed  not committed, and never will be; do it again as a whole
    ├── ConsumerFailed     its own threads met what nobody foresaw; `__cause__` is that
    ├── Incompatible       another layout or another store size: upgrade one side
    ├── StoreBusy          another broker holds the store
    └── StoreFailed        page someone
        ├── DiskFull
        └── Corrupt        names file, position, expected and found

Three questions decide the branch: retry, stop, or page someone?
"""

from __future__ import annotations

import errno
import os
from typing import Any, Final

#: Characters of a value that an error shows.
SHOWN_MAX: Final = 60
#: On the board of a broker whose store is no longer where it was: files of it are gone, or another
#: store's. A network disk says the same of a file that was removed behind its back.
STORE_LOST: Final = errno.ESTALE


class GantryError(Exception):
    """Base of all errors; `fields` holds what the text says, for programs."""

    __module__ = "gantrymq"  # where applications import it from; a traceback shows that

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__ == __name__:
            cls.__module__ = "gantrymq"

    def __init__(self, text: str, **fields: Any) -> None:  # noqa: ANN401 - any picklable value
        super().__init__(text)
        self.text = text
        self.fields = fields

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.text, self.fields)


def why_failed(number: int) -> str:
    """What made a store fail, by the errno on the board; damage has none."""
    if number == STORE_LOST:
        return "its home was moved or removed, or another one put in its place, as the broker ran"
    if number:
        return os.strerror(number)
    return (
        "a record of its log, or another of its files, is damaged (its broker's log names it;"
        " `gantrymq store verify` lists all damage once the broker is stopped)"
    )


def mend_of_failed(number: int) -> str:
    """What a client's user does about that."""
    if number == STORE_LOST:
        return (
            "What was acknowledged is in the home that was there; put it back and start the broker"
            " again: the next call then finds that one; or start one where it is now, and name"
            " that home"
        )
    return (
        "What was acknowledged is safe; mend the disk, or the damage, and start the broker again:"
        " the next call then finds that one"
    )


def _rebuild(kind: type[GantryError], text: str, fields: dict[str, Any]) -> GantryError:
    return kind(text, **fields)


def shown(value: object) -> str:
    """A value as an error shows it: its beginning, and its type."""
    try:
        text = repr(value)
    except Exception:  # of somebody's own class; of a number with thousands of digits
        text = "an object that cannot be shown"
    if len(text) > SHOWN_MAX:
        text = f"{text[:SHOWN_MAX]}..."
    return in_any_file(f"{text} ({type(value).__name__})")


def told_by(error: BaseException) -> str:
    """What somebody's error is and says, in characters that go into any file, log or message."""
    try:
        text = str(error)
    except Exception:  # of somebody's own class
        text = "it has no text that can be shown"
    return in_any_file(f"{type(error).__name__}: {text}")


def in_any_file(text: str) -> str:
    """A text whose lone surrogates, as in names of files that are no UTF-8, are written out."""
    return text.encode(errors="backslashreplace").decode()


class Unavailable(GantryError):
    """Nothing was lost; the same call may succeed later."""


class BrokerGone(Unavailable):
    """No broker answers at this home directory."""


class QueueFull(Unavailable, TimeoutError):
    """The ring had no room before the deadline: the broker is slower than the producer."""


class Timeout(Unavailable, TimeoutError):
    """The answer did not come before the deadline; the outcome may still become known."""


class Evicted(Unavailable):
    """The broker ended this session; the text says why."""


class TransactionInDoubt(Unavailable):
    """No answer in time: committed, rolled back or open. `commit` or `rollback` may ask again.

    Left alone it is settled by the `transaction_checker` of its producer group.
    """


class TransactionFailed(GantryError):
    """The transaction is not committed: one of its messages could not be stored."""


class ConsumerFailed(GantryError):
    """A thread of a push consumer met what nobody foresaw, `__cause__`, and the consumer ended.

    What its listener had finished is acknowledged; its queues are other members'.
    """


class Rejected(GantryError):
    """The request can never succeed as it is."""


class ArgumentIllegal(Rejected, ValueError):
    """An argument has a type or value that it may not have; the text names it and what it may."""


class MessageIllegal(ArgumentIllegal):
    """Size, name or property of a message breaks a rule."""


class TopicNotFound(Rejected):
    """The topic does not exist and may not be created by a send."""


class GroupIllegal(ArgumentIllegal):
    """The group's name or subscription breaks a rule."""


class SettingIllegal(ArgumentIllegal):
    """A setting has an unknown name or an impossible value."""


class FilterSyntaxError(ArgumentIllegal):
    """A filter expression does not parse; `position` says where."""


class NotPermitted(Rejected):
    """This user may not do that."""


class TransactionDecided(Rejected):
    """The transaction was decided otherwise before: `outcome` is what it is."""


class Closed(Rejected):
    """The object was closed, or was opened by the parent of this forked process."""


class Incompatible(GantryError):
    """Layouts or store sizes differ; the text says which side to change."""


class StoreBusy(GantryError):
    """Another broker holds the store's lock, or another run writes to the same place."""


class StoreFailed(GantryError):
    """The store can take no more; what was acknowledged is safe."""


class DiskFull(StoreFailed):
    """No space for the next segment."""


class Corrupt(StoreFailed):
    """Bytes below the durable position are damaged; `path` and `position` say where."""
