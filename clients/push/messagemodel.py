"""Who gets a message of a push consumer's group."""

from __future__ import annotations

from enum import Enum


class MessageModel(Enum):
    """Who gets a message: one member of the group, or each."""

    CLUSTERING = "clustering"
    BROADCASTING = "broadcasting"
