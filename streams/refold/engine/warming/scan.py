"""Rule H3: all keys of what is unread, looked at once where a session waits for what it is not in.

Nothing is decoded, packed or written, which is most of what a restore costs: a record takes a fourth of the
time. Whoever is not met is as the DB has them: absent, or of the base. Of those who are waited for the last
record is kept, so that afterwards each of them is known.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from operator import methodcaller
from typing import Final

from confluent_kafka import Message

from refold.engine.warming.keyset import Keys

#: Below it reading on is as good: 50 000 records are 0.2 s.
OFFSETS_MIN: Final = 50_000

#: Looked at in one turn of a restore: a fourth of a second.
TURN_OFFSETS: Final = 250_000

#: Records of sessions that are waited for: more than that is read with the ranges. 256 of 32 KB.
FOUND_BYTES_MAX: Final = 8 * 1024 * 1024

_KEY: Final = methodcaller("key")


class Scan:
    """Of [``next``, ``end``) of the state changelog, forward; fed by a ``reader.RangeReader``."""

    __slots__ = ("_absent", "_keys", "_size", "_wanted", "bytes", "count", "end", "found", "next")

    def __init__(self, keys: Keys, wanted: Set[bytes], start: int, end: int) -> None:
        self._keys = keys
        self._wanted = wanted
        self.next, self.end = start, end
        #: Of the sessions that are waited for: the last record.
        self.found: dict[bytes, Message] = {}
        self._size = 0
        self._absent: Set[bytes] = frozenset()
        self.count = 0
        self.bytes = 0

    def take(self, messages: Sequence[Message]) -> int:
        """All of them: nothing is held that grows."""
        keyed = messages
        keys = list(map(_KEY, messages))
        if None in keys:
            keyed = [message for message in messages if message.key() is not None]
            keys = list(map(_KEY, keyed))
        self._keys.add_all(keys)
        self.count += len(keys)
        self.bytes += sum(map(len, keyed)) + sum(map(len, keys))
        if not self._wanted.isdisjoint(keys):
            for key, message in zip(keys, keyed, strict=True):
                if key in self._wanted:
                    self._waited_for(key, message)
        return len(messages)

    def _waited_for(self, key: bytes, message: Message) -> None:
        self._size += len(message) - len(self.found.get(key, b""))
        self.found[key] = message
        if self._size > FOUND_BYTES_MAX:
            self._wanted = frozenset()
            self.found.clear()

    def ended(self) -> None:
        """All was looked at, and what was found is in the DB."""
        # Known exactly, where the keys hold some that were not met.
        self._absent = self._wanted - self.found.keys()
        self.found.clear()

    def met(self, key: bytes) -> bool:
        """False: there is no record of it. Only when all was looked at."""
        return key in self._keys and key not in self._absent
