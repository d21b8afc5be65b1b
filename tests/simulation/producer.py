"""librdkafka's transactional producer, as the engine's commit uses it.

Records are queued and sent by a background thread at its own time, at the latest by ``flush`` or the commit;
delivery reports come out of ``poll``, ``flush`` and ``commit_transaction``. A fenced producer is fatal for
good; an abortable error stays until ``abort_transaction``.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from .broker import Broker
from .group import slot_of
from .kafka import Membership, Message, error, raised
from .kernel import Kernel


class Phase(enum.Enum):
    NEW = "new"
    READY = "ready"
    OPEN = "open"
    COMMITTING = "committing"
    ABORTABLE = "abortable"
    FATAL = "fatal"


class _Queued(NamedTuple):
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None
    on_delivery: Callable[[Any, Any], None] | None
    at_us: int


class Trouble:
    """What may go wrong with a call; the world overrides it by the fault plan. Answers are drawn, so ask
    once."""

    def queue_full(self) -> bool:
        return False

    def delivery_fails(self) -> bool:
        return False

    def abortable(self, call: str) -> int | None:
        """An error code that makes the transaction abortable, or ``None``."""
        return None

    def times_out(self, call: str) -> str | None:
        """``"before"`` or ``"after"`` the broker has handled the request, or ``None``."""
        return None


class Producer:
    def __init__(
        self,
        kernel: Kernel,
        broker: Broker,
        txid: str,
        timeout_ms: int,
        *,
        trouble: Trouble | None = None,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        self._kernel = kernel
        self._broker = broker
        self._txns = broker.transactions
        self._process = kernel.caller
        self._txid = txid
        self._timeout_us = timeout_ms * 1000
        self._trouble = trouble or Trouble()
        #: Told ``"before"`` and ``"after"`` the broker handles EndTxn of a commit.
        self._on_end = on_end or (lambda when: None)
        self._pid = -1
        self._epoch = -1
        self._phase = Phase.NEW
        self._queue: deque[_Queued] = deque()
        self._reports: deque[tuple[Callable[[Any, Any], None], Any, Any]] = deque()
        self._touched = False
        self._asked = False
        self._why: KafkaException | None = None

    # --- transactions --------------------------------------------------------------------------------

    def init_transactions(self, timeout: float = -1) -> None:
        self._kernel.pause()
        self._linked("init_transactions", timeout)
        wait_us = 60_000_000 if timeout < 0 else int(timeout * 1_000_000)
        self._pid, self._epoch = self._txns.init(self._txid, self._timeout_us, wait_us)
        self._phase = Phase.READY

    def _linked(self, call: str, timeout_s: float) -> None:
        if not self._kernel.linked(self._process, timeout_s):
            raise raised(KafkaError._TIMED_OUT, f"{call} timed out", retriable=True)

    def begin_transaction(self) -> None:
        self._kernel.alive()
        self._expect(Phase.READY)
        self._phase = Phase.OPEN
        self._touched = False

    def _expect(self, *phases: Phase) -> None:
        if self._phase is Phase.FATAL:
            raise self._why or raised(KafkaError._FATAL, "fatal", fatal=True)
        if self._phase is Phase.ABORTABLE:
            raise self._why or raised(KafkaError._STATE, "the transaction must be aborted", abort=True)
        if self._phase not in phases:
            raise raised(KafkaError._STATE, f"the producer is {self._phase.value}")

    def _fatal(self, why: KafkaException) -> KafkaException:
        self._phase, self._why = Phase.FATAL, why
        return why

    def _abortable(self, why: KafkaException) -> KafkaException:
        self._phase, self._why = Phase.ABORTABLE, why
        return why

    def send_offsets_to_transaction(
        self, offsets: Sequence[TopicPartition], metadata: bytes, timeout: float = -1
    ) -> None:
        self._expect(Phase.OPEN)
        self._kernel.pause()
        self._linked("send_offsets", timeout)
        late = self._trouble.times_out("send_offsets")
        if late == "before":
            raise raised(KafkaError._TIMED_OUT, "send_offsets timed out", retriable=True)
        code = self._trouble.abortable("send_offsets")
        if code is not None:
            raise self._abortable(raised(code, "refused by the plan", abort=True))
        try:
            if offsets:
                self._txns.open(self._txid, self._pid, self._epoch).with_offsets = True
            rows = [(slot_of(tp.topic, tp.partition), tp.offset, tp.metadata or "") for tp in offsets]
            self._broker.group.txn_commit(self._pid, rows, Membership.decode(metadata))
        except KafkaException as why:
            raise (self._fatal(why) if why.args[0].fatal() else self._abortable(why)) from None
        self._touched = self._touched or bool(offsets)
        if late == "after":
            raise raised(KafkaError._TIMED_OUT, "send_offsets timed out", retriable=True)
        self._kernel.pause()

    def commit_transaction(self, timeout: float = -1) -> None:
        self._expect(Phase.OPEN, Phase.COMMITTING)
        self._linked("commit", timeout)
        if self._phase is Phase.OPEN:
            self._send(len(self._queue))
            self._report()
            self._expect(Phase.OPEN)
            self._phase = Phase.COMMITTING
            self._asked = False
        self._kernel.pause()
        self._on_end("before")
        late = self._trouble.times_out("commit")
        if late == "before":
            raise raised(KafkaError._TIMED_OUT, "commit timed out", retriable=True)
        # Once EndTxn may have reached the coordinator, librdkafka never reports the transaction as abortable.
        code = None if self._asked else self._trouble.abortable("commit")
        self._asked = True
        if code is not None:
            raise self._abortable(raised(code, "refused by the plan", abort=True))
        try:
            if self._touched:
                self._txns.end(self._txid, self._pid, self._epoch, commit=True)
        except KafkaException as why:
            raise self._fatal(why) from None
        self._on_end("after")
        if late == "after":
            raise raised(KafkaError._TIMED_OUT, "commit timed out", retriable=True)
        self._kernel.pause()
        self._phase = Phase.READY

    def abort_transaction(self, timeout: float = -1) -> None:
        if self._phase is Phase.FATAL:
            raise self._why or raised(KafkaError._FATAL, "fatal", fatal=True)
        if self._phase is Phase.COMMITTING:
            # EndTxn(commit) may be on its way: librdkafka refuses to abort then.
            raise raised(KafkaError._STATE, "a commit is in progress")
        self._linked("abort", timeout)
        self._queue.clear()
        self._reports.clear()
        self._kernel.pause()
        try:
            if self._touched:
                self._txns.end(self._txid, self._pid, self._epoch, commit=False)
        except KafkaException as why:
            raise self._fatal(why) from None
        self._kernel.pause()
        self._phase = Phase.READY

    # --- records -------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        on_delivery: Callable[[Any, Any], None] | None = None,
        *,
        headers: Sequence[tuple[str, bytes]] | None = None,
    ) -> None:
        self._kernel.alive()
        self._expect(Phase.OPEN)
        if partition < 0:
            raise AssertionError("the worker always names the partition")
        if self._trouble.queue_full():
            raise BufferError("Local: Queue full")
        self._queue.append(
            _Queued(topic, partition, key, value, list(headers or ()), on_delivery, self._kernel.now_us)
        )

    def poll(self, timeout: float = 0) -> int:
        """The background thread gets a chance to send some of the queue."""
        self._kernel.pause()
        if self._kernel.linked(self._process, timeout):
            self._send(self._kernel.chance.randrange(len(self._queue) + 1))
        return self._report()

    def flush(self, timeout: float = -1) -> int:
        self._kernel.pause()
        if self._kernel.linked(self._process, timeout):
            self._send(len(self._queue))
        self._report()
        return len(self._queue)

    def _send(self, count: int) -> None:
        """Send ``count`` records, with a moment in between at which everything else may happen."""
        first = self._kernel.chance.randrange(count + 1) if count > 1 else count
        self._send_now(first)
        if first < count:
            self._kernel.pause()
            self._send_now(count - first)

    def _send_now(self, count: int) -> None:
        for _ in range(min(count, len(self._queue))):
            item = self._queue.popleft()
            failure: KafkaError | None = None
            if self._phase is not Phase.OPEN:
                failure = error(KafkaError._PURGE_QUEUE, "purged")
            elif self._kernel.now_us - item.at_us > self._timeout_us:
                failure = error(KafkaError._MSG_TIMED_OUT, "message timed out")
            elif self._trouble.delivery_fails():
                failure = error(KafkaError.INVALID_RECORD, "refused by the plan")
            offset = -1
            if failure is None:
                try:
                    offset = self._txns.append(
                        self._txid,
                        self._pid,
                        self._epoch,
                        item.topic,
                        item.partition,
                        item.key,
                        item.value,
                        item.headers,
                    )
                    self._touched = True
                except KafkaException as why:
                    self._fatal(why)
                    failure = why.args[0]
            if failure is not None and self._phase is Phase.OPEN:
                self._abortable(raised(failure.code(), "a record was not delivered", abort=True))
            if item.on_delivery is not None:
                message = Message(item.topic, item.partition, offset)
                self._reports.append((item.on_delivery, failure, message))

    def _report(self) -> int:
        count = 0
        while self._reports:
            on_delivery, failure, message = self._reports.popleft()
            on_delivery(failure, message)
            count += 1
        return count

    def __len__(self) -> int:
        return len(self._queue)
