"""The names that applications import; the code lives in `clients`, `shm` and `brokerd`.

Each name is loaded when it is first used, so `import gantrymq` costs next to nothing. There is no
logic here, but that the first name that needs machine code says so if it has to be compiled.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.clients.batch import MessageBatch
    from gantrymq.clients.consumer import PullConsumer
    from gantrymq.clients.message import (
        BatchParts,
        Message,
        MessageParts,
        MessageQueue,
        ReceivedMessage,
        SendReceipt,
    )
    from gantrymq.clients.producer import Producer
    from gantrymq.clients.push.consumer import PushConsumer
    from gantrymq.clients.push.consumeresult import ConsumeResult
    from gantrymq.clients.push.messagemodel import MessageModel
    from gantrymq.clients.push.options import PushOptions
    from gantrymq.clients.queries.client import Client
    from gantrymq.clients.queries.found import Found, FoundMessage
    from gantrymq.clients.recalloutcome import RecallOutcome
    from gantrymq.clients.receipts import ReceiptFuture
    from gantrymq.clients.subscription import FilterExpression, FilterType
    from gantrymq.clients.transactions.resolution import TransactionResolution
    from gantrymq.clients.transactions.transaction import Transaction
    from gantrymq.shm.errors import (
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
    from gantrymq.shm.groupwire import ConsumeFrom
    from gantrymq.temporary import Broker

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
    "BatchParts": "gantrymq.clients.message",
    "Broker": "gantrymq.temporary",
    "Client": "gantrymq.clients.queries.client",
    "ConsumeFrom": "gantrymq.shm.groupwire",
    "ConsumeResult": "gantrymq.clients.push.consumeresult",
    "FilterExpression": "gantrymq.clients.subscription",
    "FilterType": "gantrymq.clients.subscription",
    "Found": "gantrymq.clients.queries.found",
    "FoundMessage": "gantrymq.clients.queries.found",
    "Message": "gantrymq.clients.message",
    "MessageBatch": "gantrymq.clients.batch",
    "MessageModel": "gantrymq.clients.push.messagemodel",
    "MessageParts": "gantrymq.clients.message",
    "MessageQueue": "gantrymq.clients.message",
    "Producer": "gantrymq.clients.producer",
    "PullConsumer": "gantrymq.clients.consumer",
    "PushConsumer": "gantrymq.clients.push.consumer",
    "PushOptions": "gantrymq.clients.push.options",
    "RecallOutcome": "gantrymq.clients.recalloutcome",
    "ReceiptFuture": "gantrymq.clients.receipts",
    "ReceivedMessage": "gantrymq.clients.message",
    "SendReceipt": "gantrymq.clients.message",
    "Transaction": "gantrymq.clients.transactions.transaction",
    "TransactionResolution": "gantrymq.clients.transactions.resolution",
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
        import_module("gantrymq.clients.warming").warm_up()
    value: object = getattr(import_module(_HOMES.get(name, "gantrymq.shm.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
