"""The thread that keeps copies fresh: one consumer, in no group, for all standby partitions of the process.

It alone opens, writes and closes their DBs, in the order it is told to (:meth:`Tail.open`, :meth:`Tail.close`
from any thread); so whoever has awaited a close may open the directory. What is read is bounded by what
librdkafka prefetches and :data:`WAITING_BYTES_MAX`, paced by the bucket of the restores, and written by the
same code as theirs (:mod:`refold.engine.bulk`). Nothing that fails here stops the worker: a copy that cannot
be kept is closed and told to the service, which tries again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from refold.engine import clients
from refold.engine.bulk import RECORD_OVERHEAD_BYTES, Run
from refold.engine.config import EngineConfig
from refold.engine.points import Points
from refold.engine.restore import Restorer
from refold.engine.standby.copy import Copy
from refold.engine.store import UnreadableStore, set_aside
from refold.engine.takeover import Marks
from refold.errors import StorageError

POLL_S: Final = 0.05

#: Records per consume call: 1 000 of 1.6 KB are 12 ms of reading, which a hand-over may have to wait for.
CHUNK_RECORDS: Final = 1_000

#: Read and not written, over all copies, with what Python keeps beside it, while more is there to read at
#: once: above 4 MiB of one partition it becomes a sorted file, as in a restore.
WAITING_BYTES_MAX: Final = 16 * 1024 * 1024

#: After a read that failed for another reason than the partition's.
FAILED_PAUSE_S: Final = 1.0

#: What a killed process has to read again, as for owned partitions (``worker.FLUSH_EVERY_S``).
KEEP_EVERY_S: Final = 300.0


class Tail:
    """``copies``: changed by the thread only; anybody may look a partition up.

    ``lost`` is called on the thread with a partition whose copy it has closed by itself, and why: one of
    ``too_old``, ``log_gone``, ``damaged``, ``disk``, ``log``.
    """

    def __init__(
        self,
        config: EngineConfig,
        restorer: Restorer,
        points: Points,
        *,
        lost: Callable[[int, str, str | None], None],
        log: Any,
    ) -> None:
        self.copies: dict[int, Copy] = {}
        #: Since the start.
        self.records = 0
        self.bytes = 0
        self._config = config
        self._restorer = restorer
        self._points = points
        self._lost = lost
        self._log = log
        self._orders: deque[Callable[[], None]] = deque()
        self._ordered = threading.Event()
        self._stopped = threading.Event()
        self._ending = threading.Lock()
        self._ended = False
        self._waiting_bytes = 0
        self._kept_at = time.monotonic()
        self._consumer: Consumer | None = None
        self._thread = threading.Thread(target=self._run, name="refold-standby", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def open(self, partition: int, marks: Marks, marked_ms: int) -> None:
        """Any thread; returns at once. Begins a copy from what is on this disk, or from nothing."""
        self._order(lambda: self._open(partition, marks, marked_ms))

    def close(self, partition: int) -> Future[None]:
        """Any thread: done when the partition's DB is closed, also where there is none."""
        closed: Future[None] = Future()

        def order() -> None:
            try:
                self._close(partition)
            finally:
                closed.set_result(None)

        self._order(order)
        return closed

    def damaged(self, partition: int) -> None:
        """Any thread; returns at once. What is on disk was found unreadable: it is set aside."""
        self._order(lambda: self._give_up(partition, "damaged"))

    def stop(self) -> None:
        """Any thread; returns at once. All copies are kept and closed."""
        self._stopped.set()
        self._ordered.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _order(self, order: Callable[[], None]) -> None:
        with self._ending:
            if not self._ended:
                self._orders.append(order)
                self._ordered.set()
                return
        # Nothing is open any more, and nothing is opened.
        order()

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._ordered.clear()
                self._serve()
                if not self.copies:
                    self._ordered.wait(POLL_S)
                    continue
                try:
                    self._step()
                except KafkaException as raised:
                    self._log.warning("standby_read_failed", error=str(raised))
                    self._ordered.wait(FAILED_PAUSE_S)
        except Exception as error:
            # The worker does without: nothing that it owns depends on copies.
            self._log.error("standby_thread_failed", error=type(error).__name__, exc_info=error)
        finally:
            self._stopped.set()
            for partition in list(self.copies):
                with contextlib.suppress(Exception):
                    self._close(partition)
            with self._ending:
                self._ended = True
            # Nobody who waits for a close may wait for ever.
            while self._orders:
                with contextlib.suppress(Exception):
                    self._orders.popleft()()
            if self._consumer is not None:
                self._consumer.close()

    def _serve(self) -> None:
        while self._orders:
            self._orders.popleft()()

    def _open(self, partition: int, marks: Marks, marked_ms: int) -> None:
        if partition in self.copies or self._stopped.is_set():
            return
        try:
            store, frontier, why = self._restorer.open_copy(partition, marks)
        except StorageError as error:
            self._lost(partition, "disk", str(error))
            return
        copy = Copy(
            partition,
            store,
            frontier,
            marks,
            self._config.topics,
            run=Run(self._config.restore_bytes_per_s_max),
            lifetime_ms=self._restorer.copy_lifetime_ms,
            marked_ms=marked_ms,
        )
        try:
            if self._consumer is None:
                self._consumer = clients.standby_reader(self._config)
            self._consumer.incremental_assign(copy.wanted())
        except KafkaException as raised:
            copy.close(self._points, keep=False)
            self._lost(partition, "log", str(raised))
            return
        self.copies[partition] = copy
        self._log.info("standby_opened", partition=partition, state_next=copy.written[0], set_aside=why)

    def _close(self, partition: int, *, keep: bool = True) -> None:
        copy = self.copies.pop(partition, None)
        if copy is None:
            return
        copy.close(self._points, keep=keep)
        if self._consumer is not None:
            with contextlib.suppress(KafkaException):
                self._consumer.incremental_unassign(copy.wanted())
        self._log.info("standby_closed", partition=partition, state_next=copy.written[0])

    def _give_up(self, partition: int, why: str, error: str | None = None) -> None:
        """What is on disk cannot be gone on with."""
        if partition not in self.copies:
            return
        self._close(partition, keep=False)
        try:
            set_aside(self._restorer.path(partition))
        except StorageError as failed:
            error = str(failed)
        self._lost(partition, why, error)

    def _step(self) -> None:
        consumer = self._consumer
        if consumer is None:
            return
        first = consumer.poll(POLL_S)
        if first is None:
            self._write()
            self._keep()
            return
        messages = [first, *consumer.consume(CHUNK_RECORDS - 1, 0)]
        now_ms, size, records = self._restorer.now_ms(), 0, 0
        for partition in {message.partition() for message in messages}:
            copy = self.copies.get(partition)
            if copy is not None and copy.expired(now_ms):
                self._give_up(partition, "too_old")
        failed: KafkaError | None = None
        for message in messages:
            copy, error = self.copies.get(message.partition()), message.error()
            if error is not None:
                failed = self._told(copy, message, error) or failed
            elif copy is not None:
                records += 1
                size += copy.take(message)
        self.records += records
        self.bytes += size
        self._waiting_bytes += size + records * RECORD_OVERHEAD_BYTES
        if len(messages) < CHUNK_RECORDS or self._waiting_bytes >= WAITING_BYTES_MAX:
            self._write()
        self._restorer.pace.wait(size, self._ordered.is_set)
        self._keep()
        if failed is not None:
            # Not before all that came with it is kept: it does not come again.
            raise KafkaException(failed)

    def _told(self, copy: Copy | None, message: Message, error: KafkaError) -> KafkaError | None:
        if error.code() == KafkaError._PARTITION_EOF:
            if copy is not None:
                copy.passed(message.topic(), message.offset())
            return None
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            if copy is not None:
                self._give_up(copy.partition, "log_gone")
            return None
        return None if error.retriable() else error

    def _write(self) -> None:
        self._waiting_bytes = 0
        self._each(lambda copy: copy.write(self._points))

    def _keep(self) -> None:
        if time.monotonic() - self._kept_at >= KEEP_EVERY_S:
            self._kept_at = time.monotonic()
            self._each(lambda copy: copy.keep(self._points))

    def _each(self, work: Callable[[Copy], None]) -> None:
        for copy in list(self.copies.values()):
            try:
                work(copy)
            except UnreadableStore as error:
                self._give_up(copy.partition, "damaged", str(error))
            except StorageError as error:
                self._close(copy.partition, keep=False)
                self._lost(copy.partition, "disk", str(error))
