"""The world: a cluster, some workers, a workload, faults, checkers, and the loop over scheduler steps.

A run has three parts: ``ticks`` steps with faults; the faults stop (stopped workers go on, dead ones start
again, hung transactions are ended); within :data:`QUIESCE_US_MAX` everything sent must be ruled, and then all
is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from refold.engine.lifecycle import State
from refold.engine.points import CHECKPOINT, COMMIT, NAMES, REBALANCE
from refold.engine.rulings import RulingBook
from refold.errors import FencedError, StorageError, UnavailableError
from refold.topology.names import TopicNames

from . import faults, seams
from .broker import Broker
from .checkers import FoldChecker, OnceChecker, Report, StoreChecker, compare_end, compare_ruling
from .consumer import FETCH_RECORDS_MAX
from .disk import Directory, Disk
from .filters import KeyFilter
from .generations import GenerationChecker, GenerationWorkload, Tracks
from .kernel import Kernel, Process
from .oracle import Expected, Ruled, fold_inbox, inbox_records
from .parameters import Parameters, Result
from .runs import RunChecker, RunWorkload
from .seeds import Seeds, child
from .trouble import PlannedTrouble
from .usage import UsageChecker, UsageWorkload
from .worker import PREFIX, SESSION_TIMEOUT_MS, Worker
from .workload import Sent, Workload

#: Virtual time within which a world without faults must have handled everything. A session timeout, a
#: transaction timeout, a restart and a restore need about 5 s; the last marker of a takeover that stalls
#: needs more.
QUIESCE_US_MAX: Final = 40_000_000

#: The named points there are here: copies of partitions are not simulated.
REACHABLE: Final = tuple(name for name in NAMES if name not in CHECKPOINT)

#: How often it is looked whether all is done.
QUIET_STEPS: Final = 20

#: How often the timed faults are drawn.
FAULT_US: Final = 100_000

#: A stopped worker whose partitions nobody takes goes on at the latest after this.
STOPPED_US_MAX: Final = 8_000_000

#: Longest life of a hung transaction before the operator ends it: below the takeover's limit, or above it.
HUNG_US: Final = (500_000, 6_000_000)

#: A worker without a way to the cluster: shorter and longer than its session timeout.
CUT_US: Final = (200_000, 4_000_000)
#: No byte can be written.
FULL_US: Final = (100_000, 2_500_000)
#: A partition whose records come through late, and a producer's record that does.
SLOW_US: Final = (50_000, 1_500_000)
LATE_US: Final = (10_000, 2_000_000)

#: Clocks of machines and broker are wrong by at most this. The copies of a partition are judged by them
#: (rule Z), so two of them may differ by no more than its margin (``seams.TOMBSTONE_MARGIN_MS``: scaled too).
CLOCK_MS_MAX: Final = 400
#: The sources' append times only order a session's time (rule C): they may be wrong by anything.
APPEND_CLOCK_MS: Final = (-7_200_000, -3_000, 0, 3_000, 7_200_000)

#: Copies of every partition besides its owner's.
STANDBY_REPLICAS: Final = (0, 1, 2)
#: Share of a swarm's runs in which restores are hot first.
HOT_SHARE: Final = 0.5
HOT_SESSIONS: Final = (10, 24, 60)
#: … and of those, in which there are key filters of checkpoints.
FILTERS_SHARE: Final = 0.4

TRANSACTION_TIMEOUTS_MS: Final = (1_000, 10_000)

#: An entry costs 2 000 bytes and more: room for a few sessions, for most, for all.
CACHE_BYTES_MAX: Final = (8_000, 40_000, 1_000_000)
#: Overlays that close after a few events, after some dozens, never by size.
OVERLAY_BYTES_MAX: Final = (12_000, 60_000, 1_000_000)

#: What ends a worker by the engine's own decision: documented exits. Any other is a failure.
EXPECTED_EXITS: Final = (FencedError, UnavailableError)

#: Decides what happens at a point: ``(worker, point, "before" | "after" | "")`` -> ``"kill"``, ``"stop"``,
#: ``"abort"`` (the next transactional call is refused) or ``None``.
Scenario = Callable[[Worker, str, str], str | None]


class World:
    def __init__(
        self,
        parameters: Parameters,
        *,
        scenario: Scenario | None = None,
        inbox: Sequence[Sent] | None = None,
        batches: Sequence[Sent] = (),
        keep_trace: bool = False,
    ) -> None:
        """``scenario`` decides at points instead of the plan, to the end of the run. ``inbox`` and
        ``batches``: what is there from the beginning, instead of a workload."""
        self.parameters = parameters
        self._inbox = inbox
        self._batches = batches
        self.seeds = Seeds.derive(parameters.seed)
        self.fetch_records_max = self.seeds.schedule.choice(FETCH_RECORDS_MAX)
        self.plan = faults.swarm(self.seeds.swarm) if parameters.plan_name == "swarm" else parameters.plan
        #: Below the session timeout, a stopped owner's transaction is gone before the takeover; above it, the
        #: takeover meets it.
        self.transaction_timeout_ms = self.seeds.swarm.choice(TRANSACTION_TIMEOUTS_MS)
        self.cache_bytes_max = self.seeds.swarm.choice(CACHE_BYTES_MAX)
        self.overlay_bytes_max = self.seeds.swarm.choice(OVERLAY_BYTES_MAX)
        replicas = self.seeds.swarm.choice(STANDBY_REPLICAS)
        #: A scenario is about the worker that owns.
        self.standby_replicas = 0 if scenario is not None else replicas
        self.drawn = (
            f"standby_replicas={self.standby_replicas}"
            f" transaction_timeout_ms={self.transaction_timeout_ms} cache_bytes_max={self.cache_bytes_max}"
            f" overlay_bytes_max={self.overlay_bytes_max} fetch_records_max={self.fetch_records_max}"
            f" {self.plan.row()}"
        )
        #: Restores serve while they read (rules H); with more sessions, or all of them are hot.
        hot = child(parameters.seed, "hot")
        drawn = parameters.plan_name == "swarm" and hot.random() < HOT_SHARE
        self.hot_first = drawn if parameters.hot_first is None else parameters.hot_first
        sessions = hot.choice(HOT_SESSIONS) if self.hot_first else parameters.sessions
        self.filters = hot.random() < FILTERS_SHARE
        self._hot = hot
        self.drawn += f" hot_first={self.hot_first} sessions={sessions} filters={self.filters}"
        self.sabotage = parameters.sabotage
        #: What the stores of a process share: nothing, unless they are real (tests/plug).
        self.memory: Any = None
        self.kernel = Kernel(self.seeds.schedule)
        if keep_trace:
            self.kernel.lines = []
        self.topics = TopicNames(PREFIX)
        names = (
            self.topics.inbox,
            self.topics.journal,
            self.topics.state,
            self.topics.history,
            self.topics.rejected,
            self.topics.batches,
            self.topics.generations,
            self.topics.review,
            self.topics.work,
        )
        self.broker = Broker(
            self.kernel, names, parameters.partitions, self.topics.group, self.seeds.schedule
        )
        self.trouble = PlannedTrouble(self)
        #: A scenario wants a transaction aborted.
        self.abort_next = False
        self.report = Report(outcomes_only=parameters.outcomes_only)
        self.fold = FoldChecker(self.report, self.topics)
        self.once = OnceChecker(self.report, self.topics)
        self.generations = GenerationChecker(self.report, self.topics, self.broker)
        self.store = StoreChecker(self.report, self.topics, self.broker, self.fold, self.once)
        self.broker.transactions.on_decided = self._decided
        #: Faults that struck, and things that happened (log events, metrics, situations worth reaching).
        self.struck: Counter[str] = Counter()
        self.happened: Counter[str] = Counter()
        self.runs = RunChecker(self.report, self.topics, self.fold, self.happened)
        self.usage = UsageChecker(self.report, self.topics, self.happened)
        self.workload = Workload(self.seeds.workload, parameters.partitions, sessions)
        self.sent = 0
        self._chance = child(parameters.seed, "generations")
        self._generations = GenerationWorkload(self._chance, self.broker, self.topics)
        self._agents = child(parameters.seed, "runs")
        self._runs = RunWorkload(self._agents, self.broker, self.topics, self.fold)
        self._metered = child(parameters.seed, "usage")
        self._usage = UsageWorkload(self._metered, self.broker, self.topics)
        self.scenario = scenario
        self.workers = [self._worker(number) for number in range(parameters.workers)]
        self._hung: list[tuple[int, str, int, int]] = []
        #: Records on their way to the inbox, by number.
        self._late: dict[int, Sent] = {}
        self._wake: dict[str, tuple[Process, list[int], int]] = {}
        self._faults_on = True

    def _worker(self, number: int) -> Worker:
        disk = Disk(f"w{number}", self.kernel, self.seeds.disk)
        disk.fails = lambda: self.strikes("write_failure")
        disk.on_write = self.store.on_write
        return Worker(self, f"w{number}", disk)

    def data_dir(self, worker: Worker) -> Any:
        """Where a worker keeps its stores: of whatever kind ``seams.disks`` puts in place."""
        return Directory(worker.disk, "data")

    def key_filter(self, partition: int) -> KeyFilter | None:
        """As of a checkpoint made at some moment; most runs have none."""
        if not self.filters:
            return None
        log = self.broker.log(self.topics.state, partition)
        return KeyFilter(log, log.start + self._hot.randrange(log.end - log.start + 1))

    # --- the run -------------------------------------------------------------------------------------

    def run(self) -> Result:
        with (
            seams.installed(self.kernel, self.broker, self.trouble, self.happened),
            seams.small_blocks(self.hot_first),
        ):
            try:
                self._with_faults()
                self._quiesce()
                if not self.report.failures:
                    self._compare()
                return self._result()
            finally:
                self.kernel.shutdown()

    def _with_faults(self) -> None:
        for worker in self.workers:
            # Not all at once: the group's first rounds differ too.
            self.kernel.after(self.seeds.schedule.randrange(300_000), self._start_if_dead(worker))
        if self._inbox is not None:
            self.sent = self.parameters.events
            for record in self._inbox:
                self.broker.append(
                    self.topics.inbox, record.partition, record.key, record.value, record.headers
                )
            for record in self._batches:
                self.broker.append(
                    self.topics.batches, record.partition, record.key, record.value, record.headers
                )
        else:
            self.kernel.after(0, self._send_generations)
            self.kernel.after(0, self._send_runs)
            if self.parameters.usage:
                self.kernel.after(0, self._send_usage)
        self.kernel.after(0, self._send)
        self.kernel.after(FAULT_US, self._timed_faults)
        while self.kernel.steps < self.parameters.ticks and self._step():
            pass

    def _step(self) -> bool:
        """False at the first failure."""
        if not self.kernel.step():
            self.report.fail("harness", "nothing can happen any more")
        for fiber, error in self.kernel.errors:
            self.report.fail("thread", f"{fiber.process.name}/{fiber.name} ended with {error!r}")
        self.kernel.errors.clear()
        return not self.report.failures

    def _quiesce(self) -> None:
        if self.report.failures:
            return
        self._faults_on = False
        self.plan = faults.NONE
        self.kernel.trace("world", "faults stop")
        self.broker.transactions.marker_us_max = 2_000
        for _, topic, partition, pid in self._hung:
            self.broker.end_hung(topic, partition, pid)
        self._hung.clear()
        # Clocks agree from here on, or a deadline would not come for hours.
        self.broker.set_clock(tuple({topic for topic, _ in self.broker.logs}), 0)
        for worker in self.workers:
            worker.skew_ms = 0
        for number in list(self._late):
            self._arrive(number)
        for worker in self.workers:
            worker.disk.full_until_us = 0
            worker.process.cut = False
            self._continue(worker)
            if worker.process.dead:
                self.kernel.after(0, self._start_if_dead(worker))
        # What remains to be sent, and then one more record per partition: a chunk that went missing at the
        # end of a partition is noticed by the next one.
        while self.sent < self.parameters.events:
            self._send_one()
        if self.struck["chunk_lost"]:
            for partition in range(self.parameters.partitions):
                for topic in (self.topics.inbox, self.topics.batches):
                    self.broker.append(topic, partition, b"no-slash", b"last", None)
        end = self.kernel.now_us + QUIESCE_US_MAX
        look = 0
        while True:
            if self.kernel.steps >= look:
                if self._quiet():
                    return
                look = self.kernel.steps + QUIET_STEPS
            if not self._step():
                return
            if self.kernel.now_us > end:
                self.report.fail(
                    "liveness", f"not quiet {QUIESCE_US_MAX // 1_000_000} s after the faults stopped"
                )
                return

    def _quiet(self) -> bool:
        if any(log.open for log in self.broker.logs.values()):
            return False
        for partition in range(self.parameters.partitions):
            known = self.broker.group.offsets.get(partition)
            if known is None or known.offset != self.once.decided.get(partition):
                return False
            if not any(self._is_live(worker, partition) for worker in self.workers):
                return False
            if self.broker.log(self.topics.inbox, partition).read(known.offset, 1)[0]:
                return False
            if self.sabotage == "batches-without-offsets":
                # How far they are folded shows nowhere then: their end is taken as it comes.
                continue
            place = (self.topics.batches, partition)
            folded = self.broker.group.offsets.get(place)
            if folded is None or folded.offset != self.once.decided.get(place):
                return False
            if self.broker.log(*place).read(folded.offset, 1)[0]:
                return False
        return not self.runs.due(self.kernel.now_ms)

    def _expected(self) -> Expected:
        partitions = range(self.parameters.partitions)
        tracks = Tracks([self.broker.log(self.topics.batches, number) for number in partitions])
        return fold_inbox(
            inbox_records(self.broker, self.topics.inbox), self.parameters.partitions, tracks.progress
        )

    def _compare(self) -> None:
        expected = self._expected()
        hot = self.hot_first
        self.generations.compare_end(self.once.batches_rejected, self.once.batches_forwarded)
        compare_end(self.report, self.broker, self.topics, expected, self.fold, self.once, hot_first=hot)
        for worker in self.workers:
            engine = worker.engine
            if engine is None or worker.process.dead:
                continue
            for owner in engine.assignment:
                if owner.state is State.LIVE:
                    for offset in range(owner.committed):
                        found = _served(engine.book, owner.number, offset)
                        if found is not None:
                            compare_ruling(self.report, (owner.number, offset), found, expected)

    def _result(self) -> Result:
        return Result(
            parameters=self.parameters,
            digest=self.kernel.digest,
            failures=self.report.failures,
            steps=self.kernel.steps,
            virtual_ms=self.kernel.now_us // 1000,
            commits=self.report.compared["transactions"],
            events=self.fold.events,
            faults=self.struck,
            happened=self.happened,
            compared=self.report.compared,
            drawn=self.drawn,
            workers=[
                f"{w.process.name:<8} {w.process.life.value:<8} lives {w.lives:<3} owns {w.owned()!s:<16}"
                f" last exit {type(w.process.exit).__name__ if w.process.exit else '-'}"
                for w in self.workers
            ],
            trace=self.kernel.lines or [],
        )

    # --- what the workers tell -----------------------------------------------------------------------

    def _decided(self, decision) -> None:  # type: ignore[no-untyped-def]
        self.fold.on_decided(decision)
        self.generations.on_decided(decision)
        self.runs.on_decided(decision)
        self.usage.on_decided(decision)
        self.once.on_decided(decision)

    def partition_live(self, worker: Worker, partition: int, offset: int, *, filled: bool) -> None:
        """``filled``: it was served before (rule H2)."""
        if worker.consumer is None or not worker.consumer.still_given(partition):
            # A zombie that does not know yet: it may finish its restore, it cannot commit.
            self.happened["zombie went live"] += 1
            return
        owner = None if worker.engine is None else worker.engine.assignment.get(partition)
        if owner is not None and owner.parking is not None:
            self.happened["live with records that wait"] += bool(len(owner.parking))
        if filled:
            overlay = None if worker.engine is None else worker.engine.inflight
            part = None if overlay is None else overlay.parts.get(partition)
            in_flight = frozenset() if part is None else frozenset(part.touched)
            self.store.on_filled(worker.instance, partition, worker.database(partition), in_flight)
            written = frozenset() if part is None else frozenset(part.side)
            self.runs.on_live(worker.instance, partition, worker.database(partition), written)
            return
        self.store.on_live(worker.instance, partition, offset, worker.database(partition))
        self.generations.on_live(worker.instance, partition, worker.database(partition))
        self.runs.on_live(worker.instance, partition, worker.database(partition))
        self.usage.on_live(worker.instance, partition, worker.database(partition))

    def partition_served(self, worker: Worker, partition: int, offset: int) -> None:
        if worker.consumer is None or not worker.consumer.still_given(partition):
            return
        self.store.on_served(worker.instance, partition, offset, worker.database(partition))
        self.generations.on_live(worker.instance, partition, worker.database(partition))
        self.runs.on_live(worker.instance, partition, worker.database(partition))
        self.usage.on_live(worker.instance, partition, worker.database(partition))

    def exited(self, worker: Worker, process: Process, error: BaseException | None) -> None:
        """On the worker's main thread: it has come to its end by itself."""
        process.exit = error
        name = "graceful" if error is None else type(error).__name__
        self.happened[f"exit {name}"] += 1
        self.kernel.trace(process.name, f"exit {name}")
        # A disk that fails during a restore ends the process: starting again is the way out. Otherwise a
        # store that cannot be opened is a sign of a broken rule; where only harm counts, it is none yet.
        struck = self.struck["write_failure"] + self.struck["disk_full_per_s"]
        failing = struck > 0 or self.parameters.outcomes_only
        storage = isinstance(error, StorageError) and failing
        if error is not None and not storage and not isinstance(error, EXPECTED_EXITS):
            self.report.fail("exit", f"{process.name} ended with {error!r}")
        worker.disk.crash()
        self._plan_restart(worker)
        self.kernel.kill(process)

    def _plan_restart(self, worker: Worker) -> None:
        low, high = self.parameters.restart_us
        self.kernel.after(low + self.seeds.faults.randrange(high - low), self._start_if_dead(worker))

    def _start_if_dead(self, worker: Worker) -> Callable[[], None]:
        def start() -> None:
            if worker.process.dead:
                worker.start()

        return start

    # --- faults --------------------------------------------------------------------------------------

    def strikes(self, name: str, factor: float = 1.0) -> bool:
        probability = getattr(self.plan, name) * factor
        if probability <= 0 or self.seeds.faults.random() >= probability:
            return False
        self.struck[name] += 1
        return True

    def copies_of_chunk(self) -> int:
        if self.strikes("chunk_lost"):
            return 0
        return 2 if self.strikes("chunk_twice") else 1

    def point(self, worker: Worker, name: str, when: str = "") -> None:
        """A named point was reached, on one of the worker's threads."""
        kernel = self.kernel
        kernel.trace(worker.process.name, f"point {name} {when} {worker.events}")
        kernel.pause()
        action = self.scenario(worker, name, when) if self.scenario is not None else self._drawn(name)
        if action is None:
            return
        self.happened[f"{action} at {name}"] += 1
        if name in COMMIT and worker.events:
            self.happened["in flight"] += 1
        if action == "abort":
            self.abort_next = True
            return
        if action == "kill":
            self.kill(worker)
        self.stop(worker)
        kernel.pause()

    def _drawn(self, name: str) -> str | None:
        if name not in REACHABLE:
            raise AssertionError(f"unknown point {name}")
        where = "at_point" if name in COMMIT else "in_rebalance" if name in REBALANCE else "in_restore"
        if where == "in_restore" and self.strikes("shuffle_in_restore"):
            self.broker.group.shuffle_next = True
            self.broker.group.rebalance()
        if self.strikes(f"crash_{where}"):
            return "kill"
        return "stop" if self.strikes(f"stop_{where}") else None

    def kill(self, worker: Worker) -> None:
        if worker.process.dead:
            return
        self.kernel.trace(worker.process.name, "killed")
        worker.disk.crash()
        if self.strikes("disk_lost"):
            worker.disk.lose()
        self._plan_restart(worker)
        self.kernel.kill(worker.process)

    def stop(self, worker: Worker) -> None:
        """SIGSTOP, until others own and have restored its partitions."""
        process = worker.process
        if not process.running:
            return
        self.kernel.trace(process.name, "stopped")
        self.kernel.stop(process)
        latest = STOPPED_US_MAX
        if self.plan.wake_early and self.seeds.faults.random() < self.plan.wake_early:
            latest = self.seeds.faults.randrange(SESSION_TIMEOUT_MS * 2_000)
        self._wake[worker.instance] = (process, worker.owned(), self.kernel.now_us + latest)
        self.kernel.after(FAULT_US // 2, self._maybe_wake(worker))

    def _maybe_wake(self, worker: Worker) -> Callable[[], None]:
        def look() -> None:
            waiting = self._wake.get(worker.instance)
            if waiting is None or waiting[0] is not worker.process:
                return
            _, owned, latest = waiting
            taken = bool(owned) and all(self._live_elsewhere(worker, number) for number in owned)
            if taken or self.kernel.now_us >= latest:
                if taken:
                    self.happened["woken after takeover"] += 1
                self._continue(worker)
            else:
                self.kernel.after(FAULT_US // 2, look)

        return look

    def _live_elsewhere(self, worker: Worker, number: int) -> bool:
        return any(other is not worker and self._is_live(other, number) for other in self.workers)

    @staticmethod
    def _is_live(worker: Worker, number: int) -> bool:
        if worker.engine is None or not worker.process.running:
            return False
        owner = worker.engine.assignment.get(number)
        return owner is not None and owner.state is State.LIVE

    def _continue(self, worker: Worker) -> None:
        self._wake.pop(worker.instance, None)
        if worker.process.life.value == "stopped":
            self.kernel.trace(worker.process.name, "continued")
            self.kernel.resume(worker.process)

    def _timed_faults(self) -> None:
        if not self._faults_on:
            return
        self.kernel.after(FAULT_US, self._timed_faults)
        chance, part = self.seeds.faults, FAULT_US / 1_000_000
        some = self.workers[chance.randrange(len(self.workers))]
        group, kernel = self.broker.group, self.kernel
        if self.strikes("crash_per_s", part) and not some.process.dead:
            self.kill(some)
        if self.strikes("stop_per_s", part):
            self.stop(some)
        if self.strikes("graceful_per_s", part) and some.process.running:
            some.stop_gracefully()
        if self.strikes("shuffle_per_s", part):
            group.shuffle_next = True
            group.rebalance()
        if self.strikes("evict_per_s", part) and group.members:
            group.remove(sorted(group.members)[chance.randrange(len(group.members))], "evicted")
        partition = chance.randrange(self.parameters.partitions)
        if self.strikes("compaction_per_s", part):
            for topic in (self.topics.state, self.topics.history, self.topics.generations):
                end = self.broker.log(topic, partition).end
                gone = self.broker.compact(topic, partition, chance.randrange(end + 1))
                kernel.trace("broker", f"compacted {topic}/{partition}: {gone} gone")
        if self.strikes("interleave_per_s", part):
            pid = self.broker.hang(self.topics.journal, partition, b"another writer")
            self.broker.end_hung(self.topics.journal, partition, pid)
        if self.strikes("hung_per_s", part):
            topics = self.topics
            topic = chance.choice(
                (topics.state, topics.history, topics.journal, topics.generations, topics.batches)
            )
            pid = self.broker.hang(topic, partition, b"hung")
            kernel.trace("broker", f"hung transaction on {topic}/{partition}")
            self._hung.append((kernel.now_us + chance.randrange(*HUNG_US), topic, partition, pid))
        self._surroundings(some, partition, part)
        late = self.strikes("late_markers", part)
        self.broker.transactions.marker_us_max = 300_000 if late else 2_000
        for hung in [hung for hung in self._hung if hung[0] <= kernel.now_us]:
            self._hung.remove(hung)
            self.broker.end_hung(*hung[1:])

    def _surroundings(self, some: Worker, partition: int, part: float) -> None:
        """Network, disk and clocks."""
        chance, kernel, topics = self.seeds.faults, self.kernel, self.topics
        if self.strikes("slow_fetch_per_s", part):
            topic = chance.choice((topics.inbox, topics.batches, topics.state, topics.generations))
            self.broker.slow(topic, partition, chance.randrange(*SLOW_US))
            kernel.trace("broker", f"slow {topic}/{partition}")
        process = some.process
        if self.strikes("cut_per_s", part) and not process.dead and not process.cut:
            kernel.trace(process.name, "cut off")
            process.cut = True
            if self._is_committing(some):
                self.happened["cut off in a commit"] += 1

            def link() -> None:
                process.cut = False
                kernel.trace(process.name, "linked")

            kernel.after(chance.randrange(*CUT_US), link)
        if self.strikes("disk_full_per_s", part):
            kernel.trace(some.process.name, "disk full")
            some.disk.full_until_us = kernel.now_us + chance.randrange(*FULL_US)
        if self.strikes("clock_jump_per_s", part):
            skew = chance.randrange(-CLOCK_MS_MAX, CLOCK_MS_MAX + 1)
            if chance.random() < 0.5:
                kernel.trace(some.process.name, f"clock {skew}")
                self.happened["clock went back"] += skew < some.skew_ms
                some.skew_ms = skew
            else:
                wrong = chance.choice(APPEND_CLOCK_MS)
                kernel.trace("broker", f"clock {skew} {wrong}")
                self.broker.set_clock((topics.inbox, topics.batches), wrong)
                self.broker.set_clock((topics.state, topics.history, topics.generations), skew)

    @staticmethod
    def _is_committing(worker: Worker) -> bool:
        return worker.engine is not None and worker.engine.inflight is not None

    # --- the workload --------------------------------------------------------------------------------

    def _send(self) -> None:
        if self.sent >= self.parameters.events or not self._faults_on:
            return
        chance = self.seeds.workload
        for _ in range(min(1 + chance.randrange(8), self.parameters.events - self.sent)):
            self._send_one()
        self.kernel.after(chance.randrange(2 * self.parameters.pause_us), self._send)

    def _send_generations(self) -> None:
        if not self._faults_on or self.sent >= self.parameters.events:
            return
        self._generations.step()
        self.kernel.after(self._chance.randrange(2 * self.parameters.pause_us), self._send_generations)

    def _send_runs(self) -> None:
        """To the end of the faults: an agent answers to what it sees."""
        if self._faults_on:
            self._runs.step()
            self.kernel.after(self._agents.randrange(4 * self.parameters.pause_us), self._send_runs)

    def _send_usage(self) -> None:
        if self._faults_on and self.sent < self.parameters.events:
            self._usage.step()
            self.kernel.after(self._metered.randrange(self.parameters.pause_us), self._send_usage)

    def _send_one(self) -> None:
        record = self.workload.next()
        self.sent += 1
        number = self.sent
        self._late[number] = record
        if self.strikes("record_late"):
            self.kernel.after(self.seeds.faults.randrange(*LATE_US), lambda: self._arrive(number))
        else:
            self._arrive(number)

    def _arrive(self, number: int) -> None:
        """What was held up comes after what was sent later, and is not sent twice."""
        record = self._late.pop(number, None)
        if record is not None:
            self.broker.append(self.topics.inbox, record.partition, record.key, record.value, record.headers)


def _served(book: RulingBook, partition: int, offset: int) -> Ruled | None:
    line = book.get(partition, offset)
    if line is None:
        return None
    return Ruled(line.status, line.seq, line.code or "")
