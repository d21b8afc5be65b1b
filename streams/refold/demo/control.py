"""The control: the same events in a plain consumer, killed at the same moments. Run as a process of its own.

It is what a first version of such a service usually is, and it is not rigged: confluent-kafka's defaults
(auto-commit of offsets every 5 s, `earliest`), a dict in memory as state, one output record per event, an
idempotent producer. The session timeout is the workers', so that it is not made to wait longer than they are.
On SIGTERM it writes its final counts as one JSON object to stdout.

What it gets wrong follows from that: the dict dies with the process, so events counted before are *lost*
from its counts; offsets committed up to 5 s late are read again, so their outputs are *doubled*.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter

from confluent_kafka import Consumer, Producer


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("group", "source", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--session-timeout-ms", type=int, required=True)
    options = parser.parse_args()
    kafka = json.load(sys.stdin)  # bootstrap and credentials: not for the command line
    consumer = Consumer(
        {
            **kafka,
            "group.id": options.group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": options.session_timeout_ms,
        }
    )
    producer = Producer({**kafka, "enable.idempotence": True})
    consumer.subscribe([options.source])
    counts: Counter[str] = Counter()
    running = True

    def stop(_number: int, _frame: object) -> None:
        nonlocal running
        running = False

    signal.signal(signal.SIGTERM, stop)
    while running:
        message = consumer.poll(0.1)
        producer.poll(0)
        if message is None or message.error() is not None:
            continue
        session = (message.key() or b"").decode(errors="replace")
        counts[session] += 1
        place = f"{message.partition()}/{message.offset()}"
        producer.produce(options.output, f"{place} {counts[session]}", session)
    producer.flush()
    consumer.close()
    json.dump(counts, sys.stdout)


if __name__ == "__main__":
    main()
