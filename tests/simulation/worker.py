"""One simulated worker process: the real engine, put together as ``refold.engine.worker`` does, on simulated
clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final

from refold.core.slots import SlotMap
from refold.engine.batchsource import BatchSource
from refold.engine.chunks import Chunk
from refold.engine.commit import Transactor
from refold.engine.config import EngineConfig
from refold.engine.engine import Engine
from refold.engine.poll import Poller
from refold.engine.restore import Restorer, TopicFacts
from refold.engine.sabotage import Sabotage
from refold.engine.standby.service import Standbys
from refold.engine.step import Limits
from refold.engine.takeover import Cluster
from refold.topology.groupoffsets import GroupOffsets

from .admin import Admin
from .assigned import AssignedConsumer
from .broker import DELETE_RETENTION_MS
from .consumer import GroupConsumer
from .disk import Database, Disk
from .groupreader import GroupReader
from .kernel import Process
from .loop import run
from .producer import Producer

if TYPE_CHECKING:
    from .world import World

PREFIX: Final = "sim"
SESSION_TIMEOUT_MS: Final = 1_500
RESTORE_JITTER_MS_MAX: Final = 100
TAKEOVER_STALL_MS_MAX: Final = 20_000
STANDBYS_STOP_S_MAX: Final = 5.0
RECORD_BYTES_MAX: Final = 1_048_576


class Points:
    """Same methods as ``refold.engine.points.Points``; what happens at a point is the world's decision."""

    #: Never armed in the engine's sense: it would flush before ``after_produce``; the world decides what
    #: arrived.
    armed: str | None = None

    def __init__(self, world: World, worker: Worker) -> None:
        self._world = world
        self._worker = worker
        self._committing = False

    def begin(self, events: int) -> None:
        self._worker.events = events

    def reach(self, name: str) -> None:
        self._world.point(self._worker, name)

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        self._committing = True
        try:
            yield
        finally:
            self._committing = False

    def on_end(self, when: str) -> None:
        """The producer is about to have EndTxn handled, or just had: both outcomes of ``in_commit``."""
        if self._committing:
            self._world.point(self._worker, "in_commit", when)


class Log:
    """The engine's structured log: counted, traced, and the source of ``partition_live``."""

    def __init__(self, world: World, worker: Worker) -> None:
        self._world = world
        self._worker = worker
        self._served: set[int] = set()

    def info(self, event: str, **fields: Any) -> None:
        self._say(event, fields)

    warning = error = info

    def _say(self, event: str, fields: dict[str, Any]) -> None:
        if self._worker.process.dead:
            return
        self._world.happened[event] += 1
        shown = " ".join(
            f"{k}={v}" for k, v in fields.items() if k in ("partition", "partitions", "offset", "reason")
        )
        self._world.kernel.trace(self._worker.process.name, f"{event} {shown}")
        if event == "partition_moved":
            self._world.happened[f"{fields['before']} to {fields['state']}"] += 1
        if event == "standby_closed":
            self._worker.kept.add(fields["partition"])
        if event == "partition_live" and fields["partition"] in self._worker.kept:
            self._worker.kept.discard(fields["partition"])
            self._world.happened["standby promoted"] += 1
        if event == "partition_served":
            self._world.partition_served(self._worker, fields["partition"], fields["offset"])
            self._served.add(fields["partition"])
        if event == "partition_moved" and fields["state"] == "restoring":
            self._served.discard(fields["partition"])
        if event == "partition_live":
            filled = fields["partition"] in self._served
            self._world.partition_live(self._worker, fields["partition"], fields["offset"], filled=filled)


class Metrics:
    def __init__(self, world: World) -> None:
        self._happened = world.happened

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        shown = ",".join(f"{k}={v}" for k, v in labels.items())
        self._happened[f"{name}{{{shown}}}" if shown else name] += int(amount)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self._happened[name] += 1

    def gauge(self, name: str, value: float, **labels: str) -> None:
        return None

    def forget(self, name: str, **labels: str) -> None:
        return None


class Worker:
    """An instance on its machine; one process after the other."""

    def __init__(self, world: World, instance: str, disk: Disk) -> None:
        self._world = world
        self.instance = instance
        self.disk = disk
        self.lives = 0
        #: Partitions whose copy this process has kept and closed, until they are live here.
        self.kept: set[int] = set()
        #: Its machine's clock minus true time.
        self.skew_ms = 0
        self.process = Process(f"{instance}.0")
        self.process.life = self.process.life.DEAD
        self.engine: Engine | None = None
        self.consumer: GroupConsumer | None = None
        #: Events held by the commit in flight.
        self.events = 0
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self.lives += 1
        self.process = Process(f"{self.instance}.{self.lives}")
        self.process.old_build = self._world.strikes("old_build")
        self.engine = self.consumer = self._stop = self._loop = None
        self.kept = set()
        self._world.kernel.trace(self.process.name, "start")
        self._world.kernel.spawn(self.process, "main", self._main)

    def stop_gracefully(self) -> None:
        """SIGTERM."""
        if self._stop is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    def now_ms(self) -> int:
        return self._world.kernel.now_ms + self.skew_ms

    def owned(self) -> list[int]:
        return [] if self.engine is None else sorted(owner.number for owner in self.engine.assignment)

    def database(self, partition: int) -> Database:
        return self.disk.databases[f"data/{PREFIX}/p{partition:05d}"]

    def _main(self) -> None:
        process = self.process
        try:
            run(self._world.kernel, process, self._life)
        except Exception as error:
            self._world.exited(self, process, error)
        else:
            self._world.exited(self, process, None)

    async def _life(self) -> None:
        world, kernel, process = self._world, self._world.kernel, self.process
        loop = asyncio.get_running_loop()
        self._loop, self._stop = loop, asyncio.Event()
        config = EngineConfig(
            kafka={},
            prefix=PREFIX,
            instance=self.instance,
            data_dir=world.data_dir(self),
            session_timeout_ms=SESSION_TIMEOUT_MS,
            transaction_timeout_ms=world.transaction_timeout_ms,
            cache_bytes_max=world.cache_bytes_max,
            overlay_bytes_max=world.overlay_bytes_max,
            restore_jitter_ms_max=RESTORE_JITTER_MS_MAX,
            takeover_stall_ms_max=TAKEOVER_STALL_MS_MAX,
            standby_replicas=world.standby_replicas,
            hot_first=world.hot_first,
            seed=self.lives,
            sabotage=Sabotage.parse(world.sabotage, environment="dev"),
        )
        points, log = Points(world, self), Log(world, self)
        producer = Producer(
            kernel,
            world.broker,
            config.transactional_id,
            world.transaction_timeout_ms,
            trouble=world.trouble,
            on_end=points.on_end,
        )
        await loop.run_in_executor(None, producer.init_transactions)
        admin = Admin(kernel, world.broker, world.trouble, config.topics.inbox)
        offsets = GroupOffsets(
            {},
            config.topics.group,
            make=lambda asked: GroupReader(kernel, world.broker, world.trouble, asked),
        )
        cluster = Cluster(config, admin, offsets, log=log)  # type: ignore[arg-type]
        facts = TopicFacts("state-1", "history-1", "generations-1", DELETE_RETENTION_MS)
        restorer = Restorer(
            config,
            cluster,
            facts,
            world.memory,
            points,  # type: ignore[arg-type]
            log=log,
            now_ms=self.now_ms,
            key_filter=world.key_filter,
        )
        limits = Limits(*[RECORD_BYTES_MAX] * 6)
        slots = SlotMap(world.broker.partitions)
        engine = Engine(
            config,
            slots=slots,
            limits=limits,
            restorer=restorer,
            batches_end=cluster.batches_end,
            points=points,  # type: ignore[arg-type]
            metrics=Metrics(world),
            log=log,
        )
        standbys: Standbys | None = None
        if config.standby_replicas:
            standbys = Standbys(
                config,
                admin,  # type: ignore[arg-type]
                cluster,
                restorer,
                slots.partitions,
                points,  # type: ignore[arg-type]
                Metrics(world),
                log,
            )
            engine.standbys = standbys
        consumer = GroupConsumer(
            kernel,
            world.broker,
            process,
            self.instance,
            topic=config.topics.inbox,
            session_ms=SESSION_TIMEOUT_MS,
            fetch_records_max=world.fetch_records_max,
        )
        poller = Poller(consumer, config.topics.inbox, engine, bootstrap="sim", log=log)
        batches = BatchSource(
            AssignedConsumer(  # type: ignore[arg-type]
                kernel,
                world.broker,
                topic=config.topics.batches,
                fetch_records_max=world.fetch_records_max,
            ),
            config.topics.batches,
            engine,
            bootstrap="sim",
            log=log,
        )
        transactor = Transactor(
            producer,
            config.topics,
            txid=config.transactional_id,
            map_epoch=slots.epoch,
            ownership=engine.assignment,
            group_metadata=poller.group_metadata,
            points=points,  # type: ignore[arg-type]
            sabotage=config.sabotage,
            now_ms=self.now_ms,
        )
        self.engine, self.consumer = engine, consumer
        agents = self._agents(engine)
        engine.start(poller, batches, transactor)
        copying = None if standbys is None else loop.create_task(standbys.run())
        told = loop.create_task(self._stop.wait())
        failure: asyncio.Future[Any] = engine.failure
        await asyncio.wait([failure, told], return_when=asyncio.FIRST_COMPLETED)
        if not engine.failure.done():
            if standbys is not None:
                standbys.stop()
            ending = loop.create_task(engine.drain())
            await asyncio.wait([failure, ending], return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                ending.result()
                if standbys is not None:
                    await standbys.stopped(STANDBYS_STOP_S_MAX)
                if copying is not None:
                    copying.cancel()
                for agent in agents:
                    agent.cancel()
                return
        raise engine.failure.result()

    def _agents(self, engine: Engine) -> list[asyncio.Task[None]]:
        """What Faust is to the engine: per topic one queue and one consumer, chunk after chunk."""
        topics = engine.config.topics
        queues: dict[str, deque[Chunk]] = {topics.inbox: deque(), topics.batches: deque()}
        arrived = {topic: asyncio.Event() for topic in queues}

        def put(chunks: list[Chunk]) -> None:
            for chunk in chunks:
                flow = (engine.poller if chunk.topic == topics.inbox else engine.batches).flow
                copies = self._world.copies_of_chunk()
                if copies == 0:
                    flow.done(chunk)
                for copy in range(copies):
                    if copy:
                        flow.add(chunk.bytes, len(chunk))
                    queues[chunk.topic].append(chunk)
                arrived[chunk.topic].set()

        engine.on_chunks = put
        loop = asyncio.get_running_loop()
        return [
            loop.create_task(self._agent(engine, queues[topic], arrived[topic], fold))
            for topic, fold in ((topics.inbox, engine.fold), (topics.batches, engine.fold_batches))
        ]

    @staticmethod
    async def _agent(
        engine: Engine,
        queue: deque[Chunk],
        arrived: asyncio.Event,
        fold: Callable[[Chunk], Coroutine[Any, Any, None]],
    ) -> None:
        try:
            while True:
                while not queue:
                    arrived.clear()
                    await arrived.wait()
                await fold(queue.popleft())
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            engine.failed(error)
