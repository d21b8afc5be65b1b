"""Rebuild one partition: local DB if it can be trusted, plus the tail of its changelogs, by rule T in order.

1. the group's committed offsets of inbox and batches, *stable* (``takeover.Cluster.stable_offset``);
2. then the high watermarks of state, history and generations (read_uncommitted);
3. read them in read_committed until the *position* reaches the marks (:mod:`refold.engine.changelogs`);
4. the position has passed what the commit metadata says was written;
5. the caller starts both sources explicitly at (1).

No progress: rule D (``takeover.Stall``). A local copy too old to have seen every tombstone, or ahead of the
group, or of another topic, is set aside (rule Z). Runs on a restore thread; blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from refold.engine import rows
from refold.engine.admission import Pace
from refold.engine.changelogs import Reading, StoodStill
from refold.engine.checkpoints.source import CheckpointSource
from refold.engine.config import EngineConfig
from refold.engine.plan import Written
from refold.engine.points import Points
from refold.engine.restored import Restored as Restored
from refold.engine.store import (
    Batch,
    BlockedStore,
    Memory,
    Store,
    UnreadableStore,
    foreign,
    set_aside,
    sorted_files,
    stored_frontier,
)
from refold.engine.takeover import Cluster, Committed, Marks, Stall
from refold.engine.warming import opening
from refold.engine.warming.keyset import Allowance
from refold.engine.warming.restoring import HotRestorer
from refold.engine.warming.unread import KeyFilter
from refold.engine.warming.warmer import Warmer
from refold.errors import ConfigError, StorageError, TransientError

#: Rule Z: a copy is rebuilt this long before tombstones may be gone.
TOMBSTONE_MARGIN_MS: Final = 3_600_000

#: However short a time a cluster keeps deletions, a restore may last so long, or none would ever end.
READING_MS_MIN: Final = 600_000

#: Ahead of every offset: whoever reads no source cannot be ahead of the group.
_NOT_FED: Final = Committed(2**63 - 1, None, 2**63 - 1)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What start-up learnt of the changelogs: identity and how long tombstones stay."""

    state_id: str
    history_id: str
    generations_id: str
    delete_retention_ms: int


class Restorer(HotRestorer):
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
        checkpoints: CheckpointSource | None = None,
        key_filter: Callable[[int], KeyFilter | None] | None = None,
    ) -> None:
        """``key_filter``: where restores that are hot first take it from, instead of ``checkpoints``; may
        block."""
        self._config = config
        self._cluster = cluster
        self._facts = facts
        self._memory = memory
        self._points = points
        self._log = log
        self._now_ms = now_ms
        #: Of all restores of this worker together; whoever else reads for a restore spends from it too.
        self.pace = Pace(config.restore_bytes_per_s_max)
        self._checkpoints = checkpoints
        if checkpoints is not None:
            checkpoints.pace = self.pace
        self._key_filter = key_filter
        self._allowance = Allowance()

    def path(self, partition: int) -> Path:
        return self._config.store_dir / f"p{partition:05d}"

    def unread(self, partitions: Sequence[int]) -> dict[int, int]:
        """Inbox records waiting per partition. Raises Transient- and UnavailableError."""
        return self._cluster.unread(partitions)

    def missing(self, partition: int) -> float:
        """Estimate of the part of the state that is not on this disk: 0 … 1. Only for pacing."""
        marks = self._cluster.marks(partition)
        path = self.path(partition)
        if marks.state_end <= marks.state_start:
            return 0.0
        if not path.exists() or foreign(path):
            return 1.0
        try:
            # Without changing it: opened for good, RocksDB may tidy away what shows that it is damaged.
            frontier = stored_frontier(path, self._memory)
        except StorageError:
            # What is wrong with it is found and said when it is restored.
            return 1.0
        if frontier is None or frontier.state_topic != self._facts.state_id:
            return 1.0
        behind = opening.unread_offsets(frontier, marks)
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
            marks = self._marks(partition)
            committed = self._cluster.committed(partition, stable=False) or Committed(-1, None)
        else:
            committed = self._cluster.stable_offset(partition, cancelled, stall)
            self._points.reach("after_stable_offset")
            marks = self._marks(partition)
            self._points.reach("after_mark")
            self._cluster.outputs_closed(partition, cancelled, stall)
        try:
            restored = self._bring_or_anew(partition, committed, marks, stall, cancelled, progress)
        except StoodStill:
            self.set_aside(partition, "too_old")
            raise TransientError(
                f"restoring partition {partition} took longer than deletions are kept; it begins anew"
            ) from None
        return replace(restored, seconds=time.monotonic() - started)

    def _bring_or_anew(
        self,
        partition: int,
        committed: Committed,
        marks: Marks,
        stall: Stall,
        cancelled: Callable[[], bool],
        progress: Callable[[float], None],
    ) -> Restored:
        try:
            return self._bring(partition, committed, marks, stall, cancelled, progress, self._checkpoints)
        except UnreadableStore as error:
            # Found when it was written to or read from, which is later than when it is opened.
            self._log.error("local_store_unreadable", partition=partition, error=str(error))
            self.set_aside(partition, "damaged")
            # Of a checkpoint perhaps: this time from the changelogs alone.
            restored = self._bring(partition, committed, marks, stall, cancelled, progress, None)
            return replace(restored, set_aside="damaged")

    def _bring(
        self,
        partition: int,
        committed: Committed,
        marks: Marks,
        stall: Stall,
        cancelled: Callable[[], bool],
        progress: Callable[[float], None],
        checkpoints: CheckpointSource | None,
    ) -> Restored:
        """From (3) on, with what is on this disk."""
        sabotaged = self._config.sabotage.restore_to_eof
        store, frontier, why = self._open(partition, committed, marks)
        here = store
        if checkpoints is not None:
            shown, hot = opening.lowered(frontier), self._serves(frontier, committed, marks)
            judge = partial(self._distrust, committed=committed, marks=marks)
            store, found = checkpoints.better(partition, store, shown, judge, cancelled, hot=hot)
            frontier = frontier if found is shown else found
        try:
            # One that came from a checkpoint was compared with what was uploaded.
            unproved = store is here and frontier.inbox_next >= 0 and not self._proved(store)
            warmer = self._hot(partition, store, frontier, committed, marks, stall, cancelled, checkpoints)
            if warmer is not None:
                warmer.written.unproved = unproved
                progress(warmer.progress)
                return self._restored(
                    committed, warmer.written, warmer.start, warmer.records, stall, why, warmer
                )
            frontier = opening.settled(store, frontier)
            reading = Reading(self._config, partition, store, frontier, marks, cancelled, progress, stall)
            reading.pace = self.pace
            reading.points = self._points
            since_ms = frontier.applied_ms or marks.asked_ms
            reading.expired = lambda: self._now_ms() - since_ms > self.reading_ms_max
            records = reading.to_the_marks(stop_at_eof=sabotaged)
            if sabotaged and self._cluster.committed(partition, stable=True) is None:
                # Where the fault bites: read to the end, and the offset still held by an open transaction.
                self._points.reach("after_mark")
                committed = self._cluster.stable_offset(partition, cancelled, stall)
            else:
                self._check(partition, committed, marks, reading)
            offset, batches = self._starts(partition, committed, marks)
            facts = self._facts
            written = Written(
                store,
                facts.state_id,
                facts.history_id,
                facts.generations_id,
                reading.state_next,
                reading.history_next,
                reading.generations_next,
                unproved=unproved,
            )
            batch = Batch()
            batch.frontier(
                rows.Frontier(
                    facts.state_id,
                    facts.history_id,
                    facts.generations_id,
                    offset,
                    batches,
                    written.state_next,
                    written.history_next,
                    written.generations_next,
                    marks.asked_ms,
                )
            )
            store.write(batch)
            self._sign(partition, store)
        except BaseException:
            store.close()
            if checkpoints is not None:
                checkpoints.forget(partition)
            raise
        return self._restored(committed, written, (offset, batches), records, stall, why)

    def _restored(
        self,
        committed: Committed,
        written: Written,
        start: tuple[int, int],
        records: int,
        stall: Stall,
        why: str | None,
        warmer: Warmer | None = None,
    ) -> Restored:
        self._points.reach("after_restore")
        meta = committed.meta
        return Restored(
            offset=start[0],
            batches=start[1],
            written=written,
            claim=meta is None or meta.txid != self._config.transactional_id,
            records=records,
            waited_s=stall.waited_s,
            seconds=0.0,
            set_aside=why,
            # From another offset than the committed one where retention has taken what was not read.
            beyond=None if meta is None or meta.beyond is None else meta.beyond.since(start[0]),
            warmer=warmer,
        )

    def open_copy(self, partition: int, marks: Marks) -> tuple[Store, rows.Frontier, str | None]:
        """The partition's directory for a standby: what can be trusted of it, open, and why an earlier copy
        was set aside. Judged as for a restore, but for the group's offsets: a standby is not fed (rule S2).

        Raises :class:`StorageError`.
        """
        store, frontier, why = self._open(partition, _NOT_FED, marks)
        try:
            return store, opening.settled(store, frontier), why
        except StorageError:
            store.close(flush=False)
            raise

    @property
    def copy_lifetime_ms(self) -> int:
        """For how long what a copy has not read is sure to hold every tombstone (rule Z)."""
        return self._facts.delete_retention_ms - TOMBSTONE_MARGIN_MS

    @property
    def reading_ms_max(self) -> int:
        return max(self.copy_lifetime_ms, READING_MS_MIN)

    def now_ms(self) -> int:
        """The wall clock that copies are judged by."""
        return self._now_ms()

    def _marks(self, partition: int) -> Marks:
        asked_ms = self._now_ms()
        return replace(self._cluster.marks(partition), asked_ms=asked_ms)

    def _open(
        self, partition: int, committed: Committed, marks: Marks
    ) -> tuple[Store, rows.Frontier, str | None]:
        path = self.path(partition)
        facts = self._facts
        fresh = rows.Frontier(
            facts.state_id,
            facts.history_id,
            facts.generations_id,
            -1,
            -1,
            marks.state_start,
            marks.history_start,
            marks.generations_start,
            0,
        )
        why: str | None = None
        if foreign(path):
            why = "foreign"
        else:
            existed = path.exists()
            files = sorted_files(path)
            try:
                store = Store(path, self._memory)
            except StorageError as error:
                if isinstance(error, BlockedStore) or not existed:
                    raise
                why = "damaged"
            else:
                try:
                    frontier = store.frontier()
                    why = self._judge(partition, store, frontier, committed, marks)
                    if frontier is None and why is None and files:
                        # RocksDB begins anew where its list of files lost its end, and deletes them.
                        why = "damaged"
                except StorageError:
                    why = "damaged"
                if why is None:
                    return store, frontier or fresh, None
                store.close(flush=False)
        self.set_aside(partition, why)
        return Store(path, self._memory), fresh, why

    def set_aside(self, partition: int, why: str) -> None:
        """Move the partition's closed copy out of the way. ``why``: a word of a closed list. Blocks."""
        self._log.info("local_store_set_aside", partition=partition, reason=why)
        set_aside(self.path(partition))

    def _proved(self, store: Store) -> bool:
        """Whether the copy was compared with the changelogs of these topics (rule V2)."""
        note = store.note(rows.VALIDATED_KEY)
        return note is not None and rows.Validated.decode(note).state_topic == self._facts.state_id

    def _identity(self, partition: int) -> bytes:
        return f"{self._config.prefix}/{partition}".encode()

    def _judge(
        self,
        partition: int,
        store: Store,
        frontier: rows.Frontier | None,
        committed: Committed,
        marks: Marks,
    ) -> str | None:
        if frontier is None:
            # New, or killed before anything was flushed; else somebody else's: what refold writes has one.
            return None if store.blank() else "foreign"
        if store.note(rows.PARTITION_KEY) not in (None, self._identity(partition)):
            return "foreign"
        return self._distrust(frontier, committed, marks)

    def _distrust(self, local: rows.Frontier, committed: Committed, marks: Marks) -> str | None:
        """Why the local copy must not be used (a word of a closed list), or ``None``."""
        if local.format != rows.FORMAT:
            return "format"
        facts = self._facts
        topics = (local.state_topic, local.history_topic, local.generations_topic)
        if topics != (facts.state_id, facts.history_id, facts.generations_id):
            return "other_topic"
        ends = (
            (local.state_next, marks.state_end),
            (local.history_next, marks.history_end),
            (local.generations_next, marks.generations_end),
        )
        if any(at > end for at, end in ends):
            return "ahead"
        # A start that no commit has followed yet is log start, which retention may have moved meanwhile.
        batches_next = max(committed.batches, marks.batches_start)
        if not self._config.sabotage.disk_before_commit and (
            local.inbox_next > max(committed.offset, 0) or local.batches_next > batches_next
        ):
            return "ahead"
        complete = local.hole is None and all(at >= end for at, end in ends)
        age_ms = self._now_ms() - local.applied_ms
        age_ms_max = self._facts.delete_retention_ms - TOMBSTONE_MARGIN_MS
        # Of the future: a clock was ahead when it was written, and its age is not known.
        if not complete and not -TOMBSTONE_MARGIN_MS <= age_ms <= age_ms_max:
            return "too_old"
        return None

    def _check(
        self, partition: int, committed: Committed, marks: Marks, reading: Reading | opening.Reached
    ) -> None:
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
                " --reset-offsets --to-offset N --execute` (records before N are never read again)."
                f" {topics.batches} is then read from where it begins: what was folded already is counted as"
                " repeated, generations under way go on"
            )
        behind = meta is not None and (
            reading.state_next < meta.state_next
            or reading.history_next < meta.history_next
            or reading.generations_next < meta.generations_next
        )
        empty = meta is None and committed.offset > 0 and marks.state_end == 0
        if behind or empty:
            raise ConfigError(
                f"group {topics.group} has committed offset {committed.offset} for"
                f" {topics.inbox}/{partition}, but"
                f" a changelog ({topics.state}/{partition}, or that of {topics.history} or"
                f" {topics.generations}) ends before what that commit wrote: the topic was recreated or"
                " truncated. Starting would forget sessions. Restore the topic from a backup, or fold"
                " everything again: delete the group's offsets with `kafka-consumer-groups.sh"
                " --delete-offsets"
                f" --group {topics.group} --topic {topics.inbox}`, and `--topic {topics.batches}`, while the"
                f" inbox still holds everything. {topics.batches} holds one day: the messages of generations"
                " that finished earlier are then refused (batches_missing) and kept in the rejected topic, so"
                " the backup is the better way where there are any"
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

    def _start_batches(self, partition: int, committed: Committed, marks: Marks) -> int:
        """Batches are a buffer: what retention took is gone for followers as well, and nothing else hangs on
        it. Where all is gone but one offset was not read, that was the marker of our last transaction."""
        topics = self._config.topics
        if committed.batches < 0:
            return marks.batches_start
        if committed.batches > marks.batches_end:
            raise ConfigError(
                f"group {topics.group} has committed offset {committed.batches} for"
                f" {topics.batches}/{partition}, but it ends at {marks.batches_end}: the topic was recreated"
                " or truncated. To read it from its beginning: `kafka-consumer-groups.sh --group"
                f" {topics.group} --topic {topics.batches}:{partition} --reset-offsets --to-earliest"
                " --execute`"
            )
        if committed.batches < marks.batches_start:
            unread = marks.batches_start < marks.batches_end or marks.batches_start - committed.batches > 1
            say = self._log.error if unread else self._log.info
            say(
                "batches_expired",
                partition=partition,
                committed=committed.batches,
                begins=marks.batches_start,
                harm="generations whose batches are gone cannot finish; nothing else is affected",
            )
            return marks.batches_start
        return committed.batches
