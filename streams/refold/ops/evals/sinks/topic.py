"""The evals topic: reading what is committed of batches, to a proper end.

A batch is in one partition, that of its id, so its records have one order and a reader needs one partition.
The end of a read is the partition's high watermark when it begins: the last stable offset may lie before
records of this batch that are committed, while another batch's transaction is open. A runner that died
within a transaction holds such a read up, at most until the broker ends that (TRANSACTION_TIMEOUT_MS, and
its scan every 10 seconds); a successor ends it at once. Blocking; run in threads.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from refold.client.limits import SCAN_FETCH_BYTES
from refold.client.reader import Reader, read_failure
from refold.core.slots import murmur2
from refold.errors import ConfigError, InvalidRecord
from refold.topology.failures import explain
from refold.wire.evals import EvalCursor, EvalResult, batch_of, decode_eval

METADATA_TIMEOUT_S: Final = 10.0

Visit = Callable[[EvalResult | EvalCursor, bytes], None]


class EvalsTopic:
    """``config``: a client's, without a group. Nothing is opened before it is used."""

    def __init__(self, config: dict[str, Any], name: str) -> None:
        self._config = {"log_level": 2, **config}
        self.name = name
        self._partitions = 0

    def partitions(self) -> int:
        """Raises ConfigError where the topic does not exist, UnavailableError where nobody answers."""
        if not self._partitions:
            try:
                found = AdminClient(self._config).list_topics(self.name, timeout=METADATA_TIMEOUT_S)
            except KafkaException as error:
                where = str(self._config.get("bootstrap.servers"))
                raise explain(error, doing=f"looking for {self.name}", bootstrap=where) from None
            topic = found.topics.get(self.name)
            if topic is None or topic.error is not None or not topic.partitions:
                raise ConfigError(f"topic {self.name!r} does not exist: run `refold topology apply`.")
            self._partitions = len(topic.partitions)
        return self._partitions

    def partition_of(self, batch: str) -> int:
        return (murmur2(batch.encode()) & 0x7FFFFFFF) % self.partitions()

    def read(
        self, partition: int, start: int, batch: str | None, visit: Visit, *, stable: bool = False
    ) -> int:
        """Visit committed records from ``start`` on, those of one batch or of all; where the next read
        begins. Records of others are skipped by their keys, tombstones too.

        ``stable``: only to the last stable offset. Waits for nobody, and may miss what is committed.
        """
        first, end = self._watermarks(partition, committed=stable)
        first = max(start, first)
        if first >= end:
            return end
        reader = Reader(self._config, SCAN_FETCH_BYTES)

        def take(message: Any) -> bool:
            key, value = message.key(), message.value()
            if value is None or key is None:
                return True
            try:
                if batch is None or batch_of(key) == batch:
                    visit(decode_eval(value), value)
            except InvalidRecord as error:
                raise InvalidRecord(
                    error.code,
                    f"{self.name}[{partition}] offset {message.offset()}: {error.reason}. Only `refold eval`"
                    " writes this topic: delete the record's key, or use another --prefix",
                ) from None
            return True

        try:
            reader.sweep(self.name, partition, first, take, last=end - 1)
        finally:
            reader.close()
        return end

    def end(self, partition: int, *, committed: bool) -> int:
        """The high watermark, or with ``committed`` the last stable offset."""
        return self._watermarks(partition, committed=committed)[1]

    def _watermarks(self, partition: int, *, committed: bool) -> tuple[int, int]:
        """(first offset, high watermark, or with ``committed`` the last stable offset)."""
        consumer = Consumer(
            {
                **self._config,
                "group.id": f"refold-reader-{uuid.uuid4().hex[:12]}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        try:
            low, high = consumer.get_watermark_offsets(
                TopicPartition(self.name, partition), timeout=METADATA_TIMEOUT_S, cached=False
            )
        except KafkaException as error:
            raise read_failure(error.args[0], self.name) from None
        finally:
            consumer.close()
        return int(low), int(high)
