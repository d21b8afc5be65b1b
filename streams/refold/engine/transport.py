"""Faust's transport on librdkafka: chunks instead of messages, our engine instead of acks.

Faust is the application shell (app, agents, services); this module is the official extension point
(``TRANSPORTS`` alias, ``transport.base.Transport``). What Faust would do for each message (ack, commit, seek,
flow control, producer buffer) is either not needed or raises: a call that bypasses the transaction must not
look as if it worked. Faust is pinned to one minor line and ``tests/engine/test_faust_contract.py`` fails when
a signature we override or a call order we rely on changes.

Invariant (rule R): ``flow_control.resume()`` clears every stream queue, so it is called once, before the
first poll; nothing here ever suspends it. ``consumer_generation_id`` is not used: assignment and fetch epochs
are exact.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from faust.transport import base
from faust.transport.consumer import Consumer as FaustConsumer
from faust.transport.drivers import TRANSPORTS
from faust.transport.producer import Producer as FaustProducer
from faust.types import TP, ConsumerMessage

from refold.engine.chunks import Chunk
from refold.engine.engine import Engine
from refold.errors import InvariantViolation, UsageError

SCHEME: Final = "refold"


def _outside(what: str) -> UsageError:
    return UsageError(
        f"{what} would bypass the transaction that spans state, outputs and offsets. Return outputs from"
        " the step"
        " (refold.engine.step) instead"
    )


class EngineConsumer(FaustConsumer):
    """Hands chunks from the engine's polling thread to Faust's conductor, one per topic partition and
    poll."""

    consumer_stopped_errors: ClassVar[tuple[type[BaseException], ...]] = ()
    mundane_level = "debug"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._chunks: deque[Chunk] = deque()
        self._arrived = asyncio.Event()
        self._owned: set[TP] = set()

    @property
    def engine(self) -> Engine:
        engine = getattr(self.app, "engine", None)
        if not isinstance(engine, Engine):
            raise InvariantViolation("the Faust app was started without an engine (refold.agents.app.build)")
        return engine

    async def subscribe(self, topics: Iterable[str]) -> None:
        names = self.engine.config.topics
        sources = {names.inbox, names.batches}
        if set(topics) != sources:
            raise UsageError(f"agents read {sorted(sources)}, not {sorted(topics)}")
        # Resuming clears every stream queue: once, while they are empty, before the first poll.
        self.app.flow_control.resume()
        self.resume_flow()
        self.engine.on_chunks = self._put
        self.engine.on_ownership = self._ownership
        self.app.start_engine()
        await self.app._fetcher.start()

    def _put(self, chunks: list[Chunk]) -> None:
        self._chunks.extend(chunks)
        self._arrived.set()

    async def _ownership(self, numbers: Sequence[int]) -> None:
        names = self.engine.config.topics
        self._owned = {TP(topic, number) for topic in (names.inbox, names.batches) for number in numbers}
        self.app.on_rebalance_start()
        await self.on_partitions_assigned(set(self._owned))
        self.app.on_rebalance_end()

    async def _drain_messages(self, fetcher: Any) -> None:
        callback, chunks, arrived = self.callback, self._chunks, self._arrived
        while not (self.should_stop or fetcher.should_stop):
            if not chunks:
                arrived.clear()
                await arrived.wait()
                continue
            chunk = chunks.popleft()
            tp = TP(chunk.topic, chunk.partition)
            await callback(
                ConsumerMessage(
                    chunk.topic,
                    chunk.partition,
                    chunk.next_offset - 1,
                    time.time(),
                    1,
                    [],
                    None,
                    chunk,
                    None,
                    tp=tp,
                    # Constant here: Faust drops what has another one, also of partitions that were kept.
                    generation_id=self.app.consumer_generation_id,
                )
            )

    def assignment(self) -> set[TP]:
        return set(self._owned)

    def ack(self, message: Any) -> bool:
        """Faust acks in ``finally``, also after an exception: meaningless here, offsets go with the
        transaction."""
        message.acked = True
        return True

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        return False

    async def wait_empty(self) -> None:
        """The engine drains (``worker.py``) before Faust stops."""

    async def on_stop(self) -> None:
        self._arrived.set()

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust's livelock detector reads its own ack bookkeeping, which is empty here."""

    # What belongs to Faust's own recovery and commit path. Called only by what refold forbids.

    async def create_topic(self, *args: Any, **kwargs: Any) -> None:
        """Topics are made by ``refold topology apply``."""

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        raise _outside("committing offsets")

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Any:
        raise _outside("reading single messages")

    def _new_topicpartition(self, topic: str, partition: int) -> TP:
        return TP(topic, partition)

    async def _seek(self, partition: TP, offset: int) -> None:
        raise _outside("seeking")

    async def seek_to_committed(self) -> Mapping[TP, int]:
        raise _outside("seeking")

    async def seek_wait(self, partitions: Mapping[TP, int]) -> None:
        raise _outside("seeking")

    def _to_message(self, tp: TP, record: Any) -> Any:
        raise _outside("reading single messages")

    def highwater(self, tp: TP) -> int:
        return 0

    def topic_partitions(self, topic: str) -> int | None:
        return int(self.engine.slots.partitions)

    async def earliest_offsets(self, *partitions: TP) -> Mapping[TP, int]:
        raise _outside("Faust's own recovery")

    async def highwaters(self, *partitions: TP) -> Mapping[TP, int]:
        raise _outside("Faust's own recovery")

    async def position(self, tp: TP) -> int | None:
        owner = self.engine.assignment.get(tp.partition)
        if owner is None:
            return None
        return owner.position if tp.topic == self.engine.config.topics.inbox else owner.batches_position

    def key_partition(self, topic: str, key: bytes | None, partition: int | None = None) -> int | None:
        return None if key is None else int(self.engine.slots.partition(key))


class EngineProducer(FaustProducer):
    """Faust never produces: outputs are effects, sent by the commit."""

    mundane_level = "debug"

    async def create_topic(self, *args: Any, **kwargs: Any) -> None:
        """Topics are made by ``refold topology apply``."""

    async def send(self, *args: Any, **kwargs: Any) -> Any:
        raise _outside("sending from an agent")

    async def send_and_wait(self, *args: Any, **kwargs: Any) -> Any:
        raise _outside("sending from an agent")

    def send_soon(self, fut: Any) -> None:
        raise _outside("sending from an agent")

    async def flush(self) -> None:
        return None


class EngineTransport(base.Transport):
    Consumer: ClassVar[Any] = EngineConsumer
    Producer: ClassVar[Any] = EngineProducer
    default_port = 9092
    driver_version = "refold/librdkafka"


def register() -> None:
    """Make ``broker="refold://…"`` mean this transport, in this process."""
    aliases: dict[str, str] = TRANSPORTS.aliases
    aliases[SCHEME] = f"{__name__}:EngineTransport"
