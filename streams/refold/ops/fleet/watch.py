"""A topic watched from the side by a thread of its own, in read_committed, in no group."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, Message, TopicPartition

#: Records per poll; at 50 ms between polls that keeps up with 100 000 records/s.
BATCH_RECORDS: Final = 5_000
POLL_S: Final = 0.05


class Watch(ABC):
    """Reads ``topic`` from ``since`` (partition -> offset) on, from :meth:`__init__` until :meth:`close`.

    A subclass makes what :meth:`seen` needs before it calls ``super().__init__``: the thread starts there.
    """

    def __init__(self, config: Mapping[str, Any], topic: str, since: Mapping[int, int], name: str) -> None:
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                **config,
                "group.id": f"{topic}-{name}",  # required by the client; nothing is committed or joined
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
            }
        )
        self._consumer.assign([TopicPartition(topic, p, offset) for p, offset in since.items()])
        self._thread = threading.Thread(target=self._watch, name=f"{topic}-{name}", daemon=True)
        self._thread.start()

    @abstractmethod
    def seen(self, message: Message) -> None:
        """A record, on the watching thread."""

    def close(self) -> None:
        """Blocks until the thread has ended."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(BATCH_RECORDS, POLL_S):
                if message.error() is None:
                    self.seen(message)
