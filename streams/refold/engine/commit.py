"""The commit: one transaction over journal, outputs, changelogs and the offsets of both sources, then
RocksDB.

Order (rule F, rule A), each gap a named point (:data:`refold.engine.points.COMMIT`)::

    begin ─ send_offsets(inbox and batches of every partition written for)
          ─ produce journal, rejected, forwards, markers, review, history, generations, state
          ─ prove the journal's offsets ─ commit ─ one RocksDB WriteBatch per partition

- The offsets come first. Who is not a member is refused before it has written anything; whoever takes the
  partition over waits for the pending offsets, and with them for the records that follow. And while the
  coordinator still writes the last transaction's markers, librdkafka asks again after ``RETRY_BACKOFF_MS``
  for offsets, but sleeps 20 ms for records (measured: 1.3 % of the commits at 1 000 events/s, up to 2 such
  sleeps in one; the longest offsets took 7 ms instead of 23).
- A state record names the journal offsets of all its events (``history.py``). They are foretold (our last
  record, one marker, then ours, if nobody else writes) and proved by the acknowledgements before the commit;
  where they cannot be foretold, the journal is acknowledged before state records are made. A prediction that
  fails aborts, so a committed history index is exact.
- Group metadata is never sent without a membership in it. It is what the polling thread read when the
  generation last changed; after a refusal it is read again. Older metadata can only be refused, never wrongly
  accepted.
- A call that timed out is called again: its outcome is unknown, so neither an abort nor a RocksDB write is
  right.
- Fatal, fenced, or an abort that fails: :class:`FencedError`, the process ends (exit code 76).

Runs on the commit thread; blocks. Nothing here touches an object that the event loop changes meanwhile: the
overlay handed in is sealed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from refold.engine import history, rows
from refold.engine.commitmeta import CommitMeta, read_group_meta
from refold.engine.history import Tail
from refold.engine.kafkaerrors import DENIED, Verdict, behind, error_of, verdict
from refold.engine.overlay import Overlay
from refold.engine.plan import Plan, Written
from refold.engine.points import Points
from refold.engine.reducers import folded_with
from refold.engine.sabotage import Sabotage
from refold.errors import FencedError, InvariantViolation, PermissionDenied, StorageError, UnavailableError
from refold.topology.names import TopicNames

if TYPE_CHECKING:
    from refold.engine.producer.choose import TransactionalProducer

#: One call of the producer's transaction API before it is called again.
CALL_TIMEOUT_S: Final = 5.0

#: Calling again for longer than this means that the coordinator is gone: end, restart, restore. Three times
#: the default transaction timeout, after which the broker has aborted whatever was open.
COMMIT_SECONDS_MAX: Final = 30.0

#: Same overlay, fresh metadata: one rebalance needs one, a burst of them a few.
RESEND_MAX: Final = 8

#: Wait when librdkafka's queue is full: it drains at 100 k records/s, so 10 ms is 1 000 records.
QUEUE_FULL_WAIT_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Committed:
    """The transaction is committed. ``tails``: each touched session's open history block as written.

    ``failures``: partitions whose RocksDB could not be written; they must be closed and restored. ``ended``:
    when the coordinator had said so, monotonic. ``store_seconds`` and ``queue_full`` (how often the
    producer's queue was) are for the metrics.
    """

    tails: Mapping[bytes, Tail]
    failures: Mapping[int, StorageError]
    resent: int
    seconds: float
    ended: float
    store_seconds: float = 0.0
    queue_full: int = 0


@dataclass(frozen=True, slots=True)
class Aborted:
    """Nothing of the overlay is visible. Both overlays are to be discarded and the source rewound."""

    reason: str


class Ownership(Protocol):
    """The ownership table as the commit needs it. Read from the commit thread."""

    def epoch(self, partition: int) -> int | None:
        """The assignment epoch under which the partition is owned now, ``None`` when it is not."""

    def written(self, partition: int) -> Written: ...


class _Interleaved(Exception):
    """Another writer's record lies between ours or before them: the offsets are not what we wrote into state
    records. Abort and send again, this time waiting for the journal."""


class Transactor:
    """The transactional producer of this process and the order in which it is used."""

    def __init__(
        self,
        producer: TransactionalProducer,
        topics: TopicNames,
        *,
        txid: str,
        map_epoch: int,
        ownership: Ownership,
        group_metadata: Callable[[float], Any],
        points: Points,
        sabotage: Sabotage,
        now_ms: Callable[[], int],
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._txid = txid
        self._map_epoch = map_epoch
        self._ownership = ownership
        self._group_metadata = group_metadata
        self._points = points
        self._reach = points.reach
        self._during = points.during
        self._sabotage = sabotage
        self._now_ms = now_ms
        #: Wall clock of the last begin of a transaction.
        self._begun_ms = 0
        self._deadline = 0.0
        self._ended = 0.0
        #: When the call of librdkafka that is under way began; 0: there is none (``engine.stuck``).
        self.calling_since = 0.0
        self._queue_full = 0
        #: Group metadata must be read after this: the last time the broker refused it, or we were not a
        #: member.
        self._metadata_after = 0.0
        self._sent_member = ""

    def commit(self, overlay: Overlay) -> Committed | Aborted:
        """Raises :class:`FencedError`, :class:`UnavailableError` (outcome unknown) and
        :class:`InvariantViolation`; each ends the process."""
        started = time.monotonic()
        self._deadline = started + COMMIT_SECONDS_MAX
        self._queue_full = 0
        self._points.begin(sum(len(part.journal) for part in overlay.parts.values()))
        for resent in range(RESEND_MAX + 1):
            try:
                plans = self._attempt(overlay)
            except _Interleaved:
                self._abort(overlay)
                reason = "another writer's records lie between ours in the journal"
                continue
            except (KafkaException, SystemError) as raised:
                found = behind(raised)
                if found is None:
                    # "flush returned NULL without setting an exception" (seen when fenced): the error is
                    # lost, and the abort has librdkafka say whether it was final.
                    self._metadata_after = time.monotonic()
                    self._abort(overlay)
                    return Aborted(f"confluent-kafka lost the producer's error: {raised}")
                error = error_of(found)
                if error is None:
                    raise InvariantViolation(
                        f"the transaction failed without a Kafka error: {raised}"
                    ) from None
                if error.code() in DENIED:
                    raise PermissionDenied(
                        f"{self._txid}: the cluster refused a commit ({error.str()}). A worker needs"
                        " Write on its"
                        " topics and transactional id and Read on its group; `refold topology render"
                        " acls` prints"
                        " the rules"
                    ) from None
                self._metadata_after = time.monotonic()
                ruled = verdict(error)
                if error.code() == KafkaError.FENCED_INSTANCE_ID and self._joined_anew():
                    # Fenced by ourselves: we left the group and came back between reading the metadata and
                    # sending it.
                    ruled = Verdict.RESEND
                reason = f"{error.name()}: {error.str()}"
                if ruled is Verdict.FATAL:
                    raise self._fenced(reason) from None
                self._abort(overlay)
                if ruled is Verdict.RESEND and self._unchanged(overlay):
                    continue
                return Aborted(reason)
            if plans is None:
                self._abort(overlay)
                return Aborted("this worker is not a member of the group at the moment")
            tails: dict[bytes, Tail] = {}
            for plan in plans:
                tails.update(plan.tails)
            written_from = time.monotonic()
            failures = {} if self._sabotage.disk_before_commit else self._write_stores(plans)
            ended = time.monotonic()
            self._reach("after_write_batch")
            return Committed(
                tails, failures, resent, ended - started, self._ended, ended - written_from, self._queue_full
            )
        return Aborted(reason)

    def _joined_anew(self) -> bool:
        """Whether our membership is another now than the one last sent."""
        metadata = self._group_metadata(self._metadata_after)
        return metadata is not None and read_group_meta(metadata).member_id not in ("", self._sent_member)

    def _unchanged(self, overlay: Overlay) -> bool:
        return all(self._ownership.epoch(p) == part.epoch for p, part in overlay.parts.items())

    def _attempt(self, overlay: Overlay) -> list[Plan] | None:
        """One transaction. ``None``: not a member, so it was not committed and must be aborted."""
        if not self._sabotage.revoke_without_barrier and not self._unchanged(overlay):
            raise InvariantViolation(
                "a commit holds events of a partition this worker no longer owns; the revoke barrier"
                " (rule R) failed"
            )
        if self._sabotage.offsets_before_produce:
            self._call(self._producer.begin_transaction)
            early = self._plans(overlay)
            for plan in early:
                # Said to be where the changelogs are now, or the next owner finds the loss itself (rule M).
                plan.state_base -= len(plan.part.touched)
                plan.history_base -= plan.blocks_due()
                plan.generations_base -= len(plan.part.side)
            if not self._send_offsets(early):
                return None
            self._call(self._producer.commit_transaction, CALL_TIMEOUT_S)
        self._call(self._producer.begin_transaction)
        # What the disk gets is all there was now: who is suspended after the commit writes late.
        self._begun_ms = self._now_ms()
        self._reach("after_begin")
        plans = self._plans(overlay)
        late = self._sabotage.offsets_before_produce or self._sabotage.timer_without_offsets
        if not late and not self._send_offsets(plans):
            return None
        self._reach("after_send_offsets")
        self._produce_journal(plans)
        foretold = all(plan.first is not None for plan in plans if plan.part.journal)
        if not foretold:
            self._flush()
            self._prove(plans)
        self._produce_changelogs(plans)
        if self._points.armed is not None:
            # So that there is something at the broker when a test stops us here.
            self._flush()
        if self._sabotage.disk_before_commit:
            self._flush()
            self._write_stores(plans)
            for plan in plans:
                # Without it the write dies with the process, and the fault with the write.
                self._ownership.written(plan.part.partition).store.flush()
        self._reach("after_produce")
        if self._sabotage.timer_without_offsets:
            self._call(self._producer.commit_transaction, CALL_TIMEOUT_S)
            self._call(self._producer.begin_transaction)
            if not self._send_offsets(plans):
                return None
        if foretold:
            # The commit would wait for the same acknowledgements: this costs nothing.
            self._flush()
            self._prove(plans)
        with self._during("in_commit"):
            self._call(self._producer.commit_transaction, CALL_TIMEOUT_S)
        self._ended = time.monotonic()
        self._reach("after_commit")
        return plans

    def _plans(self, overlay: Overlay) -> list[Plan]:
        plans = []
        for part in overlay.parts.values():
            written = self._ownership.written(part.partition)
            plans.append(
                Plan(
                    part,
                    written.state_next,
                    written.history_next,
                    written.generations_next,
                    written.journal_next,
                )
            )
        return plans

    # --- produce -----------------------------------------------------------------------------------

    def _produce_journal(self, plans: list[Plan]) -> None:
        produce, at_once, journal = self._produce, self._producer.produce, self._topics.journal
        for plan in plans:
            part, acks = plan.part, plan.acks
            partition, last = part.partition, len(part.journal) - 1
            for at, (key, value, headers) in enumerate(part.journal):
                if 0 < at < last:
                    # Nearly all: one call each.
                    try:
                        at_once(journal, value, key, partition, headers=headers)
                    except BufferError:
                        produce(journal, partition, key, value, headers, None)
                elif at == last:
                    if at == 0:
                        acks.first = -2
                    produce(journal, partition, key, value, headers, acks.on_journal)
                else:
                    produce(journal, partition, key, value, headers, acks.on_first)
            for out in part.outputs:
                produce(out.topic, out.partition, out.key, out.value, out.headers, None)

    def _prove(self, plans: list[Plan]) -> None:
        """The journal is acknowledged: its records are contiguous, and where they were foretold to be."""
        for plan in plans:
            count, acks = len(plan.part.journal), plan.acks
            if not count:
                continue
            first = acks.journal if acks.first == -2 else acks.first
            if first < 0 or acks.journal < 0:
                self._failed_delivery()
            if acks.journal - first != count - 1 or plan.first not in (None, first):
                raise _Interleaved
            plan.first = first

    def _produce_changelogs(self, plans: list[Plan]) -> None:
        state, topic = self._topics.state, self._topics.history
        for plan in plans:
            part, acks, first = plan.part, plan.acks, plan.first or 0
            records: list[tuple[bytes, bytes | None, list[tuple[str, bytes]]]] = []
            for key, touched in part.touched.items():
                old = touched.entry.tail
                if touched.deleted:
                    for block in range(old.blocks):
                        plan.blocks[history.block_key(key, block)] = None
                    old = history.EMPTY
                offsets = [first + at for at in touched.events]
                tail, full = history.extend(old, offsets)
                for block, content in full:
                    plan.blocks[history.block_key(key, block)] = content
                plan.tails[key] = tail
                if touched.encoded is None:
                    plan.rows[key] = None
                    records.append((key, None, []))
                else:
                    header = history.encode_tail(tail)
                    plan.rows[key] = rows.pack(touched.seq, header, touched.encoded)
                    records.append((key, touched.encoded, [(history.HEADER, header)]))
            last = len(plan.blocks) - 1
            for at, (full_key, block_value) in enumerate(plan.blocks.items()):
                self._produce(
                    topic, part.partition, full_key, block_value, [], acks.on_history if at == last else None
                )
            if part.side:
                self._produce_side(plan)
            last = len(records) - 1
            for at, (key, value, headers) in enumerate(records):
                self._produce(
                    state, part.partition, key, value, headers, acks.on_state if at == last else None
                )

    def _produce_side(self, plan: Plan) -> None:
        topic, partition, acks = self._topics.generations, plan.part.partition, plan.acks
        last = len(plan.part.side) - 1
        for at, (key, row) in enumerate(plan.part.side.items()):
            self._produce(topic, partition, key, row.encoded, [], acks.on_generations if at == last else None)

    def _produce(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
        on_delivery: Callable[[Any, Message], None] | None,
    ) -> None:
        producer = self._producer
        while True:
            try:
                if on_delivery is None:
                    producer.produce(topic, value, key, partition, headers=headers)
                else:
                    producer.produce(topic, value, key, partition, on_delivery, headers=headers)
                return
            except BufferError:
                # More in flight than librdkafka's queue holds: let it send. It cannot stay full for ever: a
                # record that is not delivered in time fails the transaction.
                self._queue_full += 1
                producer.poll(QUEUE_FULL_WAIT_S)

    def _flush(self) -> None:
        while self._timed(self._producer.flush, CALL_TIMEOUT_S) > 0:
            if time.monotonic() > self._deadline:
                raise self._unknown("records are not acknowledged")

    def _failed_delivery(self) -> None:
        """A journal record was not delivered; the transaction is in its abortable state: have librdkafka say
        why."""
        self._producer.commit_transaction(CALL_TIMEOUT_S)
        raise InvariantViolation("a journal record failed and yet the transaction committed")

    # --- offsets and end ---------------------------------------------------------------------------

    def _send_offsets(self, plans: list[Plan]) -> bool:
        """Rule F: an offset for every partition written for, under metadata read now. False: not a member."""
        offsets, versions = [], folded_with()
        for plan in plans:
            meta = CommitMeta(
                txid=self._txid,
                # At least this far: the records of this transaction will follow what was there, markers not
                # counted.
                state_next=plan.state_base + len(plan.part.touched),
                history_next=plan.history_base + plan.blocks_due(),
                generations_next=plan.generations_base + len(plan.part.side),
                map_epoch=self._map_epoch,
            )
            text, part = meta.encode(), plan.part
            told = text if part.beyond is None else replace(meta, beyond=part.beyond).encode()
            offsets.append(TopicPartition(self._topics.inbox, part.partition, part.offset, told))
            if not self._sabotage.batches_without_offsets:
                named = replace(meta, reducers=versions).encode() if versions else text
                offsets.append(TopicPartition(self._topics.batches, part.partition, part.batches_next, named))
        while True:
            metadata = self._group_metadata(self._metadata_after)
            member = None if metadata is None else read_group_meta(metadata)
            if member is None or not member.joined:
                self._metadata_after = time.monotonic()
                return False
            self._sent_member = member.member_id
            try:
                self._timed(self._producer.send_offsets_to_transaction, offsets, metadata, CALL_TIMEOUT_S)
                return True
            except KafkaException as raised:
                self._again_or_raise(raised)

    def _call(self, call: Callable[..., Any], *arguments: Any) -> None:
        while True:
            try:
                self._timed(call, *arguments)
                return
            except KafkaException as raised:
                self._again_or_raise(raised)

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self.calling_since = time.monotonic()
        try:
            return call(*arguments)
        finally:
            self.calling_since = 0.0

    def _again_or_raise(self, raised: KafkaException) -> None:
        error = error_of(raised)
        if error is None or verdict(error) is not Verdict.AGAIN:
            raise raised
        if time.monotonic() > self._deadline:
            raise self._unknown(f"{error.name()}: {error.str()}") from None

    def _abort(self, overlay: Overlay) -> None:
        """Whatever goes wrong here is final: the transaction's fate is not known any more."""
        for part in overlay.parts.values():
            # How many records and markers the attempt has left behind is not known.
            self._ownership.written(part.partition).journal_next = None
        end = time.monotonic() + COMMIT_SECONDS_MAX
        while True:
            try:
                self._timed(self._producer.abort_transaction, CALL_TIMEOUT_S)
                return
            except (KafkaException, SystemError) as raised:
                found = behind(raised)
                error = None if found is None else error_of(found)
                if error is None or error.fatal() or not error.retriable() or time.monotonic() > end:
                    raise self._fenced(f"abort failed: {error.name() if error else raised}") from None

    def _fenced(self, reason: str) -> FencedError:
        return FencedError(
            f"{self._txid}: another worker took over this transactional id, or the broker gave it up"
            f" ({reason})."
            " Nothing was lost: whatever was not committed is read again by its owner. If two workers"
            " have the"
            " same instance name, give each its own (REFOLD_WORKER__INSTANCE)"
        )

    def _unknown(self, reason: str) -> UnavailableError:
        return UnavailableError(
            f"{self._txid}: the outcome of a commit is still unknown after {COMMIT_SECONDS_MAX:.0f} s"
            f" ({reason})."
            " Stopping is safe: the next start restores what was committed. Check the brokers"
        )

    # --- the disk ----------------------------------------------------------------------------------

    def _write_stores(self, plans: list[Plan]) -> dict[int, StorageError]:
        failures: dict[int, StorageError] = {}
        for plan in plans:
            written = self._ownership.written(plan.part.partition)
            try:
                plan.write(written, self._begun_ms)
            except StorageError as error:
                failures[plan.part.partition] = error
        return failures
