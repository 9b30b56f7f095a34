"""A consumer group at a real RocketMQ, by its remoting protocol: pull, acknowledge, send back.

As its clients do: where the broker says that the group is, messages as the store has them, a failed
one back to the broker, which parks it or gives it up by the group's own `retryMaxTimes`.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gantrymq.shm.properties import RETRY_PREFIX
from gantrymq.shm.record import STRUCTURE, Record, parse_record
from scripts.interop_checker import PATIENCE_S, Refused

#: Codes of requests and answers.
_PULL: Final = 11
_ASK_OFFSET: Final = 14
_ASK_END: Final = 30
_HEART_BEAT: Final = 34
_SET_OFFSET: Final = 15
_SEND_BACK: Final = 36
_OK: Final = 0
_NOTHING: Final = (19, 20)  # PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY
#: The request says what is subscribed, no heartbeat did.
_WITH_SUBSCRIPTION: Final = 4
_VERSION: Final = 455  # any from 3.4.9 on: the broker then looks at the group's own settings
_AT_ONCE: Final = 32
_PAUSE_S: Final = 0.05


class RocketMqGroup:
    """The only member of a group. Raises Refused, OSError."""

    def __init__(self, port: int, group: str, queues: Mapping[str, int]) -> None:
        """`queues`: how many each topic has that the group reads."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._stream = self._socket.makefile("rwb")
        self._group = group
        self._opaque = 0
        self._next = {
            (topic, queue_id): self._offset(topic, queue_id)
            for topic, count in queues.items()
            for queue_id in range(count)
        }

    def messages(self, seconds: float) -> Iterator[Record]:
        """What comes within so long; each is acknowledged when the next one is asked for."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            before = sum(self._next.values())
            for (topic, queue_id), offset in self._next.items():
                for record in self._pull(topic, queue_id, offset):
                    yield record
                    self._acknowledge(topic, queue_id, record.queue_offset + 1)
            if sum(self._next.values()) == before:
                time.sleep(_PAUSE_S)

    def send_back(self, record: Record) -> None:
        """This delivery has failed."""
        fields = {"offset": record.physical_offset, "group": self._group, "delayLevel": 0}
        fields |= {"originTopic": record.topic.removeprefix(RETRY_PREFIX + self._group)}
        self._ask(_SEND_BACK, {**fields, "originMsgId": record.offset_message_id})

    def close(self) -> None:
        """Hang up."""
        self._stream.close()
        self._socket.close()

    def _place(self, topic: str, queue_id: int) -> dict[str, Any]:
        return {"consumerGroup": self._group, "topic": topic, "queueId": queue_id}

    def _offset(self, topic: str, queue_id: int) -> int:
        answer, _ = self._ask(_ASK_OFFSET, self._place(topic, queue_id))
        return int(answer["offset"])

    def _acknowledge(self, topic: str, queue_id: int, offset: int) -> None:
        self._ask(_SET_OFFSET, {**self._place(topic, queue_id), "commitOffset": offset})
        self._next[topic, queue_id] = offset

    def _pull(self, topic: str, queue_id: int, offset: int) -> list[Record]:
        fields = {"queueOffset": offset, "maxMsgNums": _AT_ONCE, "sysFlag": _WITH_SUBSCRIPTION}
        fields |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
        words = {"subscription": "*", "expressionType": "TAG"}
        _, data = self._ask(_PULL, {**self._place(topic, queue_id), **fields, **words})
        return self._records(topic, data)

    def passing(self, topic: str, expression: str) -> Iterator[Record]:
        """What of queue 0 the group's SQL92 filter lets through, from its beginning to its end.

        The filter is told by a heartbeat: only then bits count that were there before (FL-13).
        """
        version = time.time_ns() // 1_000_000
        wanted = {
            "topic": topic, "subString": expression, "expressionType": "SQL92",
            "subVersion": version, "tagsSet": [], "codeSet": [], "classFilterMode": False,
        }  # fmt: skip
        member = {
            "groupName": self._group, "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [wanted], "unitMode": False,
        }  # fmt: skip
        alive = {"clientID": f"127.0.0.1@{self._group}", "consumerDataSet": [member]}
        self._ask(_HEART_BEAT, {}, json.dumps({**alive, "producerDataSet": []}).encode())
        offset, end = 0, int(self._ask(_ASK_END, {"topic": topic, "queueId": 0})[0]["offset"])
        while offset < end:
            fields = {"queueOffset": offset, "maxMsgNums": _AT_ONCE, "sysFlag": 0}
            fields |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": version}
            said, data = self._ask(_PULL, {**self._place(topic, 0), **fields})
            yield from self._records(topic, data)
            offset = int(said["nextBeginOffset"])

    @staticmethod
    def _records(topic: str, data: bytes) -> list[Record]:
        records, at = [], 0
        while at < len(data):
            record = parse_record(data, at, len(data), STRUCTURE)
            if not isinstance(record, Record):
                raise Refused(f"pulled from {topic}: {record}")
            records.append(record)
            at += record.total_size
        return records

    def _ask(
        self, code: int, fields: Mapping[str, Any], data: bytes = b""
    ) -> tuple[dict[str, str], bytes]:
        self._opaque += 1
        texts = {name: str(value) for name, value in fields.items()}
        head = json.dumps(
            {
                "code": code, "flag": 0, "language": "PYTHON", "opaque": self._opaque,
                "version": _VERSION, "serializeTypeCurrentRPC": "JSON", "extFields": texts,
            }
        ).encode()  # fmt: skip
        self._stream.write(struct.pack(">II", 4 + len(head) + len(data), len(head)) + head + data)
        self._stream.flush()
        while True:
            answer, body = self._read()
            if answer["opaque"] == self._opaque and answer["flag"] & 1:
                break  # all else is what a broker tells its clients by itself
        if answer["code"] not in (_OK, *_NOTHING):
            raise Refused(f"RocketMQ answers request {code} with {answer['code']}: {answer}")
        return answer.get("extFields") or {}, body

    def _read(self) -> tuple[dict[str, Any], bytes]:
        total, head_bytes = struct.unpack(">II", self._exactly(8))
        head_bytes &= 0xFFFFFF  # the upper byte: how the head is written, 0 = JSON
        head = json.loads(self._exactly(head_bytes))
        return head, self._exactly(total - 4 - head_bytes)

    def _exactly(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) != count:
            raise Refused("RocketMQ has hung up")
        return data
