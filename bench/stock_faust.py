"""The peer: stock Faust doing refold's fold, end to end, the way its documentation says to.

One agent over the inbox, one RocksDB-backed table whose changelog is the state topic, one ``send`` per
accepted event to a journal topic. The fold itself (decode, decide, evolve, snapshot) is refold's own
core, and decoded sessions are kept in memory, so what differs is the engine alone. At-least-once, as
stock Faust is by default: this favours the peer.

Run by ``bench.throughput``: ``python -m bench.stock_faust worker -l error`` with BENCH_* in the environment.
Prints one JSON line when BENCH_EVENTS events were folded, then exits.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import faust

from refold.core import Accepted, Session, decide, evolve, initial
from refold.core.slots import split_key
from refold.wire.envelope import decode_envelope
from refold.wire.events import decode_event
from refold.wire.journal import journal_value
from refold.wire.snapshot import encode_snapshot

EVENTS = int(os.environ.get("BENCH_EVENTS", "0"))
INBOX = os.environ.get("BENCH_INBOX", "bench")
PARTITIONS = int(os.environ.get("BENCH_PARTITIONS", "4"))

app = faust.App(
    os.environ.get("BENCH_APP", "bench-stock-faust"),
    broker="kafka://" + os.environ.get("BENCH_BOOTSTRAP", "127.0.0.1:9092"),
    store="rocksdb://",
    datadir=os.environ.get("BENCH_DATADIR", ".refold/bench-faust"),
    topic_partitions=PARTITIONS,
    topic_replication_factor=1,
    web_enabled=False,
    stream_wait_empty=False,
    # The two settings Faust's own tuning notes name first; both help it here.
    broker_max_poll_records=1000,
    stream_buffer_maxsize=8192,
    consumer_auto_offset_reset="earliest",
)
inbox = app.topic(INBOX, key_type=bytes, value_type=bytes, value_serializer="raw", key_serializer="raw")
journal = app.topic(
    f"{app.conf.id}-journal",
    key_type=bytes,
    value_type=bytes,
    key_serializer="raw",
    value_serializer="raw",
    partitions=PARTITIONS,
)
state = app.Table(
    "state",
    partitions=PARTITIONS,
    key_type=bytes,
    value_type=bytes,
    schema=faust.Schema(key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"),
)
sessions: dict[bytes, Session] = {}
progress: dict[str, Any] = {"count": 0, "start": 0.0, "cpu": 0.0}


@app.agent(inbox)
async def fold(stream: Any) -> None:
    async for event in stream.events():
        if not progress["count"]:
            progress["start"], progress["cpu"] = time.perf_counter(), time.process_time()
        message = event.message
        envelope = decode_envelope(event.value)
        fact = decode_event(envelope)
        session = sessions.get(event.key)
        if session is None:
            session = sessions[event.key] = initial(*split_key(event.key))
        time_ms = int(message.timestamp * 1000)
        ruling = decide(session, envelope, fact, time_ms)
        if isinstance(ruling, Accepted):
            evolve(session, ruling.seq, ruling.time_ms, message.partition, message.offset, envelope, fact)
            value = journal_value(ruling.seq, ruling.time_ms, message.partition, message.offset, envelope)
            await journal.send(key=event.key, value=value, partition=message.partition)
            state[event.key] = encode_snapshot(session)
        progress["count"] += 1
        if progress["count"] == EVENTS:
            wall = time.perf_counter() - progress["start"]
            cpu = time.process_time() - progress["cpu"]
            # Faust turns sys.stdout into log lines.
            print(
                json.dumps({"events": EVENTS, "seconds": wall, "cpu_seconds": cpu}),
                file=sys.__stdout__,
                flush=True,
            )
            os._exit(0)


if __name__ == "__main__":
    app.main()
