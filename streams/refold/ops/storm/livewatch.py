"""When is a session back? When an event that was published during the restart is in the journal for it.

Watched from the side, in read_committed: the moment at which a reader of the journal, and an agent that waits
for the ruling, can know it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import Message

from refold.ops.fleet.watch import Watch


class LiveWatch(Watch):
    """Notes the first journal record of each key from ``since`` (partition -> offset) on.

    ``first``: key -> ``time.monotonic()``, only of the keys asked for. Close it.
    """

    def __init__(
        self, kafka: Mapping[str, Any], topic: str, since: Mapping[int, int], keys: Collection[bytes]
    ) -> None:
        self.first: dict[bytes, float] = {}
        self._missing = set(keys)
        super().__init__(kafka, topic, since, "live")

    @property
    def complete(self) -> bool:
        return not self._missing

    def seen(self, message: Message) -> None:
        key = message.key()
        if key in self._missing:
            self._missing.discard(key)
            self.first[key] = time.monotonic()
