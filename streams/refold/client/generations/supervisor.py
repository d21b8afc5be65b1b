"""Noticing generations whose process fell silent, over all partitions, and taking them over.

What is watched are the records of the batches topic: a begin opens an entry, batches and heartbeats keep it
alive, an end closes it. An entry that is silent for its lease is due. The fold's ruling decides, so a wrong
guess here costs one refused event.

Bounded: ``WATCHED_MAX`` entries (the longest unheard of go), ``TAKEOVERS_MAX`` at once.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from confluent_kafka import Message

from refold.client.generations.frames import Item
from refold.client.generations.limits import (
    CLAIM_PAUSE_S,
    CLAIM_PAUSE_S_MAX,
    LEASE_S_DEFAULT,
    SUPERVISE_TICK_S,
    TAKEOVERS_MAX,
    WATCHED_MAX,
)
from refold.client.generations.takeover import claim
from refold.core.progress import Ack, Marker
from refold.core.slots import split_key
from refold.errors import InvalidRecord, NotFound, RefoldError, TransientError, UnavailableError
from refold.wire.batches import decode_item

if TYPE_CHECKING:
    from refold.client.client import Refold
    from refold.client.generations.service import Generations

log = logging.getLogger("refold.client")

Identity = tuple[bytes, str]

#: No generator can have this name: names have no control characters.
FOREIGN: Final = "\0"


@dataclass(slots=True)
class Watched:
    """``heard_at``: monotonic seconds. ``generator`` is empty where the begin was not seen."""

    attempt: int
    lease_s: float
    generator: str
    heard_at: float
    claiming: bool = False

    @property
    def due(self) -> float:
        return self.heard_at + self.lease_s


class Watch:
    """Which generations are open and when each was last heard of. Pure: time is an argument."""

    def __init__(self, ours: Callable[[str], bool], entries_max: int = WATCHED_MAX) -> None:
        """``ours``: whether a generator of that name can be gone on with here."""
        self._ours = ours
        self._entries_max = entries_max
        #: Least recently heard of first.
        self._open: OrderedDict[Identity, Watched] = OrderedDict()
        self._heap: list[tuple[float, Identity]] = []

    def __len__(self) -> int:
        return len(self._open)

    def hear(self, key: bytes, item: Item, now: float) -> None:
        """A record of the topic, heard at ``now``; the past counts as its own time."""
        if isinstance(item, Ack):
            return
        identity = (key, item.generation)
        held = self._open.get(identity)
        if isinstance(item, Marker):
            if item.kind == "end":
                self._open.pop(identity, None)
                return
            if item.kind == "begin" and (held is None or item.attempt > held.attempt):
                claiming = held is not None and held.claiming
                made = Watched(item.attempt, item.lease_ms / 1000, item.generator, now, claiming)
                self._put(identity, made)
                return
        elif held is None and item.attempt:
            # It began before the watch did; whose it is will be looked up if it falls silent.
            self._put(identity, Watched(item.attempt, LEASE_S_DEFAULT, "", now))
            return
        if held is not None and (isinstance(item, Marker) or item.attempt >= held.attempt):
            held.heard_at = max(held.heard_at, now)
            self._open.move_to_end(identity)

    def _put(self, identity: Identity, watched: Watched) -> None:
        self._open[identity] = watched
        self._open.move_to_end(identity)
        heapq.heappush(self._heap, (watched.due, identity))
        if len(self._open) > self._entries_max:
            self._open.popitem(last=False)

    def due(self, now: float, most: int = WATCHED_MAX) -> list[Identity]:
        """Those silent for their lease, at most so many, each told once until :meth:`again` or
        :meth:`forget`."""
        found: list[Identity] = []
        while self._heap and self._heap[0][0] <= now and len(found) < most:
            _, identity = heapq.heappop(self._heap)
            watched = self._open.get(identity)
            if watched is None or watched.claiming or not self._may(watched):
                continue
            if watched.due > now:
                heapq.heappush(self._heap, (watched.due, identity))
                continue
            watched.claiming = True
            found.append(identity)
        return found

    def again(self, identity: Identity, at: float) -> None:
        """It is still open: look again when it has been silent until ``at``, or longer than its lease."""
        if (watched := self._open.get(identity)) is not None:
            watched.claiming = False
            heapq.heappush(self._heap, (max(at, watched.due), identity))

    def forget(self, identity: Identity) -> None:
        self._open.pop(identity, None)

    def foreign(self, identity: Identity) -> None:
        """Nobody here can go on with it: watched no longer, but remembered as such until it ends."""
        if (watched := self._open.get(identity)) is not None:
            watched.generator, watched.claiming = FOREIGN, False

    def join(self, past: Watch) -> None:
        """Take over what was open before this watch began; what it has heard itself is newer."""
        for identity, watched in past._open.items():
            held = self._open.get(identity)
            if held is None:
                self._put(identity, watched)
            elif not held.generator and held.attempt == watched.attempt:
                held.generator, held.lease_s = watched.generator, watched.lease_s
                heapq.heappush(self._heap, (held.due, identity))

    def _may(self, watched: Watched) -> bool:
        return not watched.generator or self._ours(watched.generator)


class Supervisor:
    """``run`` until cancelled."""

    def __init__(
        self, client: Refold, service: Generations, names: frozenset[str], lookback_s: float
    ) -> None:
        """``names``: of generators; empty: all that are registered, also later on."""
        self._client = client
        self._service = service
        self._names = names
        self._watch = Watch(self._ours)
        self._lookback_s = lookback_s
        self._claims: dict[Identity, asyncio.Task[None]] = {}
        #: Partitions whose past is to be looked at, and where it ends.
        self._unheard: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    async def run(self) -> None:
        past = asyncio.create_task(self._look_back_all())
        try:
            for partition, end in (await self._begin()).items():
                self._regained(partition, end)
            loop = asyncio.get_running_loop()
            while True:
                if past.done():
                    past.result()
                for identity in self._watch.due(loop.time(), TAKEOVERS_MAX - self._asking):
                    self._claim(identity)
                await asyncio.sleep(SUPERVISE_TICK_S)
        finally:
            self._service.hub.unwatch(self._heard)
            tasks = [*self._claims.values(), past]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self) -> dict[int, int]:
        """Watch all partitions; a broker that is away is waited for."""
        partitions = frozenset(range(self._service.connection.slots.partitions))
        pause = CLAIM_PAUSE_S
        while True:
            try:
                return await self._service.hub.watch(partitions, self._heard, self._regained)
            except (TransientError, UnavailableError) as error:
                self._service.hub.unwatch(self._heard)
                if self._service.closed:
                    raise
                log.warning("supervisor_waits: %s", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, CLAIM_PAUSE_S_MAX)

    @property
    def _asking(self) -> int:
        """Take-overs on the way. Not those whose answer runs: it may do so for minutes, and other generations
        must not wait for its end."""
        return sum(not self._service.runs(*identity) for identity in self._claims)

    def _regained(self, partition: int, end: int) -> None:
        self._unheard.put_nowait((partition, end))

    def _heard(self, partition: int, offset: int, append_ms: int, key: bytes, item: Item) -> None:
        self._watch.hear(key, item, asyncio.get_running_loop().time())

    async def _look_back_all(self) -> None:
        """One partition after the other; what falls silent meanwhile is noticed all the same."""
        while True:
            partition, end = await self._unheard.get()
            pause = CLAIM_PAUSE_S
            while True:
                try:
                    await self._look_back(partition, end)
                    break
                except (TransientError, UnavailableError, NotFound):
                    # NotFound: retention has moved since the place was asked for.
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, CLAIM_PAUSE_S_MAX)

    async def _look_back(self, partition: int, end: int) -> None:
        """What was open before this process watched. Read in the reader's thread into a watch of its own."""
        past = Watch(self._ours)
        now, wall_ms = asyncio.get_running_loop().time(), time.time_ns() // 1_000_000

        def visit(message: Message) -> bool:
            if message.key() is None:
                return True
            try:
                item = decode_item(message.value())
            except InvalidRecord:
                return True
            age_s = max(0.0, (wall_ms - message.timestamp()[1]) / 1000)
            past.hear(message.key(), item, now - age_s)
            return True

        since = wall_ms - int(self._lookback_s * 1000)
        await self._service.backfills.since(partition, since, visit, end)
        self._watch.join(past)

    def _ours(self, name: str) -> bool:
        return (not self._names or name in self._names) and self._service.generators.get(name) is not None

    def _claim(self, identity: Identity) -> None:
        task = asyncio.create_task(self._take_over(identity), name="refold-takeover")
        self._claims[identity] = task
        task.add_done_callback(lambda _: self._claims.pop(identity, None))

    async def _take_over(self, identity: Identity) -> None:
        key, generation = identity
        loop = asyncio.get_running_loop()
        try:
            tenant, session_id = split_key(key)
            session = self._client.session(session_id, tenant=tenant)
        except InvalidRecord:
            # Not a session's: the fold has rejected it.
            self._watch.forget(identity)
            return
        try:
            found = await claim(self._service, session, generation, loop.time())
        except NotFound:
            found = "ended"
        except RefoldError as error:
            log.warning("takeover_failed id=%s: %s", generation, error)
            found = "elsewhere"
        except Exception as error:
            # Whatever it is, it must not be the last that is done for this generation.
            log.warning("takeover_failed id=%s: %s", generation, type(error).__name__)
            found = "elsewhere"
        if found == "ended":
            self._watch.forget(identity)
        elif found == "foreign":
            self._watch.foreign(identity)
        else:
            self._watch.again(identity, loop.time() + (0.0 if found == "ran" else CLAIM_PAUSE_S_MAX))
