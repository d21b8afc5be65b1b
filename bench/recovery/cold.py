"""Parts a and b: everything is restored from nothing, beside Kafka Streams.

a. *Bytes*: refold restores its own state changelog; Kafka Streams the very same topic, as a table. Ours from
   the first partition's turn to the last partition live (with history, generations, takeover and claim),
   theirs from the first ``onRestoreStart`` to the last ``onRestoreEnd``.
b. *Events*: both folded the same events; refold's worker and Kafka Streams (exactly_once_v2, a session store
   with the count and the last 8 payloads of a session) start with empty disks. From the start of the process
   to all state live. Its changelog is what its commits every 100 ms produced, lz4 as ours.
"""

from __future__ import annotations

import shutil
import sys
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench import events
from bench.harness import Stack, load, median
from bench.recovery.peer import Live as PeerLive
from bench.recovery.peer import Peer, version
from bench.recovery.worker import Live, Watched


def extent(bootstrap: str, topic: str, partitions: int) -> tuple[dict[int, int], int, int]:
    """High watermarks, committed records and their bytes (keys and values, uncompressed) of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-none",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    ends, left, records, size = {}, set(range(partitions)), 0, 0
    try:
        for partition in left:
            ends[partition] = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1]
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        while left:
            for message in consumer.consume(5000, 1.0):
                if message.error() is not None:
                    left.discard(message.partition())
                else:
                    records += 1
                    size += len(message) + len(message.key() or b"")
        return ends, records, size
    finally:
        consumer.close()


def prepare(stack: Stack, count: int, sessions: int) -> None:
    """The events, folded by refold."""
    stack.create_topics()
    inbox = f"{stack.prefix}.inbox"
    load(stack.bootstrap, inbox, events.messages(count, sessions, stack.partitions))
    worker = Watched(stack, "cold", "folding")
    worker.folded(stack)
    worker.stop()


def ours(stack: Stack) -> Live:
    shutil.rmtree(stack.directory / stack.prefix / "cold")
    worker = Watched(stack, "cold", "restoring")
    live = worker.wait_live(range(stack.partitions))
    worker.stop()
    return live


def run(stack: Stack, *, count: int, sessions: int, rounds: int, with_peer: bool) -> dict[str, Any]:
    """Both parts; ratios above 1 say that refold is faster."""
    prepare(stack, count, sessions)
    state, app = f"{stack.prefix}.state", f"{stack.prefix}-streams"
    ends, records, size = extent(stack.bootstrap, state, stack.partitions)
    mine: list[Live] = []
    table: list[PeerLive] = []
    fold: list[PeerLive] = []
    peer = Peer(stack.bootstrap, stack.directory) if with_peer else None
    if peer is not None:
        first = peer.fold(app, f"{stack.prefix}.inbox", count, "fold")
        print(f"Kafka Streams {version()} has folded, live after {first.seconds:.2f} s", file=sys.stderr)
    for number in range(rounds):
        for which in ("refold", "streams") if number % 2 == 0 else ("streams", "refold"):
            if which == "refold":
                mine.append(ours(stack))
                print(f"round {number + 1} refold: {mine[-1]}", file=sys.stderr)
            elif peer is not None:
                table.append(peer.table(f"{app}-{number}", state, ends, f"table-{number}"))
                fold.append(peer.fold(app, f"{stack.prefix}.inbox", 0, f"fold-{number}"))
                print(f"round {number + 1} Kafka Streams: {table[-1]} {fold[-1]}", file=sys.stderr)
    restoring, starting = (
        median([one.from_restoring_s for one in mine]),
        median([one.from_start_s for one in mine]),
    )
    same_bytes: dict[str, Any] = {
        "records": records,
        "megabytes": round(size / 1e6, 1),
        "refold": _rates(records, size, restoring),
    }
    same_events: dict[str, Any] = {
        "events": count,
        "sessions": sessions,
        "refold": {
            "seconds": round(starting, 3),
            "changelog_records": records,
            "megabytes": round(size / 1e6, 1),
        },
    }
    if peer is not None:
        theirs = median([one.restore_seconds for one in table])
        _, peer_records, peer_size = extent(stack.bootstrap, f"{app}-state-changelog", stack.partitions)
        after = median([one.seconds for one in fold])
        same_bytes["kafka_streams"] = _rates(table[0].records, size, theirs)
        same_bytes["ratio_to_kafka_streams"] = round(theirs / restoring, 2)
        same_events["kafka_streams"] = {
            "seconds": round(after, 3),
            "restore_seconds": round(median([one.restore_seconds for one in fold]), 3),
            "changelog_records": peer_records,
            "megabytes": round(peer_size / 1e6, 1),
        }
        same_events["ratio_to_kafka_streams"] = round(after / starting, 2)
    return {
        "rounds": rounds,
        "kafka_streams": version() if with_peer else None,
        "same_bytes": same_bytes,
        "same_events": same_events,
    }


def _rates(records: int, size: int, seconds: float) -> dict[str, Any]:
    return {
        "seconds": round(seconds, 3),
        "records": records,
        "records_per_second": round(records / seconds),
        "megabytes_per_second": round(size / seconds / 1e6, 1),
    }
