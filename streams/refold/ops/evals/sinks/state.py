"""Sink ``state``: one Kafka transaction per chunk, by a producer whose transactional id is the batch's.

Claiming initialises that producer: the broker ends what a former runner had open, refuses it from then on,
and only then is the topic read. So what was read is what there is, and the former runner's next commit
fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from refold.engine.kafkaerrors import behind
from refold.errors import RefoldError, UnavailableError
from refold.ops.evals.limits import CALL_TIMEOUT_S, COMMIT_SECONDS_MAX, TRANSACTION_TIMEOUT_MS
from refold.ops.evals.points import broken, reach
from refold.ops.evals.rules import Stored
from refold.ops.evals.sinks.sink import fenced
from refold.ops.evals.sinks.topic import EvalsTopic
from refold.topology.failures import explain
from refold.wire.evals import EvalCursor, EvalResult, encode_eval, eval_key

#: Chunk aborted by the broker (a coordinator moved): sent again so often.
RESEND_MAX: Final = 5

#: Chunks are 16 MiB at most.
QUEUE_KBYTES: Final = 64 * 1024

#: Which one it is depends on the call that meets it; a fatal error of a transaction is that it was fenced.
_FENCED: Final = frozenset(
    {
        KafkaError._FATAL,
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)


class StateSink:
    """``producer_config``, ``reader_config``: librdkafka's, as the settings have them for the two roles."""

    def __init__(
        self,
        batch: str,
        *,
        topic: EvalsTopic,
        transactional_id: str,
        producer_config: dict[str, Any],
    ) -> None:
        self._batch = batch
        self._topic = topic
        self._bootstrap = str(producer_config.get("bootstrap.servers"))
        self._config = {
            "log_level": 2,
            **producer_config,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "queue.buffering.max.kbytes": QUEUE_KBYTES,
            "linger.ms": 1,
            "compression.type": "lz4",
        }
        self._producer: Producer | None = None
        self._stored = Stored()
        self._next = 0

    async def look(self) -> Stored:
        # A dead runner's open transaction must not hold us up: claiming ends it, and reads on.
        await asyncio.to_thread(self._read, stable=True)
        return self._stored

    async def claim(self, first: EvalCursor) -> Stored:
        return await asyncio.to_thread(self._claim, first)

    async def commit(self, results: Sequence[EvalResult], cursor: EvalCursor) -> None:
        if broken("cursor-first"):
            await asyncio.to_thread(self._commit, (), cursor)
            reach("between")
            await asyncio.to_thread(self._commit, results, None)
            return
        await asyncio.to_thread(self._commit, results, cursor)

    async def close(self) -> None:
        self._producer = None

    def _read(self, *, stable: bool = False) -> None:
        partition = self._topic.partition_of(self._batch)
        take = self._stored.take
        self._next = self._topic.read(
            partition, self._next, self._batch, lambda row, _: take(row), stable=stable
        )

    def _claim(self, first: EvalCursor) -> Stored:
        producer = self._producer = Producer(self._config)
        self._again(lambda: producer.init_transactions(CALL_TIMEOUT_S), "beginning to evaluate")
        self._read()
        cursor = self._stored.cursor or first
        cursor = cursor._replace(epoch=cursor.epoch + 1)
        self._commit((), cursor)
        self._stored.cursor = cursor
        return self._stored

    def _commit(self, results: Sequence[EvalResult], cursor: EvalCursor | None) -> None:
        for left in reversed(range(RESEND_MAX)):
            if self._attempt(results, cursor):
                return
            if not left:
                break
        raise UnavailableError(
            f"the broker aborted {RESEND_MAX} transactions of batch {self._batch!r}: look at its log. What"
            " was committed before stays; run again with --resume.",
            retry_after_s=10.0,
        )

    def _attempt(self, results: Sequence[EvalResult], cursor: EvalCursor | None) -> bool:
        """One transaction; false when it was aborted, and nothing of it is visible."""
        producer = self._producer
        if producer is None:
            raise UnavailableError(f"batch {self._batch!r} is closed")
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                failures.append(error)

        partition = self._topic.partition_of(self._batch)

        def send(sample: str | None, row: EvalResult | EvalCursor) -> None:
            producer.produce(
                self._topic.name,
                key=eval_key(self._batch, sample),
                value=encode_eval(row),
                partition=partition,
                on_delivery=delivered,
            )

        try:
            producer.begin_transaction()
            reach("begun")
            for row in results:
                send(row.sample, row)
            reach("results")
            if cursor is not None:
                send(None, cursor)
            reach("cursor")
        except (KafkaException, SystemError) as raised:
            return self._aborted(_kafka(raised))
        try:
            self._again(lambda: producer.commit_transaction(CALL_TIMEOUT_S), "committing results")
        except KafkaException as error:
            # The delivery's own error says more than that the commit met it.
            return self._aborted(KafkaException(failures[0]) if failures else error, error)
        reach("committed")
        return True

    def _aborted(self, why: KafkaException, said: KafkaException | None = None) -> bool:
        """Abort; false when the chunk may be sent again. Raises what ends the run."""
        for error in filter(None, (said, why)):
            if is_fenced(error):
                raise fenced(self._batch) from None
        code = (said or why).args[0]
        if not code.txn_requires_abort():
            raise self._explained(why, "committing results")
        producer = self._producer
        if producer is not None:
            try:
                self._again(lambda: producer.abort_transaction(CALL_TIMEOUT_S), "aborting a transaction")
            except KafkaException as error:
                raise self._explained(error, "aborting a transaction") from None
        if why.args[0].code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE):
            raise self._explained(why, "writing results")
        return False

    def _again(self, call: Callable[[], None], doing: str) -> None:
        """Call until it is answered: a time-out leaves its outcome unknown, so it is no failure yet.

        Raises FencedError, UnavailableError after COMMIT_SECONDS_MAX, KafkaException for what is abortable.
        """
        deadline = time.monotonic() + COMMIT_SECONDS_MAX
        while True:
            try:
                return call()
            except (KafkaException, SystemError) as raised:
                error = _kafka(raised)
                inner = error.args[0]
                if is_fenced(error):
                    raise fenced(self._batch) from None
                if inner.txn_requires_abort():
                    raise error from None
                unanswered = inner.retriable() or inner.code() in (
                    KafkaError._TIMED_OUT,
                    KafkaError._CONFLICT,
                )
                if not unanswered:
                    raise self._explained(error, doing) from None
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"{doing} of batch {self._batch!r}: Kafka at {self._bootstrap} did not answer for"
                        f" {COMMIT_SECONDS_MAX:g} s ({inner.str()}). Whether the last results are committed"
                        " is not known; run again with --resume, which looks.",
                        retry_after_s=10.0,
                    ) from None

    def _explained(self, error: KafkaException, doing: str) -> RefoldError:
        if is_fenced(error):
            return fenced(self._batch)
        return explain(error, doing=f"{doing} of batch {self._batch}", bootstrap=self._bootstrap)


def _kafka(raised: KafkaException | SystemError) -> KafkaException:
    """The Kafka error itself: it may come out of a callback as the cause of another."""
    found = behind(raised)
    if found is None:
        raise raised
    return found


def is_fenced(raised: KafkaException) -> bool:
    error = raised.args[0]
    return isinstance(error, KafkaError) and error.code() in _FENCED
