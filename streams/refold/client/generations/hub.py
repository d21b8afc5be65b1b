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
from refold.errors import InvalidRecord, RefoldError, TransientError
from refold.wire.batches import decode_item

TrackId = tuple[bytes, str]
Sink = Callable[[int, int, int, bytes, Item], None]
"""Called with partition, offset, append time in ms, session key and item."""

Regained = Callable[[int, int], None]
"""Called with a partition that could not be read for a while, and the offset from which it is again."""

#: Between two tries to read a watched partition again: a broker that is away is asked once a second.
AGAIN_S: Final = 1.0


class Hub:
    def __init__(self, config: dict[str, Any], topic: str, backfills: Backfills) -> None:
        self._config = config
        self._topic = topic
        self.backfills = backfills
        self._feed: Feed | None = None
        #: Partition → next offset the live feed will deliver.
        self._live: dict[int, int] = {}
        self._adding: dict[int, asyncio.Task[None]] = {}
        #: Of a partition being added: where what came before the answer to that ended. It is dropped, because
        #: nobody's place is known yet, and whoever follows reads it from the topic.
        self._ahead: dict[int, int] = {}
        self._tracks: dict[TrackId, Track] = {}
        self._by_key: dict[bytes, dict[str, Track]] = {}
        self._lingering: dict[TrackId, asyncio.TimerHandle] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._sinks: list[tuple[frozenset[int], Sink, Regained]] = []
        #: Watched partitions that are not read at the moment.
        self._regaining: dict[int, asyncio.Task[None]] = {}
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

    async def watch(self, partitions: frozenset[int], sink: Sink, regained: Regained) -> dict[int, int]:
        """Call ``sink`` with every item of these partitions from now on, until :meth:`unwatch`; returns where
        now is, per partition. Where the feed of one breaks off it is begun anew, and ``regained`` is called:
        what lies before that place has not been heard."""
        self._sinks.append((partitions, sink, regained))
        return {partition: await self._live_at(partition) for partition in sorted(partitions)}

    def unwatch(self, sink: Sink) -> None:
        gone = [watch[0] for watch in self._sinks if watch[1] == sink]
        self._sinks = [watch for watch in self._sinks if watch[1] != sink]
        for partition in sorted(frozenset().union(*gone)):
            self._release(partition)

    async def close(self) -> None:
        self._closed = True
        for timer in self._lingering.values():
            timer.cancel()
        for track in list(self._tracks.values()):
            track.fail(TransientError("the client was closed"))
        tasks = [*self._loads, *self._adding.values(), *self._regaining.values()]
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
        self._ahead[partition] = 0
        try:
            begin = await self._feed.add(partition)
            # The feed's thread may deliver before this task is woken; what an assignment before this one left
            # behind lies in front of the beginning.
            self._live[partition] = max(begin, self._ahead[partition])
        finally:
            del self._ahead[partition]

    def _release(self, partition: int) -> None:
        used = any(track.partition == partition for track in self._tracks.values())
        if used or self._watched(partition):
            return
        if self._live.pop(partition, None) is not None and self._feed is not None:
            self._feed.remove(partition)

    def _watched(self, partition: int) -> bool:
        return any(partition in watch[0] for watch in self._sinks)

    async def _regain(self, partition: int) -> None:
        while self._watched(partition) and not self._closed:
            try:
                live = await self._live_at(partition)
            except RefoldError:
                await asyncio.sleep(AGAIN_S)
                continue
            for partitions, _, regained in list(self._sinks):
                if partition in partitions:
                    regained(partition, live)
            return

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
            live = self._live.get(partition)
            if live is None and partition in self._ahead:
                self._ahead[partition] = offset + 1
            if live is None or offset < live:
                continue  # Not begun or removed, or of an assignment before the present one.
            self._live[partition] = offset + 1
            key, value = message.key(), message.value()
            tracks = self._by_key.get(key)
            sinks = [sink for partitions, sink, _ in self._sinks if partition in partitions]
            if key is None or value is None or (tracks is None and not sinks):
                continue
            try:
                item = decode_item(value)
            except InvalidRecord:
                continue  # The fold rejects it; it is nobody's text.
            append_ms = message.timestamp()[1]
            track = None if tracks is None else tracks.get(item.generation)
            if track is not None:
                track.feed(item, offset, append_ms)
            for sink in sinks:
                sink(partition, offset, append_ms, key, item)

    def _broken(self, partition: int, error: RefoldError) -> None:
        """The partition cannot be read on (recreated, cut below us). Followers begin anew by themselves; for
        who watches it is begun anew here."""
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
        if self._watched(partition) and partition not in self._regaining and not self._closed:
            task = asyncio.create_task(self._regain(partition), name="refold-regain")
            self._regaining[partition] = task
            task.add_done_callback(lambda _: self._regaining.pop(partition, None))
