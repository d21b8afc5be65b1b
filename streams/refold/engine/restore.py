"""Rebuild one partition: local DB if it can be trusted, plus the tail of its changelogs, by rule T in order.

1. the group's committed offset, *stable* (``takeover.Cluster.stable_offset``);
2. then the high watermarks of state and history (read_uncommitted);
3. read both in read_committed until the *position* reaches the marks (end-of-partition fires at the last
stable
   offset and is not an end);
4. the position has passed what the commit metadata says was written;
5. the caller starts the source explicitly at (1).

No progress: rule D (``takeover.Stall``). A local copy too old to have seen every tombstone, or ahead of the
group, or of another topic, is set aside (rule Z). Runs on a restore thread; blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.engine import clients, history, rows
from refold.engine.config import EngineConfig
from refold.engine.plan import Written
from refold.engine.points import Points
from refold.engine.store import Batch, Memory, Store, set_aside
from refold.engine.takeover import Cancelled, Cluster, Committed, Marks, Stall
from refold.errors import ConfigError, StorageError, TransientError
from refold.topology.failures import explain

#: Records per consume call and WriteBatch: 2 000 snapshots of 1.6 KB are 3 MB.
CHUNK_RECORDS: Final = 2_000
POLL_S: Final = 0.02

#: Rule Z: a copy is rebuilt this long before tombstones may be gone.
TOMBSTONE_MARGIN_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What start-up learnt of the changelogs: identity and how long tombstones stay."""

    state_id: str
    history_id: str
    delete_retention_ms: int


@dataclass(frozen=True, slots=True)
class Restored:
    """Ready to be fed from ``offset``. ``claim``: the group's metadata does not name this worker yet."""

    offset: int
    written: Written
    claim: bool
    records: int
    waited_s: float
    seconds: float
    set_aside: str | None


class Restorer:
    """One per worker; :meth:`run` may be called from several threads, for different partitions."""

    def __init__(
        self,
        config: EngineConfig,
        cluster: Cluster,
        facts: TopicFacts,
        memory: Memory,
        points: Points,
        *,
        log: Any,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._facts = facts
        self._memory = memory
        self._points = points
        self._log = log
        self._now_ms = now_ms

    def path(self, partition: int) -> Path:
        return self._config.store_dir / f"p{partition:05d}"

    def missing(self, partition: int) -> float:
        """Estimate of the part of the state that is not on this disk: 0 … 1. Only for pacing."""
        marks = self._cluster.marks(partition)
        path = self.path(partition)
        if marks.state_end <= marks.state_start:
            return 0.0
        if not path.exists():
            return 1.0
        store = Store(path, self._memory)
        try:
            frontier = store.frontier()
        except StorageError:
            return 1.0
        finally:
            store.close(flush=False)
        if frontier is None or frontier.state_topic != self._facts.state_id:
            return 1.0
        behind = max(0, marks.state_end - max(frontier.state_next, marks.state_start))
        return min(1.0, behind / (marks.state_end - marks.state_start))

    def run(
        self, partition: int, cancelled: Callable[[], bool], progress: Callable[[float], None]
    ) -> Restored:
        """Rule T. Raises :class:`Cancelled`, ConfigError, StorageError, UnavailableError, PermissionDenied.

        ``progress`` is told the fraction done.
        """
        started = time.monotonic()
        sabotaged = self._config.sabotage.restore_to_eof
        stall = Stall(
            self._cluster, partition, limit_ms=self._config.takeover_stall_ms_max, fencing=not sabotaged
        )
        if sabotaged:
            marks, committed = self._cluster.marks(partition), self._unstable(partition)
        else:
            committed = self._cluster.stable_offset(partition, cancelled, stall)
            self._points.reach("after_stable_offset")
            marks = self._cluster.marks(partition)
            self._points.reach("after_mark")
            self._cluster.outputs_closed(partition, cancelled, stall)
        store, frontier, why = self._open(partition, committed, marks)
        try:
            reading = _Reading(self, partition, store, frontier, marks, cancelled, progress, stall)
            records = reading.to_the_marks(stop_at_eof=sabotaged)
            if sabotaged and self._cluster.committed(partition, stable=True) is None:
                # Where the fault bites: read to the end, and the offset still held by an open transaction.
                self._points.reach("after_mark")
                committed = self._cluster.stable_offset(partition, cancelled, stall)
            else:
                self._check(partition, committed, marks, reading)
            offset = self._start(partition, committed, marks)
            written = Written(
                store, self._facts.state_id, self._facts.history_id, reading.state_next, reading.history_next
            )
            batch = Batch()
            batch.frontier(self._frontier(offset, written.state_next, written.history_next, self._now_ms()))
            store.write(batch)
        except BaseException:
            store.close()
            raise
        self._points.reach("after_restore")
        meta = committed.meta
        return Restored(
            offset=offset,
            written=written,
            claim=meta is None or meta.txid != self._config.transactional_id,
            records=records,
            waited_s=stall.waited_s,
            seconds=time.monotonic() - started,
            set_aside=why,
        )

    def _unstable(self, partition: int) -> Committed:
        return self._cluster.committed(partition, stable=False) or Committed(-1, None)

    def _frontier(self, inbox: int, state: int, hist: int, applied_ms: int) -> rows.Frontier:
        return rows.Frontier(self._facts.state_id, self._facts.history_id, inbox, state, hist, applied_ms)

    def _open(
        self, partition: int, committed: Committed, marks: Marks
    ) -> tuple[Store, rows.Frontier, str | None]:
        path = self.path(partition)
        fresh = self._frontier(-1, marks.state_start, marks.history_start, 0)
        existed = path.exists()
        why: str | None = None
        try:
            store = Store(path, self._memory)
        except StorageError as error:
            if "locked" in str(error) or "no space" in str(error) or not existed:
                raise
            why = "damaged"
        else:
            try:
                frontier = store.frontier()
            except StorageError:
                why = "damaged"
            else:
                if frontier is None:
                    if store.empty():
                        # New, or killed before anything was flushed.
                        return store, fresh, None
                    why = "damaged"
                else:
                    why = self._distrust(frontier, committed, marks)
                    if why is None:
                        return store, frontier, None
            store.close(flush=False)
        self._log.info("local_store_set_aside", partition=partition, reason=why)
        set_aside(path)
        return Store(path, self._memory), fresh, why

    def _distrust(self, local: rows.Frontier, committed: Committed, marks: Marks) -> str | None:
        """Why the local copy must not be used (a word of a closed list), or ``None``."""
        if local.format != rows.FORMAT:
            return "format"
        if (local.state_topic, local.history_topic) != (self._facts.state_id, self._facts.history_id):
            return "other_topic"
        if local.state_next > marks.state_end or local.history_next > marks.history_end:
            return "ahead"
        if not self._config.sabotage.disk_before_commit and local.inbox_next > max(committed.offset, 0):
            return "ahead"
        complete = local.state_next >= marks.state_end and local.history_next >= marks.history_end
        age_ms = self._now_ms() - local.applied_ms
        if not complete and age_ms > self._facts.delete_retention_ms - TOMBSTONE_MARGIN_MS:
            return "too_old"
        return None

    def _check(self, partition: int, committed: Committed, marks: Marks, reading: _Reading) -> None:
        """Rule T (4), and that offset and changelog belong together."""
        topics, meta = self._config.topics, committed.meta
        if committed.offset < 0 and reading.found_state:
            now = self._cluster.committed(partition, stable=True)
            if now != committed:
                # This process stood still between (1) and (2), and another owner made its first commit.
                raise TransientError(
                    f"the offset of {topics.inbox}/{partition} was committed while its changelog was"
                    " being read"
                )
            raise ConfigError(
                f"{topics.state}/{partition} has sessions, but group {topics.group} has no committed"
                " offset for"
                f" {topics.inbox}/{partition}: the group was deleted or expired, or --prefix names another"
                " deployment's topics. Starting would apply every inbox record again. Set the offset on"
                " purpose with"
                f" `kafka-consumer-groups.sh --group {topics.group} --topic {topics.inbox}:{partition}"
                " --reset-offsets --to-offset N --execute` (records before N are never read again)"
            )
        behind = meta is not None and (
            reading.state_next < meta.state_next or reading.history_next < meta.history_next
        )
        empty = meta is None and committed.offset > 0 and marks.state_end == 0
        if behind or empty:
            raise ConfigError(
                f"group {topics.group} has committed offset {committed.offset} for"
                f" {topics.inbox}/{partition}, but"
                f" the changelog {topics.state}/{partition} ends before what that commit wrote: the topic was"
                " recreated or truncated. Starting would forget sessions. Restore the topic from a"
                " backup, or fold"
                " everything again: delete the group's offsets with `kafka-consumer-groups.sh"
                " --delete-offsets"
                f" --group {topics.group} --topic {topics.inbox}` while the inbox still holds everything"
            )

    def _start(self, partition: int, committed: Committed, marks: Marks) -> int:
        if committed.offset < 0:
            return marks.inbox_start
        if committed.offset < marks.inbox_start:
            topics = self._config.topics
            if marks.inbox_start < marks.inbox_end:
                raise ConfigError(
                    f"{topics.inbox}/{partition} begins at {marks.inbox_start}, but only records before"
                    f" {committed.offset} were read: retention may have deleted unread records. To go on"
                    " without"
                    f" them: `kafka-consumer-groups.sh --group {topics.group} --topic"
                    f" {topics.inbox}:{partition}"
                    " --reset-offsets --to-earliest --execute`"
                )
            self._log.error(
                "inbox_expired", partition=partition, committed=committed.offset, begins=marks.inbox_start
            )
            return marks.inbox_start
        return committed.offset


class _Reading:
    """Steps (3) of rule T for one partition: both changelogs, from where the local copy ends to the marks."""

    def __init__(
        self,
        restorer: Restorer,
        partition: int,
        store: Store,
        frontier: rows.Frontier,
        marks: Marks,
        cancelled: Callable[[], bool],
        progress: Callable[[float], None],
        stall: Stall,
    ) -> None:
        self._restorer = restorer
        self._config = restorer._config
        self._partition = partition
        self._store = store
        self._inbox_next = frontier.inbox_next
        self._marks = marks
        self._cancelled = cancelled
        self._progress = progress
        self._stall = stall
        self.state_next = max(frontier.state_next, marks.state_start)
        self.history_next = max(frontier.history_next, marks.history_start)
        self._applied_ms = frontier.applied_ms
        #: Whether any session record exists (tombstones and aborted records do not count).
        self.found_state = frontier.inbox_next >= 0 and not store.empty()

    def _done(self) -> bool:
        return self.state_next >= self._marks.state_end and self.history_next >= self._marks.history_end

    def to_the_marks(self, *, stop_at_eof: bool) -> int:
        if self._done():
            return 0
        reader = clients.restore_reader(self._config)
        try:
            return self._read(reader, stop_at_eof)
        except KafkaException as raised:
            raise explain(
                raised,
                doing=f"restoring partition {self._partition}",
                bootstrap=self._config.bootstrap,
            ) from None
        finally:
            reader.close()

    def _read(self, reader: Consumer, stop_at_eof: bool) -> int:
        topics = self._config.topics
        wanted = []
        if self.state_next < self._marks.state_end:
            wanted.append(TopicPartition(topics.state, self._partition, self.state_next))
        if self.history_next < self._marks.history_end:
            wanted.append(TopicPartition(topics.history, self._partition, self.history_next))
        reader.assign(wanted)
        total = max(1, self._marks.state_end - self.state_next)
        at_eof: set[str] = set()
        count = 0
        while not self._done():
            if self._cancelled():
                raise Cancelled
            first = reader.poll(POLL_S)
            if first is None:
                self._stall.waiting(
                    f"the changelog of partition {self._partition} is held by an open transaction"
                )
                continue
            before = (self.state_next, self.history_next)
            batch = Batch()
            for message in [first, *reader.consume(CHUNK_RECORDS - 1, 0)]:
                error = message.error()
                if error is None:
                    self._apply(batch, message)
                    count += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._passed(message.topic(), message.offset())
                    at_eof.add(message.topic())
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise StorageError(
                        f"the changelog of partition {self._partition} no longer holds the offset to go"
                        " on from;"
                        " delete the local directory and start again"
                    )
                elif not error.retriable():
                    raise KafkaException(error)
            batch.frontier(
                self._restorer._frontier(
                    self._inbox_next, self.state_next, self.history_next, self._applied_ms
                )
            )
            self._store.write(batch)
            if (self.state_next, self.history_next) != before:
                self._stall.moved()
                self._progress(1.0 - max(0, self._marks.state_end - self.state_next) / total)
            else:
                self._stall.waiting(
                    f"the changelog of partition {self._partition} is held by an open transaction"
                )
            if stop_at_eof and at_eof == {item.topic for item in wanted}:
                break
        return count

    def _apply(self, batch: Batch, message: Message) -> None:
        key, value, topic = message.key(), message.value(), message.topic()
        if key is None:
            self._passed(topic, message.offset() + 1)
            return
        if topic == self._config.topics.state:
            if value is None:
                batch.delete_state(key)
            else:
                self.found_state = True
                header = b""
                for name, content in message.headers() or ():
                    if name == history.HEADER:
                        header = content or b""
                batch.put_state(key, rows.pack(rows.snapshot_seq(value), header, value))
        elif value is None:
            batch.delete_block(key)
        else:
            batch.put_block(key, value)
        self._applied_ms = max(self._applied_ms, message.timestamp()[1])
        self._passed(topic, message.offset() + 1)

    def _passed(self, topic: str, position: int) -> None:
        if topic == self._config.topics.state:
            self.state_next = max(self.state_next, position)
        else:
            self.history_next = max(self.history_next, position)
