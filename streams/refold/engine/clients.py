"""The librdkafka clients of a worker, and why each setting is what it is.

A user's pass-through table comes first, what a guarantee hangs on last (``refold.settings`` refuses the
latter in the table already).
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from refold.engine.config import EngineConfig
from refold.engine.kafkalog import KafkaLogFilter
from refold.topology.groupoffsets import GroupOffsets
from refold.topology.lasting import lasting

#: librdkafka's own lines go where ours go, in our format, when a client is polled.
LIBRDKAFKA: Final = logging.getLogger("librdkafka")
LINES: Final = KafkaLogFilter()
LIBRDKAFKA.addFilter(LINES)

#: 3 heartbeats must be missed before the session ends; librdkafka's default is 3 s of 45 s.
HEARTBEATS_PER_SESSION: Final = 5
HEARTBEAT_MS_MAX: Final = 3_000

#: The polling thread never stops polling, so this only has to exceed a rebalance callback's longest wait.
POLL_INTERVAL_MS_MAX: Final = 300_000

#: What librdkafka prefetches: 16 MiB is 0.2 s of input at full speed.
PREFETCH_KBYTES: Final = 16 * 1024

#: The most that one fetch brings of one partition of the inbox, and in all: where there is a backlog, records
#: of one partition come in runs of this length. A commit writes each session it touched once, and a partition
#: holds a share of the sessions, so a run that is as long as a commit (10 000 events of 420 bytes) touches
#: fewer of them: 13 000 state records instead of 25 000 for 120 000 events of 3 000 sessions, and 24 us of
#: the worker's CPU per event instead of 33 with 1 MiB, librdkafka's default (medians of three alternating
#: rounds of 240 000). The peak of `bench.memory` stayed at 322 MiB.
FETCH_PARTITION_BYTES: Final = 4 * 1024 * 1024
FETCH_BYTES: Final = 2 * FETCH_PARTITION_BYTES

#: The same for a restore, and the most of it that one fetch of one partition brings. The least is one batch
#: of our own (``BATCH_BYTES``): a broker sends a whole one however little is asked for. With 32 and 8 MiB the
#: first record came after 21 ms instead of 7, and what waited had left the processor's cache: two restores of
#: 430 MB in all took 0.92 s and 1.15 s CPU instead of 0.80 and 0.92 (measured).
RESTORE_PREFETCH_BYTES: Final = 8 * 1024 * 1024
RESTORE_FETCH_BYTES: Final = 1024 * 1024
RESTORE_PREFETCH_BYTES_MIN: Final = 128 * 1024

#: The same for all standby partitions of a process together, which are read in the background.
STANDBY_PREFETCH_BYTES: Final = 8 * 1024 * 1024
STANDBY_FETCH_BYTES: Final = 1024 * 1024

#: What the first partition's beginning may cost the polling thread where its leader does not answer.
WAKE_TIMEOUT_S: Final = 1.0

#: How long a broker holds a fetch that finds nothing: also how long a partition that is begun waits for its
#: first fetch while others of the same leader are fetched, because a connection's requests are answered in
#: turn. librdkafka's default is 500 ms; the price is ten idle requests a second and leader.
FETCH_WAIT_MS: Final = 100

#: How soon a connection that was lost is tried again, at first; librdkafka doubles it up to
#: ``settings.RECONNECT_MS_MAX``. Half of it, but at least 11 ms, is also what librdkafka lets pass between
#: two connections it opens for want of any: a new client, which gives up its bootstrap connection for one to
#: the same broker, then stands still. With 100 ms (the default) two of seven starts joined 50 ms later than
#: the others, and so long a restore's first record often took (measured).
RECONNECT_MS: Final = 20

#: What looking for a connection may cost before a producer's transactions are begun, or offsets asked for.
CONNECT_TIMEOUT_S: Final = 1.0

#: A fetch that found the prefetch queue full tries again after this; the default of 1 s starves a fast fold.
FETCH_QUEUE_BACKOFF_MS: Final = 5

#: A transaction's offsets may meet CONCURRENT_TRANSACTIONS while the last one's markers are written; they are
#: sent again after this. 100 ms (librdkafka's default) made p99 246 ms instead of 42 (measured).
RETRY_BACKOFF_MS: Final = 1
#: librdkafka doubles the wait each time, and the markers take 2-6 ms: with 1 s (its default) a transaction
#: over 8 partitions took 5.7 ms (p99 10.9), with 10-20 ms 4.4 (7.2; measured).
RETRY_BACKOFF_MS_MAX: Final = 10

#: Collects a produce loop's records into batches; flush and commit do not wait for it, and the flush follows
#: the loop at once. When the offsets went last, the journal was on its way meanwhile, and at 1 000 events/s
#: the flush took 6.3 ms (p90) with 0 and 9.2 with 5, in one run of each on a busy machine (not measured
#: since). A produce loop of a dozen records takes 0.1 ms; what comes while five requests are in flight is one
#: batch anyway.
LINGER_MS: Final = 0.5

#: librdkafka fills batches up to this, before compression; a record larger than it travels alone. A batch is
#: the smallest thing that can be read, so this is the price of one seek into the journal: 50 seeks took 33 to
#: 56 ms with 900 kB, 16 to 33 with 256 KiB, 20 with 384 KiB, 14 to 19 with 128 KiB and no less with 64. Small
#: ones cost the broker: 12.7 us of its CPU per event with 128 KiB, 8.2 with 384 KiB; on two cores the fold
#: then does 38 k events/s instead of 46 k.
BATCH_BYTES: Final = 384 * 1024

#: Larger than the largest commit: one overlay's journal and state, twice for what waits for acknowledgement.
QUEUE_RECORDS_MAX: Final = 2_000_000
QUEUE_KBYTES_MIN: Final = 128 * 1024


def _prompt(config: EngineConfig) -> dict[str, Any]:
    return {"reconnect.backoff.ms": RECONNECT_MS, **config.kafka}


def member(config: EngineConfig, url: str) -> Consumer:
    """The group member. ``client.id`` carries the advertised URL: that is how an owner is found."""
    return Consumer(
        {
            "fetch.message.max.bytes": FETCH_PARTITION_BYTES,
            "fetch.max.bytes": FETCH_BYTES,
            **_prompt(config),
            "client.id": f"refold|{config.instance}|{url}",
            "group.id": config.topics.group,
            "group.instance.id": config.instance,
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "session.timeout.ms": config.session_timeout_ms,
            "heartbeat.interval.ms": min(
                config.session_timeout_ms // HEARTBEATS_PER_SESSION, HEARTBEAT_MS_MAX
            ),
            "max.poll.interval.ms": max(POLL_INTERVAL_MS_MAX, config.session_timeout_ms),
            "queued.max.messages.kbytes": PREFETCH_KBYTES,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "fetch.queue.backoff.ms": FETCH_QUEUE_BACKOFF_MS,
            "fetch.error.backoff.ms": 100,
        },
        logger=LIBRDKAFKA,
    )


def transactional(config: EngineConfig, transactional_id: str, *, message_bytes_max: int) -> Producer:
    queue_kbytes = max(QUEUE_KBYTES_MIN, config.overlay_bytes_max * 4 // 1024)
    return Producer(
        {
            **_prompt(config),
            "transactional.id": transactional_id,
            # The default, `rebootstrap`, hangs a commit for ever after all brokers were away at once:
            # librdkafka makes its brokers anew then, and `send_offsets_to_transaction` waits for the former
            # one, which it still holds for the group's coordinator (2.16; reproduced with a bare producer).
            "metadata.recovery.strategy": "none",
            "transaction.timeout.ms": config.transaction_timeout_ms,
            "message.timeout.ms": config.transaction_timeout_ms,
            "retry.backoff.ms": RETRY_BACKOFF_MS,
            "retry.backoff.max.ms": RETRY_BACKOFF_MS_MAX,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 100_000,
            "compression.type": "lz4",
            "message.max.bytes": message_bytes_max,
            "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
            "queue.buffering.max.kbytes": queue_kbytes,
        },
        logger=LIBRDKAFKA,
    )


def connect(producer: Producer, topic: str) -> None:
    """Before ``init_transactions``: have a connection, or it may take half a second more. Blocks for two
    round trips, at most twice ``CONNECT_TIMEOUT_S``.

    Where librdkafka has none when it is to find the transaction coordinator, it looks again 500 ms later
    (measured: every second time). The first answer may come over the bootstrap connection, which it then
    gives up for one to the broker itself. Where nobody answers, ``init_transactions`` says so.
    """
    with contextlib.suppress(KafkaException):
        for _ in range(2):
            producer.list_topics(topic, timeout=CONNECT_TIMEOUT_S)


def batch_reader(config: EngineConfig) -> Consumer:
    """Reads `batches` in read_committed, assigned by us: in no group. ``group.id`` is demanded by
    librdkafka, which asks for the coordinator of whatever is named: the one group that a worker has a right
    to (measured: any other is refused where there are ACLs). It never joins it, and nothing is committed by
    it."""
    return Consumer(
        {
            **_prompt(config),
            "client.id": f"refold-batches|{config.instance}",
            "group.id": config.topics.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            # How rule G10 learns that markers and aborted records were passed.
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": PREFETCH_KBYTES,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "fetch.queue.backoff.ms": FETCH_QUEUE_BACKOFF_MS,
            "fetch.error.backoff.ms": 100,
        },
        logger=LIBRDKAFKA,
    )


def wake(consumer: Consumer, where: TopicPartition) -> None:
    """Make librdkafka fetch the first partition that was assigned to ``consumer`` at once. Blocks for one
    round trip, at most ``WAKE_TIMEOUT_S``.

    Its thread for the partition's leader looks for what to fetch when something happens on the connection, or
    after a second: the first record of a partition that was live came 1.001 s later (measured), and comes
    after 3 ms where something is asked of that leader. Where it does not answer, it is as before.

    Only while nothing is fetched: the question would wait behind a fetch that the broker holds, and one that
    is not answered in time makes librdkafka close the connection with everything that is under way on it.
    """
    with contextlib.suppress(KafkaException):
        consumer.get_watermark_offsets(where, timeout=WAKE_TIMEOUT_S)


def restore_reader(config: EngineConfig) -> Consumer:
    """Reads changelogs in read_committed and is in no group; ``group.id`` as for :func:`batch_reader`.

    Where restores are paced, what librdkafka prefetches is a quarter of a second's worth per restore: it
    fetches as fast as it can until that is full, whatever the reader's pace.
    """
    prefetch = RESTORE_PREFETCH_BYTES
    if config.restore_bytes_per_s_max:
        share = config.restore_bytes_per_s_max // config.restores_max // 4
        prefetch = min(max(share, RESTORE_PREFETCH_BYTES_MIN), prefetch)
    return Consumer(
        {
            **_prompt(config),
            "group.id": config.topics.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "fetch.message.max.bytes": min(prefetch, RESTORE_FETCH_BYTES),
            "queued.max.messages.kbytes": prefetch // 1024,
            "fetch.queue.backoff.ms": FETCH_QUEUE_BACKOFF_MS,
        },
        logger=LIBRDKAFKA,
    )


def standby_reader(config: EngineConfig) -> Consumer:
    """Reads the changelogs of partitions that others own, all in one; as :func:`restore_reader` otherwise."""
    prefetch = STANDBY_PREFETCH_BYTES
    if config.restore_bytes_per_s_max:
        prefetch = min(max(config.restore_bytes_per_s_max // 4, RESTORE_PREFETCH_BYTES_MIN), prefetch)
    return Consumer(
        {
            **_prompt(config),
            "client.id": f"refold-standby|{config.instance}",
            "group.id": config.topics.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": min(prefetch, STANDBY_FETCH_BYTES),
            "fetch.max.bytes": prefetch,
            "queued.max.messages.kbytes": prefetch // 1024,
            "fetch.queue.backoff.ms": FETCH_QUEUE_BACKOFF_MS,
            "fetch.error.backoff.ms": 100,
        },
        logger=LIBRDKAFKA,
    )


def offsets(config: EngineConfig) -> GroupOffsets:
    """What the group has committed; its consumers are in no group, and are not polled, so they do not log."""
    named = {"client.id": f"refold-offsets|{config.instance}"}
    return GroupOffsets({**_prompt(config), **named}, config.topics.group)


def admin(config: EngineConfig) -> AdminClient:
    """For all of a worker's questions, as long as it lives."""
    return lasting(lambda: AdminClient(_prompt(config), logger=LIBRDKAFKA))
