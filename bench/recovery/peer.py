"""Kafka Streams as a process: its jars by the same pinned way as the broker's, ``Peer.java`` compiled by the
Eclipse compiler (the JVM from the wheel has none), one JSON line per event.

What Kafka Streams shares with the broker (clients, lz4, slf4j, jackson) is the broker's pinned class path.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.harness import STEP_SECONDS_MAX, wait_until
from refold.broker.fetch import fetch
from refold.broker.jars import Jar, cache_directory, classpath
from refold.broker.java import java

HERE = Path(__file__).parent
#: Kafka Streams' own logging is below this; errors go to the log file with what the JVM says.
LOG_LEVEL = "error"
HEAP_MIB = 1024


def lock() -> list[Jar]:
    rows = json.loads((HERE / "kafka_streams.lock.json").read_text("utf-8"))["jars"]
    return [Jar(**row) for row in rows]


def version() -> str:
    return next(jar.coordinate for jar in lock() if "kafka-streams" in jar.coordinate).rsplit(":", 1)[1]


@dataclass(frozen=True)
class Live:
    """``seconds``: from the start of the process to all state live. ``restore_seconds``: from the first to
    the last of the restore alone."""

    seconds: float
    restore_seconds: float
    records: int


class Peer:
    """Compiled once; every run is a process of its own with a directory of its own."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        home = cache_directory() / "bench"
        home.mkdir(parents=True, exist_ok=True)
        jars = lock()
        missing = [jar for jar in jars if not jar.matches(home / jar.file_name)]
        if missing:
            fetch(missing, home)
        self._classes = directory / "classes"
        self._classes.mkdir()
        self._path = os.pathsep.join(
            [str(self._classes), *(str(home / jar.file_name) for jar in jars), classpath()]
        )
        subprocess.run(
            [
                *(str(java()), "-cp", self._path, "org.eclipse.jdt.internal.compiler.batch.Main"),
                *("-proc:none", "-nowarn", "-source", "21", "-target", "21", "-cp", self._path),
                *("-d", str(self._classes), str(HERE / "Peer.java")),
            ],
            check=True,
            timeout=STEP_SECONDS_MAX,
        )
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def table(self, app: str, topic: str, ends: dict[int, int], run: str) -> Live:
        """Restore ``topic`` as it is into an empty directory. Its group is told that all of it was consumed:
        that is how far Kafka Streams restores from a source topic."""
        offsets = [TopicPartition(topic, partition, end) for partition, end in ends.items()]
        self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(app, offsets)])[app].result()
        return self._run("table", app, topic, run)

    def fold(self, app: str, topic: str, events: int, run: str) -> Live:
        """Start in an empty directory, restore what there is, process ``events`` more (0: none)."""
        return self._run("fold", app, topic, run, *([str(events)] if events else []))

    def _run(self, mode: str, app: str, topic: str, run: str, *more: str) -> Live:
        state = self._directory / f"streams-{run}"
        log = self._directory / f"streams-{run}.log"
        started = time.time()
        with log.open("wb") as errors:
            done = subprocess.run(
                [
                    *(str(java()), f"-Xmx{HEAP_MIB}m", "--enable-native-access=ALL-UNNAMED"),
                    "--sun-misc-unsafe-memory-access=allow",
                    f"-Dorg.slf4j.simpleLogger.defaultLogLevel={LOG_LEVEL}",
                    *("-cp", self._path, "Peer", mode, self._bootstrap, app, topic, str(state), *more),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=STEP_SECONDS_MAX,
                check=False,
            )
        lines: list[dict[str, Any]] = [
            json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")
        ]
        if done.returncode != 0 or not lines:
            raise RuntimeError(
                f"Kafka Streams ended with exit code {done.returncode}: {log.read_text()[-2000:]}"
            )
        self._wait_gone(app)
        live = lines[0]
        return Live(
            live["at_ms"] / 1000 - started,
            (live["restore_last_ms"] - live["restore_first_ms"]) / 1000,
            live["records"],
        )

    def _wait_gone(self, app: str) -> None:
        """Its members have left: the next run is not to wait for them to time out."""

        def gone() -> bool:
            found = self._admin.describe_consumer_groups([app])[app].result()
            return found.state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)

        wait_until(gone, f"the end of group {app}")
