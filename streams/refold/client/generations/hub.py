"""One consumer per process for all followers: partitions are read while somebody follows a generation on
them.

Invariants: a record is looked at once whatever the number of followers; a generation has one track; nothing
here waits for a follower. Use from one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from refold.client.generations.backfill import Backfills
from refold.client.generations.feed import Feed, Records
from refold.client.generations.frames import Item
from refold.client.generations.limits import (
    LINGER_S,
    RING_BYTES_MAX,
    RING_BYTES_MIN,
    RINGS_BYTES_MAX,
)
from refold.client.generations.track import Track
from refold.core.progress import Batch, Marker
from refold.errors import InvalidRecord, RefoldError, TransientError
from refold.wire.batches import decode_item
from refold.wire.framing import ID_FRAME_BYTES

TrackId = tuple[bytes, str]
Sink = Callable[[int, int, int, bytes, Item], None]
"""Called with partition, offset, append time in ms, session key and item."""


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


class Hub:
    def __init__(self, config: dict[str, Any], topic: str, backfills: Backfills) -> None:
        self._config = config
        self._topic = topic
        self.backfills = backfills
        self._feed: Feed | None = None
        #: Partition → next offset the live feed will deliver.
        self._live: dict[int, int] = {}
        self._adding: dict[int, asyncio.Task[None]] = {}
        self._tracks: dict[TrackId, Track] = {}
        self._by_key: dict[bytes, dict[str, Track]] = {}
        self._lingering: dict[TrackId, asyncio.TimerHandle] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._ears: dict[bytes, list[Ear]] = {}
        self._batch_frames: set[bytes] = set()
        self._sinks: list[tuple[frozenset[int], Sink]] = []
        self._closed = False

    @property
    def tracks(self) -> int:
        return len(self._tracks)

    @asynccontextmanager
    async def track(self, key: bytes, generation: str, partition: int, first: int) -> AsyncIterator[Track]:
        """The generation's track, made if need be; it stays while it is used, and ``LINGER_S`` longer."""
        identity = (key, generation)
        track = self._tracks.get(identity)
        if track is None or track.failure is not None:
            live = await self._live_at(partition)
            # Another follower may have made it while this one waited.
            track = self._tracks.get(identity)
            if track is None or track.failure is not None:
                track = self._make(key, generation, partition, first, live)
        if (timer := self._lingering.pop(identity, None)) is not None:
            timer.cancel()
        track.users += 1
        try:
            yield track
        finally:
            track.users -= 1
            if not track.users and self._tracks.get(identity) is track:
                self._linger(identity, track)

    def known(self, key: bytes, generation: str) -> Track | None:
        """The track, if this process follows the generation and its feed is good."""
        track = self._tracks.get((key, generation))
        return None if track is None or track.failure is not None else track

    async def listen(self, key: bytes, generation: str, partition: int) -> Ear:
        """Hear the generation's markers from now on, until :meth:`unlisten`."""
        ear = Ear(key, generation, partition)
        self._ears.setdefault(key, []).append(ear)
        try:
            await self._live_at(partition)
        except BaseException:
            self.unlisten(ear)
            raise
        return ear

    def unlisten(self, ear: Ear) -> None:
        of_key = self._ears.get(ear.key, [])
        if ear in of_key:
            of_key.remove(ear)
            if not of_key:
                del self._ears[ear.key]
            self._release(ear.partition)

    async def watch(self, partitions: frozenset[int], sink: Sink) -> dict[int, int]:
        """Call ``sink`` with every item of these partitions from now on, until :meth:`unwatch`; returns where
        now is, per partition."""
        self._sinks.append((partitions, sink))
        return {partition: await self._live_at(partition) for partition in sorted(partitions)}

    def unwatch(self, sink: Sink) -> None:
        gone = [partitions for partitions, held in self._sinks if held == sink]
        self._sinks = [(partitions, held) for partitions, held in self._sinks if held != sink]
        for partition in sorted(frozenset().union(*gone)):
            self._release(partition)

    async def close(self) -> None:
        self._closed = True
        for timer in self._lingering.values():
            timer.cancel()
        for track in list(self._tracks.values()):
            track.fail(TransientError("the client was closed"))
        tasks = [*self._loads, *self._adding.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._feed is not None:
            await self._feed.close()

    # Partitions

    async def _live_at(self, partition: int) -> int:
        while partition not in self._live:
            if self._closed:
                raise TransientError("the client was closed")
            task = self._adding.get(partition)
            if task is None:
                task = self._adding[partition] = asyncio.create_task(self._add(partition))
                task.add_done_callback(lambda _: self._adding.pop(partition, None))
            # Shared: whoever is cancelled leaves the others their answer.
            await asyncio.shield(task)
        return self._live[partition]

    async def _add(self, partition: int) -> None:
        if self._feed is None or not self._feed.alive:
            self._feed = Feed(self._config, self._topic, self._deliver, self._broken)
        self._live[partition] = await self._feed.add(partition)

    def _release(self, partition: int) -> None:
        used = any(track.partition == partition for track in self._tracks.values())
        used = used or any(ear.partition == partition for ears in self._ears.values() for ear in ears)
        if used or any(partition in partitions for partitions, _ in self._sinks):
            return
        if self._live.pop(partition, None) is not None and self._feed is not None:
            self._feed.remove(partition)

    # Tracks

    def _make(self, key: bytes, generation: str, partition: int, first: int, live: int) -> Track:
        async def read_page(start: int, end: int) -> Any:
            return await self.backfills.page(partition, key, generation, start, end)

        track = Track(key, generation, partition, first, live, read_page)
        track.bytes_max = self._ring_bytes
        self._tracks[key, generation] = track
        self._by_key.setdefault(key, {})[generation] = track
        load = asyncio.create_task(track.load(), name="refold-backfill")
        self._loads.add(load)
        load.add_done_callback(self._loads.discard)
        return track

    def _ring_bytes(self) -> int:
        return max(RING_BYTES_MIN, min(RING_BYTES_MAX, RINGS_BYTES_MAX // max(1, len(self._tracks))))

    def _linger(self, identity: TrackId, track: Track) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        delay = 0.0 if track.failure is not None else LINGER_S
        self._lingering[identity] = loop.call_later(delay, self._forget, identity, track)

    def _forget(self, identity: TrackId, track: Track) -> None:
        self._lingering.pop(identity, None)
        if track.users or self._tracks.get(identity) is not track:
            return
        del self._tracks[identity]
        key, generation = identity
        of_key = self._by_key[key]
        del of_key[generation]
        if not of_key:
            del self._by_key[key]
        self._release(track.partition)

    # The feed

    def _deliver(self, records: Records) -> None:
        for message in records:
            partition, offset = message.partition() or 0, message.offset() or 0
            if offset < self._live.get(partition, offset + 1):
                continue  # Removed, or of an assignment before the present one.
            self._live[partition] = offset + 1
            key, value = message.key(), message.value()
            tracks, ears = self._by_key.get(key), self._ears.get(key)
            sinks = [sink for partitions, sink in self._sinks if partition in partitions]
            if value is None or (tracks is None and ears is None and not sinks):
                continue
            if tracks is None and not sinks and value[:ID_FRAME_BYTES] in self._batch_frames:
                continue
            try:
                item = decode_item(value)
            except InvalidRecord:
                continue  # The fold rejects it; it is nobody's text.
            self._hear(item, value, ears)
            append_ms = message.timestamp()[1]
            track = None if tracks is None else tracks.get(item.generation)
            if track is not None:
                track.feed(item, offset, append_ms)
            for sink in sinks:
                sink(partition, offset, append_ms, key, item)

    def _hear(self, item: Item, value: bytes, ears: list[Ear] | None) -> None:
        if isinstance(item, Batch):
            if len(self._batch_frames) < BATCH_FRAMES_MAX:
                self._batch_frames.add(value[:ID_FRAME_BYTES])
        elif isinstance(item, Marker) and ears is not None:
            for ear in list(ears):
                if ear.generation == item.generation:
                    ear.hear(item)

    def _broken(self, partition: int, error: RefoldError) -> None:
        """The partition cannot be read on (recreated, cut below us). Followers begin anew by themselves."""
        error = TransientError(f"the live feed of partition {partition} broke off: {error}")
        self._live.pop(partition, None)
        if self._feed is not None:
            self._feed.remove(partition)
        for identity, track in list(self._tracks.items()):
            if track.partition == partition:
                track.fail(error)
                with contextlib.suppress(KeyError):
                    if not track.users:
                        self._forget(identity, track)
        if not self._closed and any(
            ear.partition == partition for ears in self._ears.values() for ear in ears
        ):
            # What they missed meanwhile, the ruling on the next renewal says too.
            again = asyncio.create_task(self._again(partition), name="refold-hub")
            self._loads.add(again)
            again.add_done_callback(self._loads.discard)

    async def _again(self, partition: int) -> None:
        with contextlib.suppress(RefoldError):
            await self._live_at(partition)
