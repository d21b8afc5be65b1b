"""The polling thread: the only thread that touches the group consumer, except for reading group metadata.

Invariants:

- It never stops polling for long, whatever the fold does: when too much waits to be folded it pauses
  partitions (after a short wait, because pausing throws librdkafka's prefetched records away).
- Rewinds happen here, between two polls, so a chunk's fetch epoch is exact: everything polled after a rewind
  carries the new one, nothing polled before it does.
- Rebalance callbacks run here. They hand over to the event loop and wait with a timeout; the loop never waits
  for this thread meanwhile. An exception in one ends the process: librdkafka would assign all the same.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.engine import clients
from refold.engine.chunks import Chunk, by_partition
from refold.engine.commitmeta import read_group_meta
from refold.engine.kafkaerrors import behind, error_of, is_fatal
from refold.errors import FencedError, InvariantViolation, RefoldError
from refold.topology.failures import explain

#: Records per poll. 1 000 records at 30 µs are 30 ms of fold, sliced.
CHUNK_RECORDS: Final = 1_000

#: Longest wait for the first record; also how late a rewind may be noticed.
POLL_S: Final = 0.02

#: Bytes polled and not yet folded. 8 MiB is 5 000 records of 1.6 KB, 0.15 s of fold; records count too,
#: because each costs about 1 KB of Python objects.
QUEUED_BYTES_MAX: Final = 8 * 1024 * 1024
QUEUED_RECORDS_MAX: Final = 8_000

#: Waiting this long for room before pausing: the fold frees a chunk every 30 ms, a pause costs a refetch.
ROOM_WAIT_S: Final = 0.2

#: Offset used until the real one is known; the partition is paused meanwhile, so nothing is fetched from it.
_NOT_YET: Final = 0

#: A seek that did not take place. ``_OUTDATED``: librdkafka did something else with the partition while the
#: seek was on its way to the thread that does it, such as pausing it for a rebalance.
NOT_SOUGHT: Final = (KafkaError._STATE, KafkaError._TIMED_OUT, KafkaError._OUTDATED)

#: A subscription that matches no topic (a topic's name holds no slash): see :meth:`Poller._ask_for_round`.
_NO_TOPIC: Final = "^/$"

#: A round needs one heartbeat of every member, 3 s at most. Waiting for five of them before asking in the
#: hard way, which gives everything up for the time being.
ROUND_WAIT_S: Final = 15.0


#: One request to the coordinator, after the last partition was given up.
LEAVE_S_MAX: Final = 10.0


class Listener(Protocol):
    """The engine's side. ``deliver`` and ``assigned`` return at once; the others block until it is safe."""

    def deliver(self, chunks: list[Chunk]) -> None: ...

    def assigned(self, partitions: Sequence[tuple[int, int]]) -> None:
        """(partition, assignment epoch) pairs, already assigned and paused."""

    def revoked(self, partitions: Sequence[int]) -> None: ...

    def lost(self, partitions: Sequence[int]) -> None: ...

    def failed(self, error: BaseException) -> None: ...

    def next_epoch(self) -> int: ...


@dataclass(slots=True)
class _Source:
    epoch: int
    #: The membership under which the group gave us the partition.
    member: str
    fetch_epoch: int = 0
    position: int = -1
    started: bool = False
    #: Not fed until it is begun again, whatever the back-pressure says.
    parked: bool = False


class Flow:
    """Bytes and records between the polling thread and the fold. Thread-safe."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.bytes = 0
        self.records = 0
        #: Bytes that ever came in; a metric.
        self.bytes_total = 0

    def add(self, size: int, records: int) -> None:
        with self._condition:
            self.bytes += size
            self.bytes_total += size
            self.records += records

    def done(self, chunk: Chunk) -> None:
        with self._condition:
            self.bytes -= chunk.bytes
            self.records -= len(chunk)
            self._condition.notify()

    @property
    def full(self) -> bool:
        return self.bytes >= QUEUED_BYTES_MAX or self.records >= QUEUED_RECORDS_MAX

    @property
    def low(self) -> bool:
        return self.bytes * 2 < QUEUED_BYTES_MAX and self.records * 2 < QUEUED_RECORDS_MAX

    def wait_room(self, timeout_s: float) -> bool:
        with self._condition:
            return self._condition.wait_for(lambda: not self.full, timeout_s)


class Poller:
    """Owns the consumer from :meth:`start` to :meth:`stop`."""

    def __init__(
        self, consumer: Consumer, topic: str, listener: Listener, *, bootstrap: str, log: Any
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._listener = listener
        self._bootstrap = bootstrap
        self._log = log
        self._commands: deque[Callable[[], None]] = deque()
        self._sources: dict[int, _Source] = {}
        self._stopping = threading.Event()
        self._closing = False
        self._leaving = False
        self._paused = False
        self._member = ""
        #: When a rebalance has to be asked for, monotonic seconds; ``None`` once one has completed.
        self._round_due: float | None = None
        self._asked_softly = False
        self._metadata: Any = None
        self._metadata_at = -1.0
        self._metadata_wanted = False
        self._metadata_changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="refold-poll", daemon=True)
        self.flow = Flow()

    @property
    def paused(self) -> int:
        return len(self._sources) if self._paused else 0

    def start(self) -> None:
        self._subscribe([self._topic])
        self._thread.start()

    def _subscribe(self, topics: list[str]) -> None:
        self._consumer.subscribe(
            topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def park(self, partition: int, epoch: int, fetch_epoch: int) -> None:
        """Feed nothing of the partition until :meth:`begin`; others go on. Any thread; returns at once."""
        self._commands.append(lambda: self._park(partition, epoch, fetch_epoch))

    def group_metadata(self, newer_than: float) -> Any:
        """Group metadata read after ``newer_than`` (monotonic seconds). Blocks the commit thread, for one
        poll at most.

        Reading it here and not there: confluent-kafka serialises the calls on one consumer, and a thread that
        polls all the time starves any other (measured: for ever).
        """
        with self._metadata_changed:
            while self._metadata_at <= newer_than:
                if not self._thread.is_alive():
                    return None
                self._metadata_wanted = True
                self._metadata_changed.wait(POLL_S)
            return self._metadata

    def begin(self, partition: int, epoch: int, fetch_epoch: int, offset: int, *, anew: bool = False) -> None:
        """Feed the partition from ``offset`` on (rule T, step 5, and every rewind). ``anew``: whatever
        librdkafka holds of it is forgotten, not only its position. Any thread; returns at once."""
        self._commands.append(lambda: self._begin(partition, epoch, fetch_epoch, offset, anew))

    def stop(self, timeout_s: float, leave: bool = False) -> None:
        """Stop polling and close; ``leave``: tell the group too, or it keeps the partitions for this static
        member until its session has timed out. Blocks; call from neither the loop nor a callback."""
        self._leaving = leave
        self._stopping.set()
        self._thread.join(timeout_s)

    # --- on the polling thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                while self._commands:
                    self._commands.popleft()()
                self._ask_for_round()
                self._press()
                first = self._consumer.poll(POLL_S)
                if first is not None:
                    self._take([first, *self._consumer.consume(CHUNK_RECORDS - 1, 0)])
                self.serve_metadata()
            if self._leaving:
                self._leave()
            self._closing = True
            self._consumer.close()
        except BaseException as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Also from within a callback, where librdkafka may have told of the end of this membership first."""
        raised = behind(error)
        self._listener.failed(error if raised is None else self._explained(raised))

    def _leave(self) -> None:
        """Closing a static member says nothing to the group; unsubscribing does (measured). Gives everything
        up by rule R on the way."""
        self._consumer.unsubscribe()
        end = time.monotonic() + LEAVE_S_MAX
        while self._sources or read_group_meta(self._consumer.consumer_group_metadata()).member_id:
            if time.monotonic() > end:
                self._log.warning("leave_unanswered", harm="the partitions move when the session times out")
                return
            self._consumer.poll(POLL_S)
            self.serve_metadata()

    def _ask_for_round(self) -> None:
        """See to it that the group divides its partitions once more after this process has become a member.

        A static member that died inside of ``on_revoke`` and came back within the session timeout gets its
        old place without a rebalance, and the round that was to hand out what it had given up never happens:
        those partitions belong to nobody until the next change of membership (measured). The same when a
        member gave itself up for lost before the group did. librdkafka has no call for a rebalance. The first
        subscription with a pattern causes one (measured), later ones do not; leaving the topic and coming
        back always does, at the price of being without partitions meanwhile.
        """
        now = time.monotonic()
        if self._round_due is None or now < self._round_due:
            return
        self._round_due = now + ROUND_WAIT_S
        if self._asked_softly:
            self._log.warning("rebalance_asked", member=self._member)
            self._consumer.unsubscribe()
        self._asked_softly = True
        self._subscribe([self._topic, _NO_TOPIC])

    def serve_metadata(self) -> None:
        """Polling thread: also while it waits inside of a rebalance callback, or the commit it waits for
        waits for it."""
        if self._metadata_wanted:
            self._read_metadata()

    def _read_metadata(self) -> None:
        now = time.monotonic()
        metadata = self._consumer.consumer_group_metadata()
        member = read_group_meta(metadata).member_id
        if member and any(source.member != member for source in self._sources.values()):
            # A static member that was removed, and asks to join before it asks for anything else, becomes a
            # new member without on_lost: librdkafka goes on as if it had owned its partitions all the time.
            # Others may have, and the broker would accept what we commit as the new member.
            raise FencedError(
                "the group removed this worker and let it join anew without saying so; what it owned may have"
                " had another owner meanwhile. Nothing was lost: starting again restores what was committed"
            )
        with self._metadata_changed:
            self._metadata, self._metadata_at, self._metadata_wanted = metadata, now, False
            self._metadata_changed.notify_all()

    def _press(self) -> None:
        """Back-pressure: wait a moment for room, then pause; resume when half of it is free."""
        flow = self.flow
        if self._paused:
            if flow.low:
                self._paused = False
                self._consumer.resume(self._started())
        elif flow.full and not flow.wait_room(ROOM_WAIT_S):
            self._paused = True
            self._consumer.pause(self._started())

    def _started(self) -> list[TopicPartition]:
        return [
            TopicPartition(self._topic, number)
            for number, source in self._sources.items()
            if source.started and not source.parked
        ]

    def _take(self, messages: list[Message]) -> None:
        good: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
            elif is_fatal(error):
                raise KafkaException(error)
            elif message.topic() == _NO_TOPIC:
                continue
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                source = self._sources.get(message.partition())
                if source is None or not source.started:
                    # About the place-holder offset of a partition that is not fed yet.
                    continue
                raise InvariantViolation(
                    f"the inbox no longer holds the offset to go on from ({error.str()}); a worker never"
                    " falls to a"
                    " reset. Start again: the takeover says which records are gone and how to go on"
                    " without them"
                )
            elif error.code() in (
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.GROUP_AUTHORIZATION_FAILED,
            ):
                raise KafkaException(error)
            else:
                self._log.warning("consumer_error", code=error.name(), reason=error.str())
        chunks = []
        for number, group in by_partition(good).items():
            source = self._sources.get(number)
            if source is None or not source.started:
                continue
            size = sum(map(len, group))
            chunk = Chunk(self._topic, number, source.epoch, source.fetch_epoch, source.position, group, size)
            source.position = chunk.next_offset
            self.flow.add(size, len(group))
            chunks.append(chunk)
        if chunks:
            self._listener.deliver(chunks)

    def _begin(self, number: int, epoch: int, fetch_epoch: int, offset: int, anew: bool) -> None:
        source = self._sources.get(number)
        if source is None or source.epoch != epoch:
            return
        where = TopicPartition(self._topic, number, offset)
        idle = not any(one.started for one in self._sources.values())
        try:
            # Preferred where possible, which it is not after an offset that is out of range (about the
            # place-holder, for instance). An unassign and an assign while a rebalance waits to be served are
            # taken for our answer to it, and where librdkafka has just ordered its fetchers to pause for the
            # rebalance, that answer's order to resume overtakes the other: the partitions are never fetched
            # again (seen in its debug log; once in 200 starts when every beginning was made this way).
            if anew:
                raise KafkaException(KafkaError(KafkaError._STATE))
            self._consumer.seek(where)
        except KafkaException as raised:
            error = error_of(raised)
            if error is None or error.code() not in NOT_SOUGHT:
                raise
            # Serve a waiting rebalance first. What this may return was polled before the rewind.
            self._take(self._consumer.consume(1, 0))
            source = self._sources.get(number)
            if source is None or source.epoch != epoch:
                return
            plain = [TopicPartition(self._topic, number)]
            self._consumer.incremental_unassign(plain)
            self._consumer.incremental_assign([where])
        source.fetch_epoch = fetch_epoch
        source.position = offset
        source.started = True
        source.parked = False
        if self._paused:
            self._consumer.pause([TopicPartition(self._topic, number)])
        else:
            self._consumer.resume([TopicPartition(self._topic, number)])
            if idle:
                clients.wake(self._consumer, where)

    def _park(self, number: int, epoch: int, fetch_epoch: int) -> None:
        source = self._sources.get(number)
        if source is not None and (source.epoch, source.fetch_epoch) == (epoch, fetch_epoch):
            source.parked = True
            self._consumer.pause([TopicPartition(self._topic, number)])

    # --- rebalance callbacks -----------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            given = [TopicPartition(self._topic, item.partition, _NOT_YET) for item in partitions]
            consumer.incremental_assign(given)
            if given:
                consumer.pause(given)
            member = read_group_meta(consumer.consumer_group_metadata()).member_id
            new = member != self._member
            self._member, self._round_due = member, time.monotonic() if new else None
            epochs = []
            for item in given:
                epoch = self._listener.next_epoch()
                self._sources[item.partition] = _Source(epoch, member)
                epochs.append((item.partition, epoch))
            self._listener.assigned(epochs)
        except BaseException as error:
            self._failed(error)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._give_up(consumer, partitions, self._listener.revoked)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._give_up(consumer, partitions, self._listener.lost)

    def _give_up(
        self,
        consumer: Consumer,
        partitions: list[TopicPartition],
        settle: Callable[[Sequence[int]], None],
    ) -> None:
        try:
            numbers = [item.partition for item in partitions]
            if not self._closing and numbers:
                settle(numbers)
            # Not before: the commit that is waited for is still theirs (:meth:`_read_metadata`).
            for number in numbers:
                self._sources.pop(number, None)
            consumer.incremental_unassign(partitions)
        except BaseException as error:
            self._failed(error)

    def _explained(self, raised: KafkaException) -> RefoldError:
        error = error_of(raised)
        if error is not None and is_fatal(error):
            return FencedError(
                f"the group no longer knows this worker, it was fenced ({error.name()}: {error.str()})."
                " Another"
                " process joined with the same instance name; give each its own (REFOLD_WORKER__INSTANCE)"
            )
        return explain(raised, doing="reading the inbox", bootstrap=self._bootstrap)
