"""One worker process: look at the cluster, open the port, join, fold until told to stop, drain, exit.

Exit codes are those of ``refold.errors``: 0 after a graceful stop, 75 where that took longer than it may and
128 + signal where a second one came (:mod:`refold.engine.drain`), 76 fenced, 69 outcome of a commit unknown
or cluster gone, 78 configuration … Whatever ends the process unplanned is said in one line; a supervisor
starts it again. Order at start (each step needs the one before): data directory lock → cluster → nobody of
our name alive → HTTP port → no former life of ours known under another URL → our own transactional id (ends
what that former life left open) → membership.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import structlog
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from refold import __version__
from refold.api.server import OwnerServer
from refold.draining import CUT_SHORT, SIGNAL_BASE
from refold.engine import allocator, clients, preflight, reducers
from refold.engine.batchsource import BatchSource
from refold.engine.checkpoints.assemble import assemble
from refold.engine.checkpoints.remote import remote_of
from refold.engine.collector import Collector
from refold.engine.commit import Transactor
from refold.engine.config import EngineConfig
from refold.engine.drain import PROGRESS_S, Ended, Order, Outcome, Place, Running
from refold.engine.engine import Engine
from refold.engine.freshness import Freshness
from refold.engine.lifecycle import State
from refold.engine.metrics import Metrics
from refold.engine.points import Points
from refold.engine.poll import Poller
from refold.engine.producer import choose
from refold.engine.restore import Restorer
from refold.engine.standby.service import Standbys
from refold.engine.store import Memory
from refold.engine.stuck import LOOKS_MAX, Stuck
from refold.engine.takeover import Cluster
from refold.engine.validation.service import validations
from refold.engine.view import EngineView
from refold.errors import (
    ConfigError,
    FencedError,
    InvariantViolation,
    RefoldError,
    UnavailableError,
)
from refold.telemetry.metrics import NoMetrics, PrometheusMetrics
from refold.topology.failures import explain
from refold.topology.groupoffsets import GroupOffsets
from refold.topology.outage import ASK_TIMEOUT_S, Outage
from refold.wire import confluent

if TYPE_CHECKING:
    from refold.engine.producer.choose import TransactionalProducer

log = structlog.get_logger("refold.worker")

#: How often gauges and the loop's own heartbeat are set.
BEAT_S: Final = 1.0

#: In an outage, which is no fault of librdkafka's and is over when it is over.
STUCK_LOST: Final = (
    f"a commit has waited for {LOOKS_MAX * BEAT_S:.0f} s and no broker answers at {{bootstrap}}. Nothing is"
    " lost: start the worker again, it goes on where it was once a broker answers"
)

STUCK: Final = (
    f"a call of the transaction API has not come back for {LOOKS_MAX * BEAT_S:.0f} s, three times its limit:"
    " librdkafka has lost its coordinator. Nothing is lost: start the worker again"
)

#: A killed process reads at most this much time of its changelogs again.
FLUSH_EVERY_S: Final = 300.0

#: A thread that wants the interpreter waits this long for it; the default of 5 ms shows in the p99 of a read.
SWITCH_INTERVAL_S: Final = 0.001

#: A former life of another URL is looked for this often, and for this much longer than its session lasts: the
#: broker notices a timeout late.
FORMER_POLL_S: Final = 0.5
FORMER_MARGIN_S: Final = 5.0

#: What their copies lose by being cut short is what was not flushed: read again.
STANDBYS_STOP_S_MAX: Final = 2.0

#: Faust's own services after the drain; nothing of ours is in them.
FAUST_STOP_S_MAX: Final = 2.0


def run(config: EngineConfig) -> NoReturn:
    """Run one worker until SIGTERM, SIGINT or a failure, and end the process. Raises what start-up raises."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    allocator.give_back()
    with Place(config.store_dir).held(Running(os.getpid(), config.instance)):
        asyncio.run(_main(config))


class _Worker:
    """What :func:`_main` has to take apart again."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.points = Points.from_environment()
        self.view = EngineView()
        self.stop = asyncio.Event()
        self.standbys: Standbys | None = None
        self.place = Place(config.store_dir)
        self.order = Order(config.drain_seconds_max)
        #: Whether services run that do not end by being cancelled.
        self.running = False
        self._told_at = 0.0
        self._collector = Collector()
        try:
            self.metrics: Metrics = PrometheusMetrics()
        except ConfigError:
            self.metrics = NoMetrics()

    async def start(self) -> bool:
        """False if told to stop before there was anything to drain."""
        config, loop = self.config, asyncio.get_running_loop()
        if config.sabotage.name is not None:
            log.warning("sabotage_on", name=config.sabotage.name, warning="a guarantee is broken on purpose")
        confluent.use_registry(config.registry_url)
        reducers.set_up(config.reducers, self.metrics, log)
        self.remote = remote_of(config.checkpoint_url, config.prefix)
        admin, offsets = clients.admin(config), clients.offsets(config)
        # Faust is imported and the app made while the cluster is asked; neither touches it.
        own = (
            loop.run_in_executor(None, importlib.import_module, choose.OWN)
            if config.producer == "auto"
            else None
        )
        faust = asyncio.create_task(_import_faust(own))
        facts = await loop.run_in_executor(None, preflight.examine, config, admin)
        former = await loop.run_in_executor(None, preflight.refuse_second, config, admin)
        url = await self._open_port(former)
        if not await self._outlive(former, url, admin):
            if self.server is not None:
                await self.server.stop()
            return False
        if own is not None:
            await own
        producer = await loop.run_in_executor(None, choose.made, config, facts.message_bytes_max, log)
        ours = loop.run_in_executor(None, choose.begin, config, producer)
        # Both find the group's coordinator meanwhile; the member joins when it subscribes.
        loop.run_in_executor(None, offsets.connect, config.topics.inbox, clients.CONNECT_TIMEOUT_S)
        consumer = clients.member(config, url)
        await faust
        try:
            self._assemble(facts, admin, offsets, producer, consumer)
        finally:
            await ours
        await asyncio.sleep(random.Random(config.seed).uniform(0, config.start_jitter_ms_max) / 1000)
        self.running = True
        await self.app.start()
        self._collector.start(time.monotonic())
        self._beat_task = asyncio.create_task(self._beat())
        if self.checkpoints is not None:
            self._checkpoint_task = asyncio.create_task(self.checkpoints.run(self.engine))
        if self.validations is not None:
            self._validation_task = asyncio.create_task(self.validations.run(self.engine))
        if self.standbys is not None:
            self._standby_task = asyncio.create_task(self.standbys.run())
        log.info(
            "worker_started",
            instance=config.instance,
            group=config.topics.group,
            url=url,
            partitions=facts.slots.partitions,
            producer=choose.name_of(producer),
            version=__version__,
        )
        return True

    async def _open_port(self, former: str | None) -> str:
        """The URL we are reached at; that of our former life where the port may be any and it is free."""
        config = self.config
        self.server: OwnerServer | None = None
        if config.http_port is None:
            return config.advertised_url or ""
        port = preflight.former_port(config, former)
        try:
            self.server = await self._listen(port)
        except UnavailableError:
            if port == config.http_port:
                raise
            self.server = await self._listen(config.http_port)
        return config.advertised_url or self.server.url

    async def _listen(self, port: int) -> OwnerServer:
        config = self.config
        render: Callable[[], bytes] | None = getattr(self.metrics, "render", None)
        options: dict[str, Any] = {} if render is None else {"metrics": render, "reports_to": self.metrics}
        server = OwnerServer(
            self.view, host=config.http_host, port=port, token=config.bearer_token, **options
        )
        await server.start()
        return server

    async def _outlive(self, former: str | None, url: str, admin: AdminClient) -> bool:
        """Wait until the group has forgotten a former life of another URL; False if told to stop meanwhile.

        Joining earlier would take over its membership together with its URL, and readers would look for this
        worker where nobody listens. There is no call in the client that removes a member.
        """
        if former is None or former == url:
            return True
        config, loop = self.config, asyncio.get_running_loop()
        seconds_max = config.session_timeout_ms / 1000 + FORMER_MARGIN_S
        log.info(
            "waiting_for_former_session",
            instance=config.instance,
            former_url=former,
            url=url,
            seconds_max=seconds_max,
            why="the group keeps the former URL of this worker until that session has timed out",
            avoid="keep the URL over restarts: --http-port or REFOLD_WORKER__ADVERTISED_URL",
        )
        end = time.monotonic() + seconds_max
        while former not in (None, url):
            if time.monotonic() > end:
                raise UnavailableError(
                    f"{seconds_max:.0f} s after this worker found it, the group still has a member named"
                    f" {config.instance!r}, known at {former or 'no URL'}. It is alive where it cannot be"
                    " reached from here, or had a longer session timeout. Stop it, give this worker its own"
                    " name (--instance or REFOLD_WORKER__INSTANCE), or start again later"
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), FORMER_POLL_S)
                return False
            self.view.beat = time.monotonic()
            former = await loop.run_in_executor(None, preflight.refuse_second, config, admin)
        return True

    def _assemble(
        self,
        facts: preflight.Facts,
        admin: AdminClient,
        offsets: GroupOffsets,
        producer: TransactionalProducer,
        consumer: Consumer,
    ) -> None:
        from refold.agents.app import build

        config = self.config
        cluster = Cluster(config, admin, offsets, log=log)
        parts = assemble(config, self.remote, Memory(), self.points, self.metrics, log=log, now_ms=_now_ms)
        restorer = Restorer(
            config,
            cluster,
            facts.topics,
            parts.memory,
            self.points,
            log=log,
            now_ms=_now_ms,
            checkpoints=parts.source,
        )
        restorer.pace.told = lambda size: self.metrics.count("refold_restore_bytes_total", size)
        self.checkpoints = parts.service
        self.validations = validations(
            config, cluster, parts.memory, restorer.pace, metrics=self.metrics, log=log
        )
        engine = Engine(
            config,
            slots=facts.slots,
            limits=facts.limits,
            restorer=restorer,
            batches_end=cluster.batches_end,
            points=self.points,
            metrics=self.metrics,
            log=log,
        )
        if config.standby_replicas:
            partitions = facts.slots.partitions
            standbys = Standbys(config, admin, cluster, restorer, partitions, self.points, self.metrics, log)
            self.standbys = engine.standbys = self.view.standbys = standbys
        poller = Poller(consumer, config.topics.inbox, engine, bootstrap=config.bootstrap, log=log)
        batches = BatchSource(
            clients.batch_reader(config), config.topics.batches, engine, bootstrap=config.bootstrap, log=log
        )
        transactor = Transactor(
            producer,
            config.topics,
            txid=config.transactional_id,
            map_epoch=facts.slots.epoch,
            ownership=engine.assignment,
            group_metadata=poller.group_metadata,
            points=self.points,
            sabotage=config.sabotage,
            now_ms=_now_ms,
        )
        self.admin, self.cluster, self.engine, self.poller = admin, cluster, engine, poller
        self.view.engine = engine
        self.app = build(engine, lambda: engine.start(poller, batches, transactor))

    async def _beat(self) -> None:
        """Gauges once a second, and proof that the loop turns."""
        engine, metrics, fenced = self.engine, self.metrics, 0
        metrics.gauge("refold_worker_info", 1, version=__version__, instance=self.config.instance)
        metrics.gauge("refold_cache_bytes_max", self.config.cache_bytes_max)
        metrics.gauge("refold_overlay_bytes_max", self.config.overlay_bytes_max)
        hits = misses = read = batches = 0
        shown: dict[int, tuple[int, State]] = {}
        stuck = Stuck()
        outage = Outage(self.config.bootstrap, self._ask, log=log, quiet=clients.LINES.outage)
        freshness = Freshness(engine, self.cluster, metrics, outage, log=log, now_ms=_now_ms)
        flushed = time.monotonic()
        while True:
            before = time.monotonic()
            await asyncio.sleep(BEAT_S)
            self.view.beat = time.monotonic()
            self._collector.beat(self.view.beat, engine.last_commit)
            metrics.gauge("refold_loop_lag_seconds", max(0.0, self.view.beat - before - BEAT_S))
            for state, count in engine.assignment.counts().items():
                metrics.gauge("refold_partitions", count, state=state)
            shown = self._show_states(shown)
            if self.view.beat - flushed > FLUSH_EVERY_S:
                flushed = self.view.beat
                await engine.flush_stores()
            if stuck.look(engine.committing_since):
                lost = STUCK_LOST.format(bootstrap=self.config.bootstrap)
                engine.failed(UnavailableError(lost if outage.on else STUCK))
                return
            self.view.staleness_s = await freshness.look(self.view.staleness_s)
            cache = engine.cache
            metrics.gauge("refold_cache_bytes", cache.bytes)
            metrics.count("refold_cache_lookups_total", cache.hits - hits, outcome="hit")
            metrics.count("refold_cache_lookups_total", cache.misses - misses, outcome="miss")
            hits, misses = cache.hits, cache.misses
            # Read once: the polling thread goes on counting.
            before_read, read = read, self.poller.flow.bytes_total
            metrics.count("refold_input_bytes_total", read - before_read)
            before_batches, batches = batches, engine.batches.flow.bytes_total
            metrics.count("refold_batches_bytes_total", batches - before_batches)
            waiting = 0 if engine.inflight is None else engine.inflight.bytes
            metrics.gauge("refold_overlay_bytes", engine.current.bytes + waiting)
            metrics.gauge("refold_paused_partitions", self.poller.paused)
            metrics.count("refold_dead_fenced_total", self.cluster.dead_fenced - fenced)
            fenced = self.cluster.dead_fenced
            with contextlib.suppress(OSError):
                disk = os.statvfs(self.config.store_dir)
                metrics.gauge("refold_data_free_bytes", disk.f_bavail * disk.f_frsize)

    def _ask(self) -> object:
        return self.admin.list_topics(self.config.topics.inbox, timeout=ASK_TIMEOUT_S)

    def _show_states(self, shown: dict[int, tuple[int, State]]) -> dict[int, tuple[int, State]]:
        """Gauges of partitions whose state is another than at the last beat. The engine forgets those of a
        partition that leaves."""
        now = {owner.number: (owner.epoch, owner.state) for owner in self.engine.assignment}
        for number, (epoch, state) in now.items():
            before = shown.get(number)
            if before == (epoch, state):
                continue
            name = str(number)
            if before is not None and before[0] == epoch:
                self.metrics.gauge("refold_partition_state", 0, partition=name, state=before[1].value)
            self.metrics.gauge("refold_partition_state", 1, partition=name, state=state.value)
        return now

    def on_signal(self, number: int) -> None:
        """The first one drains. A second one ends the process at once; not where a supervisor passes signals
        on, because an init system may tell all processes of a service besides: it kills for the second."""
        if not self.stop.is_set():
            self._told_at = time.monotonic()
            self.order = self.place.take_order() or self.order
            self.view.stopping = True
            self.stop.set()
        elif not self.config.supervised:
            self.ended("interrupted", SIGNAL_BASE + number)
            _exit_at_once(SIGNAL_BASE + number)

    def ended(self, outcome: Outcome, code: int) -> None:
        seconds = round(time.monotonic() - self._told_at, 3)
        say = log.info if outcome == "drained" else log.warning
        say("worker_stopped", outcome=outcome, seconds=seconds, exit_code=code)
        self.place.ended(Ended(os.getpid(), outcome, seconds, code))

    async def end(self) -> None:
        """Drain within the limit, counted from the signal; then stop Faust and the port, each with its own
        deadline. Does not return where the time is over: then it ends as if killed."""
        engine, order = self.engine, self.order
        log.info("worker_draining", seconds_max=order.seconds_max, leave=order.leave)
        for service in (self.standbys, self.validations):
            if service is not None:
                service.stop()
        progress = asyncio.create_task(self._say_progress())
        end = self._told_at + order.seconds_max
        last = None if self.checkpoints is None else self.checkpoints.at_drain(engine, end, order.seconds_max)
        try:
            left = end - time.monotonic()
            await asyncio.wait_for(engine.drain(leave=order.leave, before_leaving=last), left)
        except TimeoutError:
            log.warning("drain_cut_short", seconds_max=order.seconds_max, **engine.drain_progress())
            self.ended("cut_short", CUT_SHORT)
            _exit_at_once(CUT_SHORT)
        finally:
            progress.cancel()
        if self.standbys is not None:
            await self.standbys.stopped(STANDBYS_STOP_S_MAX)
        with contextlib.suppress(Exception, TimeoutError):
            await asyncio.wait_for(self.app.stop(), FAUST_STOP_S_MAX)
        if self.server is not None:
            await self.server.stop()
        self.ended("drained", 0)

    async def _say_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            log.info("worker_drain_progress", **self.engine.drain_progress())


async def _main(config: EngineConfig) -> NoReturn:
    worker = _Worker(config)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.on_signal, signal.SIGTERM)
    # A terminal's Ctrl-C reaches the whole process group: a supervisor hears it too, and passes it on.
    loop.add_signal_handler(
        signal.SIGINT, (lambda _: None) if config.supervised else worker.on_signal, signal.SIGINT
    )
    try:
        if not await worker.start():
            worker.ended("drained", 0)
            _exit_at_once(0)
    except KafkaException as raised:
        raise explain(raised, doing="starting the worker", bootstrap=config.bootstrap) from None
    except Exception as error:
        if not worker.running:
            raise
        # The loop would wait for Faust's tasks, for ever, and the partitions with it (seen).
        _exit_at_once(_report(error))
    failure = worker.engine.failure
    told: asyncio.Future[Any] = loop.create_task(worker.stop.wait())
    await asyncio.wait([failure, told], return_when=asyncio.FIRST_COMPLETED)
    if not failure.done():
        ending: asyncio.Future[Any] = loop.create_task(worker.end())
        await asyncio.wait([failure, ending], return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            wrong = ending.exception()
            _exit_at_once(0 if wrong is None else _report(wrong))
    # At once: the polling thread is still a member and must not be given partitions on the way out.
    _exit_at_once(_report(failure.result()))


def _exit_at_once(code: int) -> NoReturn:
    """No thread is waited for: librdkafka's and RocksDB's may be in calls that take long."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _report(error: BaseException) -> int:
    """One line on stderr for whoever reads the log, and the exit status. No drain: what is open may not be
    ours."""
    if isinstance(error, RefoldError):
        event = "worker_fenced" if isinstance(error, FencedError) else "worker_failed"
        log.error(event, error=str(error), exit_code=error.exit_code)
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    log.error("worker_failed", error=type(error).__name__, exc_info=error)
    print(
        f"error: unexpected {type(error).__name__} in the worker; its log has the place. Nothing was"
        " lost: what was"
        " not committed is read again. Please report it",
        file=sys.stderr,
        flush=True,
    )
    return InvariantViolation.exit_code


async def _import_faust(own: Awaitable[Any] | None) -> None:
    """Behind our own producer, and not beside it (:data:`refold.engine.producer.choose.OWN`)."""
    if own is not None:
        await own
    await asyncio.get_running_loop().run_in_executor(None, importlib.import_module, "refold.agents.app")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
