"""A producer that a RocketMQ can ask what became of its transactions, over its own protocol.

The checker's clients send no transactions, and a check goes to a live producer of the group only
(TX-35). This one says by a heartbeat that it is alive, and answers each check by END_TRANSACTION.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from gantrymq.shm.record import STRUCTURE, Record, parse_record

_HEART_BEAT: Final = 34
_END_TRANSACTION: Final = 37
_CHECK: Final = 39
_ONE_WAY: Final = 2
_COMMIT: Final = 8
_ROLLBACK: Final = 12
_VERSION: Final = 477  # of 5.3.x; brokers look at it for other features only
_HEAD: Final = struct.Struct(">ii")


Properties = dict[str, str]


class LiveProducer:
    """Is asked about transactions of `groups`; `decide` says of properties whether to commit.

    `bodies` counts the checks by the message's body. Raises OSError if nobody listens at the port.
    """

    def __init__(self, port: int, groups: list[str], decide: Callable[[Properties], bool]) -> None:
        self.bodies: Counter[str] = Counter()
        self._decide = decide
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30.0)
        self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._send(
            _HEART_BEAT,
            {},
            {
                "clientID": "127.0.0.1@interop",
                "producerDataSet": [{"groupName": group} for group in groups],
                "consumerDataSet": [],
            },
        )
        self._thread.start()

    def __enter__(self) -> LiveProducer:
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(OSError):  # the other side may have gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _answer(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                header, body = self._receive()
                if header.get("code") == _CHECK and not header.get("flag", 0) & 1:
                    self._end(header["extFields"], body)

    def _end(self, asked: dict[str, str], body: bytes) -> None:
        record = parse_record(body, 0, len(body), STRUCTURE)
        if not isinstance(record, Record):
            raise EOFError(f"a check without a message: {record}")
        properties = record.property_map()
        self.bodies[record.body.decode(errors="replace")] += 1
        decision = _COMMIT if self._decide(properties) else _ROLLBACK
        names = ("commitLogOffset", "tranStateTableOffset", "msgId", "transactionId")
        fields: dict[str, object] = {name: asked[name] for name in names}
        fields |= {"producerGroup": properties["PGROUP"], "commitOrRollback": decision}
        fields |= {"fromTransactionCheck": "true", "topic": asked.get("topic", "")}
        self._send(_END_TRANSACTION, fields, None)

    def _send(self, code: int, fields: dict[str, object], body: object) -> None:
        header = {
            "code": code,
            "language": "PYTHON",
            "version": _VERSION,
            "opaque": code,
            "flag": 0 if code == _HEART_BEAT else _ONE_WAY,
            "serializeTypeCurrentRPC": "JSON",
            "extFields": {name: str(value) for name, value in fields.items()},
        }
        head = json.dumps(header).encode()
        data = b"" if body is None else json.dumps(body).encode()
        self._socket.sendall(_HEAD.pack(4 + len(head) + len(data), len(head)) + head + data)

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        total, mark = _HEAD.unpack(self._exactly(_HEAD.size))
        data = self._exactly(total - 4)
        size = mark & 0xFFFFFF  # above it, how the header is written: 0 = JSON
        return json.loads(data[:size]), data[size:]

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data
