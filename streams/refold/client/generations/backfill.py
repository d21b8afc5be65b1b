"""Reading one generation's items out of its partition: by a bounded pool of short reads.

A page is a range of offsets of which the items of one generation are kept, at most ``BACKFILL_PAGE_BYTES`` of
them and none behind its end; the reader then says where to go on. Decoding happens in the reader's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from confluent_kafka import Message

from refold.client.generations.limits import (
    BACKFILL_PAGE_BYTES,
    BACKFILL_SEEK_RECORDS_MAX,
    BACKFILLS_MAX,
    FRAME_OVERHEAD_BYTES,
)
from refold.core.progress import Marker
from refold.errors import InvalidRecord
from refold.wire.batches import decode_item

if TYPE_CHECKING:
    from refold.client.generations.track import Placed
    from refold.client.reader import Reader, ReaderPool


class Backfills:
    """All such reads of one client."""

    def __init__(self, readers: ReaderPool, topic: str) -> None:
        self._readers = readers
        self._topic = topic
        self._slots = asyncio.Semaphore(BACKFILLS_MAX)

    async def page(
        self, partition: int, key: bytes, generation: str, first: int, end: int
    ) -> tuple[list[Placed], int]:
        """Items in ``[first, end)`` and where to go on (``end`` when all was read).

        Raises NotFound when retention has removed ``first``, TransientError when the broker does not answer.
        """
        page = _Page(key, generation)

        def read(reader: Reader) -> None:
            reader.sweep(self._topic, partition, first, page.visit, last=end - 1)

        async with self._slots:
            run = self._readers.scan if end - first > BACKFILL_SEEK_RECORDS_MAX else self._readers.run
            await run(read)
        return page.placed, page.next_offset if page.full else end

    async def end(self, partition: int) -> int:
        """The partition's last stable offset."""
        async with self._slots:
            _, end = await self._readers.run(lambda reader: reader.end(self._topic, partition))
        return end

    async def start(self, partition: int) -> int:
        """The first offset retention has left."""
        async with self._slots:
            low, _ = await self._readers.run(lambda reader: reader.end(self._topic, partition))
        return low

    async def since(self, partition: int, time_ms: int, visit: Callable[[Message], bool], end: int) -> None:
        """Visit, in the reader's thread, what was appended from ``time_ms`` on and lies before ``end``."""

        def read(reader: Reader) -> None:
            first = reader.offset_at(self._topic, partition, time_ms)
            if first < end:
                reader.sweep(self._topic, partition, first, visit, last=end - 1)

        async with self._slots:
            await self._readers.scan(read)


class _Page:
    """Collects in the reader's thread."""

    def __init__(self, key: bytes, generation: str) -> None:
        self.placed: list[Placed] = []
        self.full = False
        self.next_offset = 0
        self._key = key
        self._generation = generation
        self._bytes = 0

    def visit(self, message: Message) -> bool:
        value = message.value()
        if message.key() != self._key or value is None:
            return True
        try:
            item = decode_item(value)
        except InvalidRecord:
            return True  # The fold rejects it; it is nobody's text.
        if item.generation != self._generation:
            return True
        offset = message.offset() or 0
        self.placed.append((item, offset, message.timestamp()[1]))
        self.next_offset = offset + 1
        self._bytes += len(value) + FRAME_OVERHEAD_BYTES
        # Behind the end there is nothing of it but acks: who has come for the text need not wait until all
        # that was appended since, of everybody, has been passed.
        ended = isinstance(item, Marker) and item.kind == "end"
        self.full = ended or self._bytes >= BACKFILL_PAGE_BYTES
        return not self.full
