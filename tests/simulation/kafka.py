"""Small values every simulated client shares: errors with librdkafka's flags, messages, and how often things
go wrong.

``KafkaError`` and ``KafkaException`` are confluent-kafka's own, so that the engine's handlers meet the real
thing.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from .log import Headers


def raised(
    code: int, reason: str, *, fatal: bool = False, retriable: bool = False, abort: bool = False
) -> KafkaException:
    return KafkaException(error(code, reason, fatal=fatal, retriable=retriable, abort=abort))


def error(
    code: int, reason: str, *, fatal: bool = False, retriable: bool = False, abort: bool = False
) -> KafkaError:
    return KafkaError(code, reason, fatal=fatal, retriable=retriable, txn_requires_abort=abort)


class Message:
    """What a consumer or a delivery report hands out."""

    __slots__ = ("_error", "_headers", "_key", "_offset", "_partition", "_time", "_topic", "_value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        time_ms: int = 0,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers | None = None,
        error: Any = None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._time = time_ms
        self._key = key
        self._value = value
        self._headers = headers
        self._error = error

    def __len__(self) -> int:
        return len(self._value or b"")

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return (2, self._time)

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Headers | None:
        return self._headers or None

    def error(self) -> Any:
        return self._error


class Membership(NamedTuple):
    """What TxnOffsetCommit carries of the group."""

    generation: int
    member_id: str
    instance: str

    def encode(self, group: str) -> bytes:
        """As librdkafka writes it (``refold.engine.commitmeta`` reads it)."""
        return (
            b"CGMDv2:"
            + self.generation.to_bytes(4, sys.byteorder, signed=True)
            + b"\0".join((group.encode(), self.member_id.encode(), self.instance.encode(), b""))
        )

    @classmethod
    def decode(cls, opaque: bytes) -> Membership:
        body = opaque.removeprefix(b"CGMDv2:")
        _group, member, instance, *_ = body[4:].split(b"\0")
        return cls(int.from_bytes(body[:4], sys.byteorder, signed=True), member.decode(), instance.decode())
