"""When is a session back? When an event that was published during the restart is in the journal for it.

Watched from the side, in read_committed: the moment at which a reader of the journal, and an agent that waits
for the ruling, can know it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

BATCH_RECORDS: Final = 5_000
POLL_S: Final = 0.05


class LiveWatch:
    """A thread that notes the first journal record of each key from ``since`` (partition -> offset) on.

    ``first``: key -> ``time.monotonic()``, only of the keys asked for. Close it.
    """

    def __init__(
        self, kafka: Mapping[str, Any], topic: str, since: Mapping[int, int], keys: Collection[bytes]
    ) -> None:
        self.first: dict[bytes, float] = {}
        self._missing = set(keys)
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                **kafka,
                "group.id": f"{topic}-live",  # required by the client; nothing is committed or joined
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
            }
        )
        self._consumer.assign([TopicPartition(topic, p, offset) for p, offset in since.items()])
        self._thread = threading.Thread(target=self._run, name="live-watch", daemon=True)
        self._thread.start()

    @property
    def complete(self) -> bool:
        return not self._missing

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(BATCH_RECORDS, POLL_S):
                key = message.key()
                if message.error() is None and key in self._missing:
                    self._missing.discard(key)
                    self.first[key] = time.monotonic()
