"""Blocking reads of topics at chosen offsets, for use in a thread.

A :class:`Reader` owns one consumer that never joins a group and never commits: it assigns, reads, and assigns
again. Everything is ``read_committed``. :class:`ReaderPool` keeps a few open because a first connection costs
tens of milliseconds and a seek costs one or two.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.client.limits import (
    BULK_RECORDS,
    IDLE_READERS_MAX,
    READ_STALL_S,
    SCAN_FETCH_BYTES,
    SEEK_FETCH_BYTES,
    SWEEP_GAP_RECORDS_MAX,
)
from refold.client.watch import Because, as_it_is
from refold.errors import (
    NotFound,
    PermissionDenied,
    RefoldError,
    TransientError,
    UnavailableError,
)
from refold.missing import no_topic

T = TypeVar("T")

#: One poll; the deadline of a read is checked in between.
POLL_S: Final = 0.1

#: How long the broker may hold a fetch at the log's end. Short: a held fetch also holds the next seek.
FETCH_WAIT_MS: Final = 10


#: Not about the topic: the end of a partition, and the coordinator of the group that is never used.
#: librdkafka looks for it all the same, and a reader has no rights on such a group.
HARMLESS: Final = frozenset({KafkaError._PARTITION_EOF, KafkaError.GROUP_AUTHORIZATION_FAILED})


def consumer_config(base: dict[str, Any], *, fetch_bytes: int, fetch_wait_ms: int) -> dict[str, Any]:
    """A consumer that only assigns. The group id is demanded by librdkafka and never used."""
    return {
        **base,
        "group.id": f"refold-reader-{uuid.uuid4().hex[:12]}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": fetch_wait_ms,
        "fetch.min.bytes": 1,
        "fetch.message.max.bytes": fetch_bytes,
        "check.crcs": True,
    }


def read_failure(error: KafkaError, topic: str) -> RefoldError:
    code = error.code()
    if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
        return PermissionDenied(f"Kafka does not let this principal read {topic!r}: grant READ on it")
    if code in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
        return no_topic(topic)
    if code in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
        return NotFound(
            f"{topic!r} no longer holds the offset: retention removed it, or the topic was recreated"
        )
    return UnavailableError(f"cannot read {topic!r} ({error.str()}): try again", retry_after_s=1.0)


def sweeps(offsets: Sequence[int], gap_max: int = SWEEP_GAP_RECORDS_MAX) -> list[tuple[int, int]]:
    """Ascending offsets → inclusive ranges to read in one go; neighbours up to ``gap_max`` share one."""
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and offset - ranges[-1][1] <= gap_max:
            ranges[-1] = (ranges[-1][0], offset)
        else:
            ranges.append((offset, offset))
    return ranges


class ReadStopped(TransientError):
    """The read was given up: its caller was cancelled, or the client closed."""

    def __init__(self) -> None:
        super().__init__("the read was given up before its end")


class Reader:
    """One consumer. Blocking; not for two threads at once, but :meth:`stop` may come from any."""

    def __init__(self, config: dict[str, Any], fetch_bytes: int = SEEK_FETCH_BYTES) -> None:
        self._stopped = False
        self._config = config
        self._consumer = Consumer(
            consumer_config(config, fetch_bytes=fetch_bytes, fetch_wait_ms=FETCH_WAIT_MS)
        )

    def close(self) -> None:
        self._consumer.close()

    @property
    def stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        """Make a read in another thread raise :class:`ReadStopped` within ``POLL_S``. For good."""
        self._stopped = True

    def end(self, topic: str, partition: int, timeout_s: float = 10.0) -> tuple[int, int]:
        """``(first offset, last stable offset)``: a read_committed client is told no further end."""
        try:
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=timeout_s, cached=False
            )
        except KafkaException as error:
            raise read_failure(error.args[0], topic) from None
        return int(low), int(high)

    def mark(self, topic: str, partition: int, timeout_s: float = 10.0) -> int:
        """The offset behind all that has been written by now, what is not yet known to be committed too: a
        transaction's markers are written after its commit has been answered, each partition's for itself.
        By a connection of its own; tens of milliseconds."""
        config = consumer_config(self._config, fetch_bytes=SEEK_FETCH_BYTES, fetch_wait_ms=FETCH_WAIT_MS)
        plain = Consumer({**config, "isolation.level": "read_uncommitted"})
        try:
            place = TopicPartition(topic, partition)
            return int(plain.get_watermark_offsets(place, timeout=timeout_s, cached=False)[1])
        except KafkaException as error:
            raise read_failure(error.args[0], topic) from None
        finally:
            plain.close()

    def offset_at(self, topic: str, partition: int, time_ms: int, timeout_s: float = 10.0) -> int:
        """First offset appended at or after ``time_ms``; the last stable offset when there is none."""
        if (first := self._first_since(topic, partition, time_ms, timeout_s)) is not None:
            return first
        # A transaction's markers are written after its commit has been answered. What became stable between
        # "none" and the end's reading lies before that end, and would be skipped: it is asked for once more.
        end = self.end(topic, partition, timeout_s)[1]
        first = self._first_since(topic, partition, time_ms, timeout_s)
        return end if first is None else first

    def _first_since(self, topic: str, partition: int, time_ms: int, timeout_s: float) -> int | None:
        """Looks below the last stable offset only."""
        try:
            found = self._consumer.offsets_for_times(
                [TopicPartition(topic, partition, max(0, time_ms))], timeout=timeout_s
            )[0]
        except KafkaException as error:
            raise read_failure(error.args[0], topic) from None
        if found.error is not None:
            raise read_failure(found.error, topic)
        return int(found.offset) if found.offset >= 0 else None

    def at(self, topic: str, partition: int, offsets: Sequence[int]) -> list[Message]:
        """The records at these ascending offsets, in order. Raises :class:`NotFound` when one is gone."""
        found: list[Message] = []
        wanted = set(offsets)

        def take(message: Message) -> bool:
            if message.offset() in wanted:
                found.append(message)
            return True

        try:
            for first, last in sweeps(offsets):
                # No unassign in between: it costs a round through librdkafka's threads per seek.
                self._consumer.assign([TopicPartition(topic, partition, first)])
                self._sweep(topic, partition, take, first, last)
        finally:
            self._consumer.unassign()
        if len(found) != len(wanted):
            have = {message.offset() for message in found}
            missing = min(wanted - have)
            raise NotFound(
                f"{topic}[{partition}] has no record at offset {missing}, where the history index has one: "
                "was the topic recreated or cut by retention?"
            )
        return found

    def sweep(
        self,
        topic: str,
        partition: int,
        first: int,
        visit: Callable[[Message], bool],
        *,
        last: int | None = None,
    ) -> None:
        """Visit committed records from ``first`` on, until ``visit`` returns false, ``last`` is passed, or
        the last stable offset is reached (only when ``last`` is ``None``).

        Raises :class:`TransientError` when nothing moves for ``READ_STALL_S``: an open transaction blocks.
        """
        self._consumer.assign([TopicPartition(topic, partition, first)])
        try:
            self._sweep(topic, partition, visit, first, last)
        finally:
            self._consumer.unassign()

    def _sweep(
        self, topic: str, partition: int, visit: Callable[[Message], bool], first: int, last: int | None
    ) -> None:
        stalled_at = time.monotonic() + READ_STALL_S
        while True:
            if self._stopped:
                raise ReadStopped
            # What lies behind a single record's seek is thrown away: it need not become Python objects first.
            messages = self._poll(1 if last == first else BULK_RECORDS)
            for message in messages:
                error = message.error()
                if error is not None:
                    if error.code() not in HARMLESS:
                        raise read_failure(error, topic)
                    if last is None or (message.offset() or 0) > last:
                        return
                    continue
                offset = message.offset() or 0
                if last is not None and offset > last:
                    return
                if not visit(message) or offset == last:
                    return
            if messages:
                stalled_at = time.monotonic() + READ_STALL_S
            elif time.monotonic() > stalled_at:
                raise TransientError(
                    f"reading {topic}[{partition}] made no progress for {READ_STALL_S:g} s: the broker does "
                    "not answer, or an open transaction holds the last stable offset back"
                )

    def _poll(self, records_max: int) -> list[Message]:
        # consume(n, t) waits the whole t unless n records come: one by poll, the rest without waiting.
        first = self._consumer.poll(POLL_S)
        if first is None:
            return []
        if records_max == 1:
            return [first]
        return [first, *self._consumer.consume(records_max - 1, 0)]


class ReaderPool:
    """Readers for ``asyncio``: ``await pool.run(lambda reader: reader.at(…))`` in a thread.

    A cancelled caller and :meth:`close` stop the reads in progress: a scan over a partition would otherwise
    go on for minutes behind everybody's back, and keep the process from ending.
    """

    def __init__(self, config: dict[str, Any], because: Because = as_it_is) -> None:
        self._config = config
        self._because = because
        self._idle: list[Reader] = []
        self._busy: set[Reader] = set()
        self._lock = threading.Lock()
        self._closed = False

    async def run(self, work: Callable[[Reader], T]) -> T:
        """Run blocking work with a reader of its own. A reader that failed is not used again."""
        return await self._in_thread(work, SEEK_FETCH_BYTES)

    async def scan(self, work: Callable[[Reader], T]) -> T:
        """The same for work that reads most of a partition: a reader with large fetches, made for it."""
        return await self._in_thread(work, SCAN_FETCH_BYTES)

    async def _in_thread(self, work: Callable[[Reader], T], fetch_bytes: int) -> T:
        held: list[Reader] = []
        given_up = threading.Event()

        def run() -> T:
            reader = self._take(fetch_bytes)
            held.append(reader)
            good = False
            try:
                if given_up.is_set():
                    raise ReadStopped
                result = work(reader)
                good = True
                return result
            finally:
                with self._lock:
                    # From here on it is no longer this call's to stop.
                    held.clear()
                self._give_back(reader, keep=good and fetch_bytes == SEEK_FETCH_BYTES)

        try:
            return await asyncio.to_thread(run)
        except (TransientError, UnavailableError) as error:
            self._because(error)
            raise
        except asyncio.CancelledError:
            # In this order: the thread looks at the event after it has entered its reader.
            given_up.set()
            with self._lock:
                for reader in held:
                    reader.stop()
            raise

    def _take(self, fetch_bytes: int) -> Reader:
        with self._lock:
            if self._closed:
                raise ReadStopped
            reader = self._idle.pop() if self._idle and fetch_bytes == SEEK_FETCH_BYTES else None
            if reader is not None:
                self._busy.add(reader)
                return reader
        reader = Reader(self._config, fetch_bytes)
        with self._lock:
            self._busy.add(reader)
            if self._closed:
                reader.stop()
        return reader

    def _give_back(self, reader: Reader, *, keep: bool) -> None:
        with self._lock:
            self._busy.discard(reader)
            if keep and not reader.stopped and not self._closed and len(self._idle) < IDLE_READERS_MAX:
                self._idle.append(reader)
                return
        reader.close()

    async def close(self) -> None:
        """Close idle readers and stop the busy ones; their threads close them."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for reader in self._busy:
                reader.stop()
        await asyncio.to_thread(_close_all, idle)


def _close_all(readers: Iterable[Reader]) -> None:
    for reader in readers:
        reader.close()
