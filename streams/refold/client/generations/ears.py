"""Markers of the generations that run in this process: a stop, another attempt, the end.

It has a feed of its own, which is not in a hurry: recording must not cost reading record by record what was
recorded. A generation that is followed here as well is on the hub's feed for that. Use from one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from refold.client.generations.feed import Feed, Records
from refold.core.progress import Batch, Marker
from refold.errors import InvalidRecord, RefoldError, TransientError
from refold.wire.batches import decode_item
from refold.wire.framing import ID_FRAME_BYTES

#: Kinds of frame (schema ids) that are known to be batches: one per schema version.
BATCH_FRAMES_MAX: Final = 16


class Ear:
    """Hears the markers of one generation from the moment it is made: for whoever generates it. Batches are
    not even decoded for it, so that recording does not cost reading what was recorded."""

    __slots__ = ("_heard", "_tell", "generation", "key", "partition")

    def __init__(self, key: bytes, generation: str, partition: int) -> None:
        self.key = key
        self.generation = generation
        self.partition = partition
        self._heard: list[Marker] = []
        self._tell: Callable[[Marker], None] | None = None

    def attach(self, tell: Callable[[Marker], None]) -> None:
        """Tell what was heard so far, then everything at once. (So far: between asking for the attempt and
        its ruling, which is a handful.)"""
        heard, self._heard = self._heard, []
        self._tell = tell
        for marker in heard:
            tell(marker)

    def hear(self, marker: Marker) -> None:
        if self._tell is None:
            self._heard.append(marker)
        else:
            self._tell(marker)


class Ears:
    """All ears of a client, and the feed they share. Invariant: a partition is read while an ear is on it."""

    def __init__(self, config: dict[str, Any], topic: str) -> None:
        self._config = config
        self._topic = topic
        self._feed: Feed | None = None
        self._ears: dict[bytes, list[Ear]] = {}
        #: Ears per partition that is read, or about to be.
        self._counts: dict[int, int] = {}
        self._adding: dict[int, asyncio.Task[None]] = {}
        self._batch_frames: set[bytes] = set()
        self._closed = False

    async def listen(self, key: bytes, generation: str, partition: int) -> Ear:
        """Hear the generation's markers from now on, until :meth:`unlisten`."""
        if self._closed:
            raise TransientError("the client was closed")
        ear = Ear(key, generation, partition)
        self._ears.setdefault(key, []).append(ear)
        self._counts[partition] = self._counts.get(partition, 0) + 1
        try:
            if partition not in self._adding:
                self._adding[partition] = asyncio.create_task(self._add(partition), name="refold-ears")
            # Shared: whoever is cancelled leaves the others their answer.
            await asyncio.shield(self._adding[partition])
        except BaseException:
            self.unlisten(ear)
            raise
        return ear

    def unlisten(self, ear: Ear) -> None:
        of_key = self._ears.get(ear.key, [])
        if ear not in of_key:
            return
        of_key.remove(ear)
        if not of_key:
            del self._ears[ear.key]
        self._counts[ear.partition] -= 1
        if not self._counts[ear.partition]:
            del self._counts[ear.partition]
            self._drop(ear.partition)

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._adding.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._feed is not None:
            await self._feed.close()

    async def _add(self, partition: int) -> None:
        try:
            if self._feed is None or not self._feed.alive:
                self._feed = Feed(self._config, self._topic, self._deliver, self._broken, unhurried=True)
            feed = self._feed
            await feed.add(partition)
        except BaseException:
            # Whoever listens next tries anew.
            if self._adding.get(partition) is asyncio.current_task():
                del self._adding[partition]
            raise
        if partition not in self._counts:
            feed.remove(partition)

    def _drop(self, partition: int) -> None:
        self._adding.pop(partition, None)
        if self._feed is not None:
            self._feed.remove(partition)

    def _deliver(self, records: Records) -> None:
        ears_of, batch_frames = self._ears, self._batch_frames
        for message in records:
            value = message.value()
            # Not even decoded, once it is known what batches look like.
            if value is None or value[:ID_FRAME_BYTES] in batch_frames:
                continue
            if (ears := ears_of.get(message.key() or b"")) is None:
                continue
            try:
                item = decode_item(value)
            except InvalidRecord:
                continue  # The fold rejects it; it is nobody's marker.
            if isinstance(item, Batch):
                if len(batch_frames) < BATCH_FRAMES_MAX:
                    batch_frames.add(value[:ID_FRAME_BYTES])
            elif isinstance(item, Marker):
                for ear in list(ears):
                    if ear.generation == item.generation:
                        ear.hear(item)

    def _broken(self, partition: int, error: RefoldError) -> None:
        """The partition cannot be read on (recreated, cut below us). What was missed meanwhile, the ruling on
        the next renewal says too."""
        self._drop(partition)
        if not self._closed and partition in self._counts:
            again = self._adding[partition] = asyncio.create_task(self._again(partition), name="refold-ears")
            again.add_done_callback(_look)

    async def _again(self, partition: int) -> None:
        with contextlib.suppress(RefoldError):
            await self._add(partition)


def _look(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
