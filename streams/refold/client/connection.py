"""Everything a client holds open, opened and closed in one place; sessions only refer to it."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from refold.client.fallback import Fallback
from refold.client.ordering import Lane
from refold.client.owners import Owners
from refold.client.reader import ReaderPool
from refold.client.routing import Directory, Router
from refold.client.rulings import Rulings
from refold.client.sender import Sender
from refold.client.usage.admission import Gates
from refold.client.usage.reads import UsageReads
from refold.core.slots import SlotMap
from refold.errors import TransientError, UsageError
from refold.settings import Settings
from refold.topology.names import TopicNames
from refold.wire.blobs import BlobStore
from refold.wire.confluent import use_registry

#: Sessions whose memory (last accepted seq, send queue) is kept although the caller holds no reference to
#: them any more: 1 KB each, 10 MB.
SESSIONS_KEPT_MAX: Final = 10_000

#: Sessions whose lane holds events in flight or failed and not decided upon. Their memory is never dropped: a
#: new lane would let the next event overtake the failed one. 100 000 with a 1 KB event each are 200 MB, an
#: outage in which nobody retries; beyond it appends to further sessions are refused.
UNDECIDED_SESSIONS_MAX: Final = 100_000

#: From so many of them on it is looked whether some have been decided meanwhile.
UNDECIDED_LOOK_MIN: Final = 1_000

METADATA_TIMEOUT_S: Final = 10.0

#: syslog's "critical": a crash inside librdkafka, nothing else.
LOG_LEVEL: Final = 2

#: Kafka's own default of a topic's max.message.bytes, assumed where the topic may not be described.
RECORD_BYTES_DEFAULT: Final = 1_048_588

#: Up to this size no topic refuses a record that was set up by `refold topology apply`, so it is not asked.
RECORD_BYTES_UNCHECKED: Final = 512 * 1024

#: Record batch header, record header fields and varints: about 100 bytes, rounded up.
RECORD_OVERHEAD_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Options:
    """What distinguishes this client; everything else is in ``settings``."""

    settings: Settings
    bootstrap: str | None
    tenant: str
    producer_id: str
    producer_epoch: int

    def kafka_config(self, role: Any) -> dict[str, Any]:
        config = self.settings.kafka_config(role)
        if self.bootstrap is not None:
            config["bootstrap.servers"] = self.bootstrap
        # librdkafka prints to the embedding program's stderr, once per failed connection attempt. What goes
        # wrong is in our errors; `kafka.librdkafka = {"log_level": "6"}` brings its own words back.
        config.setdefault("log_level", LOG_LEVEL)
        return config


class SessionMemory:
    """What the client knows of one session: its send queue and the last seq it saw accepted."""

    __slots__ = ("__weakref__", "_newest", "heard", "lane", "last_seq", "order")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.last_seq = 0
        #: Inbox offset of the newest event that was seen accepted.
        self._newest = -1
        #: Told of every event of this client that was accepted: its type, its operation where it says one,
        #: and its seq.
        self.heard: Callable[[str, str | None, int], None] | None = None
        #: Held from the start of an append until its event is queued, so that concurrent appends keep the
        #: order of their calls although one of them uploads a payload first.
        self.order = asyncio.Lock()

    def accepted(self, offset: int, seq: int) -> None:
        """The event at this offset was accepted. Rulings may be heard in another order than that of the
        inbox; and a later event may have a smaller seq, where somebody else or the idle time deleted the
        session."""
        if offset > self._newest:
            self._newest = offset
            self.last_seq = seq


class Connection:
    """Made by :meth:`open`; use from one event loop."""

    def __init__(self, options: Options) -> None:
        settings = options.settings
        self.options = options
        self.names = TopicNames(settings.topic_prefix)
        self.blobs = BlobStore(settings.blobs.url)
        self.inline_bytes_max = settings.blobs.inline_bytes_max
        self.request_timeout_s = settings.client.request_timeout_ms / 1000
        directory = self._directory = Directory(
            options.kafka_config("producer"), self.names.group, self.names.inbox, self.request_timeout_s
        )
        self.watch = directory.watch
        told = {"error_cb": self.watch.told}
        self.sender = Sender(
            {**options.kafka_config("producer"), **told},
            settings.client.delivery_timeout_ms,
            because=self.watch.because,
            producer=settings.client.producer,
        )
        self.reader_config = {**options.kafka_config("reader"), **told}
        self.readers = ReaderPool(self.reader_config, self.watch.because)
        token = settings.client.bearer_token
        self.owners = Owners(
            Router(directory),
            token=None if token is None else token.get_secret_value(),
            request_timeout_s=self.request_timeout_s,
        )
        self.usage = UsageReads(self.owners, lambda: self.slots.partitions)
        self.gates = Gates()
        self.fallback = Fallback(self.readers, directory, self.names)
        self.rulings = Rulings(self.owners, options.producer_id, self.fallback.ruling, self.watch.because)
        self.slots = SlotMap(1)
        #: One counter for all sessions: per session it only has to rise, and nothing has to be remembered.
        self.counter = itertools.count(1)
        self._record_bytes_max: int | None = None
        self._busy: set[Lane] = set()
        self._memories: weakref.WeakValueDictionary[bytes, SessionMemory] = weakref.WeakValueDictionary()
        self._kept: OrderedDict[bytes, SessionMemory] = OrderedDict()
        self._undecided: dict[bytes, SessionMemory] = {}
        self._look_at = UNDECIDED_LOOK_MIN

    async def open(self) -> None:
        """Learn the partition count; raises when the cluster or the inbox topic is not there."""
        use_registry(self.options.settings.registry_url)
        self.slots = SlotMap(await self._directory.partition_count(METADATA_TIMEOUT_S))
        await self.owners.__aenter__()

    async def close(self, timeout_s: float) -> None:
        """Wait for queued events (at most ``timeout_s``), then disconnect; what is left fails."""
        async with AsyncExitStack() as closing:
            # From the last to the first, each also when the one before was cut short by a cancellation: else
            # threads and connections would outlive the client.
            closing.callback(self._directory.close)
            closing.push_async_callback(self.readers.close)
            closing.push_async_callback(self._close_owners)
            closing.push_async_callback(self.sender.close, 1.0)
            closing.push_async_callback(self.owners.router.close)
            closing.push_async_callback(self.rulings.close)
            closing.push_async_callback(self.watch.close)
            closing.callback(self._close_lanes)
            if self._busy:
                settled = [asyncio.ensure_future(lane.settle()) for lane in self._busy]
                await asyncio.wait(settled, timeout=timeout_s)

    async def _close_owners(self) -> None:
        if self.owners.is_open:
            await self.owners.__aexit__(None, None, None)

    def _close_lanes(self) -> None:
        for lane in list(self._busy):
            lane.close()

    def partition_of(self, key: bytes) -> int:
        return self.slots.partition(key)

    def memory(self, key: bytes) -> SessionMemory:
        """The session's memory, the same object as long as anyone holds it, its lane is not idle, or it is
        among the newest."""
        memory = self._memories.get(key)
        if memory is None:
            lane = Lane(self.sender, self.names.inbox, key, self.partition_of, self._busy)
            memory = self._memories[key] = SessionMemory(lane)
        self._kept[key] = memory
        self._kept.move_to_end(key)
        if len(self._kept) > SESSIONS_KEPT_MAX:
            oldest, dropped = self._kept.popitem(last=False)
            if not dropped.lane.idle:
                self._undecided[oldest] = dropped
                if len(self._undecided) >= self._look_at:
                    self._drop_decided()
        return memory

    def check_room(self) -> None:
        """Raises TransientError when too many sessions wait for their callers' decision."""
        if len(self._undecided) >= UNDECIDED_SESSIONS_MAX and not self._drop_decided():
            raise TransientError(
                f"{UNDECIDED_SESSIONS_MAX} sessions have events that are not known to be durable. Not sent. "
                "`session.retry()` sends them again, `session.abandon()` gives them up"
            )

    def _drop_decided(self) -> bool:
        """Forget the lanes that have become idle since; true when there is room again. Its cost is spread
        over as many evictions as it leaves lanes."""
        self._undecided = {key: memory for key, memory in self._undecided.items() if not memory.lane.idle}
        self._look_at = max(UNDECIDED_LOOK_MIN, 2 * len(self._undecided))
        return len(self._undecided) < UNDECIDED_SESSIONS_MAX

    async def check_size(self, key: bytes, value: bytes, header_bytes: int, event_type: str) -> None:
        """Raises UsageError, before anything is sent, for an event the inbox would refuse."""
        size = len(key) + len(value) + header_bytes + RECORD_OVERHEAD_BYTES
        if size <= RECORD_BYTES_UNCHECKED:
            return
        if self._record_bytes_max is None:
            self._record_bytes_max = await self._describe_record_bytes_max()
        if size > self._record_bytes_max:
            raise UsageError(
                f"the {event_type} event has {len(value)} bytes after large fields went to the blob store; "
                f"topic {self.names.inbox!r} takes {self._record_bytes_max}. Not sent. Many fields below "
                f"the inline limit ({self.inline_bytes_max} bytes) add up: split the event, or lower "
                "blobs.inline_bytes_max"
            )

    async def _describe_record_bytes_max(self) -> int:
        admin = AdminClient(self.options.kafka_config("admin"))
        resource = ConfigResource(ResourceType.TOPIC, self.names.inbox)
        try:
            answer = admin.describe_configs([resource], request_timeout=METADATA_TIMEOUT_S)[resource]
            configs = await asyncio.wrap_future(answer)
            return int(configs["max.message.bytes"].value)
        except (KafkaException, KeyError, ValueError):
            # Not allowed to describe: the broker's own refusal still names the limit.
            return RECORD_BYTES_DEFAULT


def new_producer_id() -> str:
    return f"p-{uuid.uuid4().hex}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000
