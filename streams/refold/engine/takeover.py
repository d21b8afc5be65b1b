"""What a takeover asks the cluster: stable offset, marks, fencing of the dead (rules T and D). Blocks.

Step (1) of rule T is :meth:`Cluster.stable_offset`, step (2) :meth:`Cluster.marks`, in this order and never
the other way round: an offset that becomes stable after the mark was taken may cover changelog records beyond
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from refold.engine import clients, group
from refold.engine.commitmeta import CommitMeta
from refold.engine.config import EngineConfig
from refold.engine.kafkaerrors import error_of
from refold.engine.reducers import check_versions
from refold.errors import TransientError, UnavailableError
from refold.topology.failures import explain
from refold.topology.groupoffsets import GroupOffsets
from refold.topology.logends import list_ends, log_ends

REQUEST_TIMEOUT_S: Final = 5.0

#: A pending transactional commit normally ends within a few ms; longer means its owner is dead or stopped.
UNSTABLE_MS_MAX: Final = 200
UNSTABLE_POLL_MS: Final = 10

#: InitProducerId waits for the coordinator to end the old transaction: 1.6 s measured.
FENCE_TIMEOUT_S: Final = 15.0

#: Looks follow each other within milliseconds. A longer pause means that this process itself was stopped:
#: what it saw before says nothing about now, and the "dead" one may be back and at work.
LOOK_PAUSE_MS_MAX: Final = 2_000

#: A transaction on batches that is open for longer is not a worker's: 10 s timeout + 10 s until the broker
#: looks, and fencing ends it much sooner.
FOREIGN_MS_MAX: Final = 21_000

#: Between two attempts at fencing, and two looks at the group, while there is no progress.
FENCE_AGAIN_MS: Final = 5_000


class Cancelled(Exception):
    """The partition was revoked or lost meanwhile."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The group's committed offsets of one partition of inbox and batches, -1 where there is none."""

    offset: int
    meta: CommitMeta | None
    batches: int = -1


@dataclass(frozen=True, slots=True)
class Marks:
    """Log start and high watermark (read_uncommitted) of one partition's changelogs and sources.

    ``asked_ms``: wall clock before they were asked for. What is read up to the marks is all there was then.
    An age taken later would say more than is known: a process may be suspended at any moment, and deletions
    made meanwhile may be gone when it goes on.
    """

    state_start: int
    state_end: int
    history_start: int
    history_end: int
    generations_start: int
    generations_end: int
    inbox_start: int
    inbox_end: int
    batches_start: int
    batches_end: int
    asked_ms: int = 0


class Cluster:
    """Thread-safe; shared by all takeovers of a worker."""

    def __init__(self, config: EngineConfig, admin: AdminClient, offsets: GroupOffsets, *, log: Any) -> None:
        self._config = config
        self._admin = admin
        self._offsets = offsets
        self._log = log
        self.dead_fenced = 0

    def committed(self, partition: int, *, stable: bool) -> Committed | None:
        """``None``: a transaction that writes this offset is still open (only with ``stable``)."""
        topics = self._config.topics
        # Both in one request: the group answers for one moment, and one transaction moves both.
        asked = [TopicPartition(topic, partition) for topic in (topics.inbox, topics.batches)]
        ask = self._offsets.stable if stable else self._offsets.newest
        try:
            answer = ask(asked, REQUEST_TIMEOUT_S)
        except KafkaException as raised:
            raise self._explained(raised, "reading the committed offset") from None
        if answer is None:
            return None
        found = {tp.topic: tp for tp in answer}
        inbox = found[topics.inbox]
        meta = CommitMeta.parse(inbox.metadata, inbox.offset)
        batches = CommitMeta.parse(found[topics.batches].metadata)
        if batches is not None:
            check_versions(partition, batches.reducers, self._config.reducers_removed)
        return Committed(max(inbox.offset, -1), meta, max(found[topics.batches].offset, -1))

    def stable_offset(self, partition: int, cancelled: Callable[[], bool], stall: Stall) -> Committed:
        """Rule T (1): never goes on without it."""
        while True:
            if cancelled():
                raise Cancelled
            found = self.committed(partition, stable=True)
            if found is not None:
                stall.moved()
                return found
            stall.waiting(f"the offset of inbox partition {partition} is held by an open transaction")
            time.sleep(UNSTABLE_POLL_MS / 1000)

    def marks(self, partition: int) -> Marks:
        """Rule T (2). One request for the ends and one for the starts."""
        topics = self._config.topics
        names = (topics.state, topics.history, topics.generations, topics.inbox, topics.batches)
        asked = [TopicPartition(topic, partition) for topic in names]
        try:
            ends = log_ends(self._admin, asked, REQUEST_TIMEOUT_S)
            starts = list_ends(
                self._admin,
                {tp: OffsetSpec.earliest() for tp in asked},
                IsolationLevel.READ_UNCOMMITTED,
                REQUEST_TIMEOUT_S,
            )
            end = dict(zip(names, ends, strict=True))
            start = {topic: starts[topic, partition] for topic in names}
        except KafkaException as raised:
            raise self._explained(raised, "reading the ends of the changelogs") from None
        return Marks(
            start[topics.state],
            end[topics.state],
            start[topics.history],
            end[topics.history],
            start[topics.generations],
            end[topics.generations],
            start[topics.inbox],
            end[topics.inbox],
            start[topics.batches],
            end[topics.batches],
        )

    def outputs_closed(self, partition: int, cancelled: Callable[[], bool], stall: Stall) -> None:
        """Rule D for what a takeover does not read: until no transaction is open on the outputs.

        A worker's transaction was met as a pending offset, which it sends first (rule T 1). What may be left
        are markers on their way, and transactions of workers of an earlier build, which sent their journal
        first and show in neither the offset nor the changelogs: readers of the journal would wait for the
        broker to time them out (15 s measured). Producers write to `batches` too, and theirs are none of ours
        to end: where it alone is held, it is waited for no longer than a worker's transaction can last, and a
        last writer that is a member of the group is not fenced for it (in a cooperative move it is alive, and
        all of its transactions for the partition have ended).
        """
        topics = self._config.topics
        written = (topics.journal, topics.rejected, topics.review, topics.work)
        batches = TopicPartition(topics.batches, partition)
        outputs = [
            *(TopicPartition(topic, partition) for topic in written),
            batches,
        ]
        # A fixed mark, not "equal ends": where another owner is alive and writing, its stable end passes the
        # mark at once, and it must not be fenced for having something in flight at every look.
        marks = self._ends(outputs, IsolationLevel.READ_UNCOMMITTED)
        until = time.monotonic() + FOREIGN_MS_MAX / 1000
        while True:
            if cancelled():
                raise Cancelled
            stable = self._ends(outputs, IsolationLevel.READ_COMMITTED)
            held = [tp for tp, end, mark in zip(outputs, stable, marks, strict=True) if end < mark]
            if held == [batches] and time.monotonic() > until:
                self._log.warning("batches_held_by_producer", partition=partition, stable_end=stable[-1])
                held = []
            if not held:
                stall.moved()
                return
            stall.waiting(
                f"a transaction is open on {', '.join(f'{tp.topic}/{partition}' for tp in held)}",
                foreign=held == [batches],
            )
            time.sleep(UNSTABLE_POLL_MS / 1000)

    def _ends(self, partitions: Sequence[TopicPartition], isolation: IsolationLevel) -> list[int]:
        try:
            return log_ends(self._admin, partitions, REQUEST_TIMEOUT_S, isolation)
        except KafkaException as raised:
            raise self._explained(raised, "reading the ends of the outputs") from None

    def batches_end(self, partition: int) -> int:
        """High watermark of a batches partition, as of now: the mark of rule G10's catching up.

        Not the stable end: a transaction whose commit was answered may still hold it back, because its
        markers are written afterwards (and who appended a GenerationFinished may have waited for that
        answer). Raises :class:`TransientError` and the like; asked again by the caller.
        """
        [end] = self._ends(
            [TopicPartition(self._config.topics.batches, partition)], IsolationLevel.READ_UNCOMMITTED
        )
        return end

    def unread(self, partitions: Sequence[int]) -> dict[int, int]:
        """Inbox records that the group has not committed, per partition; only for the order of restores."""
        topics = self._config.topics
        inbox = [TopicPartition(topics.inbox, number) for number in partitions]
        try:
            # The other kind of question would have to connect first, at the start of a worker.
            found = self._offsets.stable(inbox, REQUEST_TIMEOUT_S)
            if found is None:
                found = self._offsets.newest(inbox, REQUEST_TIMEOUT_S)
        except KafkaException as raised:
            raise self._explained(raised, "reading the committed offsets") from None
        committed = {tp.partition: tp.offset for tp in found}
        ends = self._ends(inbox, IsolationLevel.READ_UNCOMMITTED)
        return {
            number: max(0, end - max(committed.get(number, 0), 0))
            for number, end in zip(partitions, ends, strict=True)
        }

    def inbox_ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """Log ends of inbox partitions, for lag. Raises KafkaException as it is: what it means to the worker
        is the caller's to find out."""
        inbox = [TopicPartition(self._config.topics.inbox, number) for number in partitions]
        return dict(zip(partitions, log_ends(self._admin, inbox, REQUEST_TIMEOUT_S), strict=True))

    def at_work(self, transactional_id: str) -> bool:
        """Whether the worker of this id is a member of the group; True where the group cannot be asked."""
        topics = self._config.topics
        try:
            described = group.describe(self._admin, topics.group, REQUEST_TIMEOUT_S)
        except KafkaException as raised:
            error = error_of(raised)
            self._log.warning("members_unknown", reason=str(raised) if error is None else error.str())
            return True
        return described is not None and any(
            topics.transactional_id(group.instance_of(member)) == transactional_id
            for member in described.members
        )

    def fence(self, transactional_id: str) -> bool:
        """Rule D: end the dead worker's open transaction. Never our own id. True when it was done."""
        if transactional_id == self._config.transactional_id:
            return False
        started = time.monotonic()
        producer = clients.transactional(self._config, transactional_id, message_bytes_max=1_000_000)
        clients.connect(producer, self._config.topics.inbox)
        try:
            producer.init_transactions(FENCE_TIMEOUT_S)
        except KafkaException as raised:
            error = error_of(raised)
            if error is None or not error.retriable():
                raise self._explained(raised, f"fencing {transactional_id}") from None
            return False
        self.dead_fenced += 1
        self._log.info(
            "dead_worker_fenced",
            transactional_id=transactional_id,
            seconds=round(time.monotonic() - started, 3),
        )
        return True

    def _explained(self, error: KafkaError | KafkaException, doing: str) -> Exception:
        return explain(error, doing=doing, bootstrap=self._config.bootstrap)


class Stall:
    """Watches a takeover that waits: fences the dead after 200 ms, gives up loudly after the limit."""

    def __init__(self, cluster: Cluster, partition: int, *, limit_ms: int, fencing: bool = True) -> None:
        self._cluster = cluster
        self._partition = partition
        self._limit_s = limit_ms / 1000
        self._fencing = fencing
        self._since: float | None = None
        self._looked_at = 0.0
        self._fenced_at: float | None = None
        self._asked_at: float | None = None
        self.waited_s = 0.0

    def moved(self) -> None:
        if self._since is not None:
            self.waited_s += time.monotonic() - self._since
            self._since = None

    def waiting(self, why: str, *, foreign: bool = False) -> None:
        """Call while there is no progress. Raises :class:`UnavailableError` after the limit.

        ``foreign``: somebody else than a worker may hold it: the last writer is only fenced if it is gone.
        """
        now = time.monotonic()
        pause_ms, self._looked_at = (now - self._looked_at) * 1000, now
        if self._since is None or pause_ms > LOOK_PAUSE_MS_MAX:
            self._since = now
            return
        stalled = now - self._since
        if stalled * 1000 < UNSTABLE_MS_MAX:
            return
        last = self._cluster.committed(self._partition, stable=False)
        txid = last.meta.txid if last is not None and last.meta is not None else None
        if stalled > self._limit_s:
            raise UnavailableError(
                f"partition {self._partition} cannot be taken over: {why} for {stalled:.0f} s. Last writer:"
                f" {txid or 'unknown'}. It could not be fenced; find the open transaction with"
                " `kafka-transactions.sh find-hanging` and abort it, then start again"
            )
        if not self._fencing or txid is None or not _due(self._fenced_at, now):
            return
        if foreign:
            if not _due(self._asked_at, now):
                return
            self._asked_at = now
            if self._cluster.at_work(txid):
                return
        self._fenced_at = now
        self._cluster.fence(txid)


def _due(last: float | None, now: float) -> bool:
    return last is None or (now - last) * 1000 > FENCE_AGAIN_MS


def ensure_retry(error: Exception) -> bool:
    """Whether a takeover that failed with ``error`` is worth another try."""
    return isinstance(error, TransientError | UnavailableError)
