"""The names that applications import; the code lives in `clients`, `shm` and `brokerd`.

Each name is loaded when it is first used, so `import gantrymq` costs next to nothing. There is no
logic here, but that the first name that needs machine code says so if it has to be compiled.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clients.batch import MessageBatch
    from clients.consumer import PullConsumer
    from clients.message import (
        BatchParts,
        Message,
        MessageParts,
        MessageQueue,
        ReceivedMessage,
        SendReceipt,
    )
    from clients.producer import Producer
    from clients.push.consumer import PushConsumer
    from clients.push.consumeresult import ConsumeResult
    from clients.push.messagemodel import MessageModel
    from clients.push.options import PushOptions
    from clients.queries.client import Client
    from clients.queries.found import Found, FoundMessage
    from clients.recalloutcome import RecallOutcome
    from clients.receipts import ReceiptFuture
    from clients.subscription import FilterExpression, FilterType
    from clients.transactions.resolution import TransactionResolution
    from clients.transactions.transaction import Transaction
    from gantrymq.temporary import Broker
    from shm.errors import (
        ArgumentIllegal,
        BrokerGone,
        Closed,
        ConsumerFailed,
        Corrupt,
        DiskFull,
        Evicted,
        FilterSyntaxError,
        GantryError,
        GroupIllegal,
        Incompatible,
        MessageIllegal,
        NotPermitted,
        QueueFull,
        Rejected,
        SettingIllegal,
        StoreBusy,
        StoreFailed,
        Timeout,
        TopicNotFound,
        TransactionDecided,
        TransactionFailed,
        TransactionInDoubt,
        Unavailable,
    )
    from shm.groupwire import ConsumeFrom

__all__ = [
    "ArgumentIllegal",
    "BatchParts",
    "Broker",
    "BrokerGone",
    "Client",
    "Closed",
    "ConsumeFrom",
    "ConsumeResult",
    "ConsumerFailed",
    "Corrupt",
    "DiskFull",
    "Evicted",
    "FilterExpression",
    "FilterSyntaxError",
    "FilterType",
    "Found",
    "FoundMessage",
    "GantryError",
    "GroupIllegal",
    "Incompatible",
    "Message",
    "MessageBatch",
    "MessageIllegal",
    "MessageModel",
    "MessageParts",
    "MessageQueue",
    "NotPermitted",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "PushOptions",
    "QueueFull",
    "RecallOutcome",
    "ReceiptFuture",
    "ReceivedMessage",
    "Rejected",
    "SendReceipt",
    "SettingIllegal",
    "StoreBusy",
    "StoreFailed",
    "Timeout",
    "TopicNotFound",
    "Transaction",
    "TransactionDecided",
    "TransactionFailed",
    "TransactionInDoubt",
    "TransactionResolution",
    "Unavailable",
]

_HOMES = {
    "BatchParts": "clients.message",
    "Broker": "gantrymq.temporary",
    "Client": "clients.queries.client",
    "ConsumeFrom": "shm.groupwire",
    "ConsumeResult": "clients.push.consumeresult",
    "FilterExpression": "clients.subscription",
    "FilterType": "clients.subscription",
    "Found": "clients.queries.found",
    "FoundMessage": "clients.queries.found",
    "Message": "clients.message",
    "MessageBatch": "clients.batch",
    "MessageModel": "clients.push.messagemodel",
    "MessageParts": "clients.message",
    "MessageQueue": "clients.message",
    "Producer": "clients.producer",
    "PullConsumer": "clients.consumer",
    "PushConsumer": "clients.push.consumer",
    "PushOptions": "clients.push.options",
    "RecallOutcome": "clients.recalloutcome",
    "ReceiptFuture": "clients.receipts",
    "ReceivedMessage": "clients.message",
    "SendReceipt": "clients.message",
    "Transaction": "clients.transactions.transaction",
    "TransactionResolution": "clients.transactions.resolution",
}


#: Names that need machine code, which the first of them compiles.
_OF_MACHINE_CODE = {"MessageBatch", "Producer", "PullConsumer", "PushConsumer", "Transaction"}


def __getattr__(name: str) -> object:
    """Load a public name from its home; names without an entry above are errors."""
    if name == "__version__":
        from importlib.metadata import version

        return version("gantrymq")
    if name not in __all__:
        raise AttributeError(f"module 'gantrymq' has no attribute {name!r}")
    if name in _OF_MACHINE_CODE:
        import_module("clients.warming").warm_up()
    value: object = getattr(import_module(_HOMES.get(name, "shm.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
