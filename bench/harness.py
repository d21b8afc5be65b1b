"""What every benchmark needs: a broker of its own, topics, load, worker processes, and their CPU.

Figures are ratios inside one run wherever possible: the machine is shared and noisy, so an absolute
number says little. Nothing here asserts; ``bench`` prints, people and CI logs compare.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from refold.broker import EmbeddedBroker
from refold.topology import Topology
from refold.topology.groupoffsets import GroupOffsets

REPO = Path(__file__).resolve().parent.parent
#: Clock ticks per second of /proc/PID/stat.
_HZ = os.sysconf("SC_CLK_TCK")
#: One benchmark step that takes longer than this is stuck, not slow: the slowest (stock Faust on 60 k
#: events at about 2 k/s) takes 30 s on a quiet machine, ten times that on a loaded one.
STEP_SECONDS_MAX = 300.0
#: One answer of the group's coordinator.
ANSWER_SECONDS_MAX = 60.0


def cpu_seconds(pid: int) -> float:
    """User plus system CPU of a process in seconds, all threads."""
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(stat[11]) + int(stat[12])) / _HZ


def processor_ticks() -> tuple[int, int]:
    """Clock ticks that the machine's processors were busy and idle, all together, since it was started."""
    user, nice, system, idle, waiting, *others = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return user + nice + system + sum(others), idle + waiting


def peak_rss_mib(pid: int) -> float:
    """High-water mark of resident memory in MiB (``VmHWM``)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


@contextlib.contextmanager
def broker(bootstrap: str | None) -> Iterator[tuple[str, EmbeddedBroker | None]]:
    """The given cluster, or an embedded broker in a temporary directory that is gone afterwards."""
    if bootstrap:
        yield bootstrap, None
        return
    with tempfile.TemporaryDirectory(prefix="refold-bench-") as directory:
        with EmbeddedBroker(directory=Path(directory), heap_mib=1024) as embedded:
            yield embedded.bootstrap, embedded


@dataclass
class Stack:
    """One benchmark's topics and workers under a prefix of their own."""

    bootstrap: str
    prefix: str
    partitions: int
    directory: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._offsets = GroupOffsets({"bootstrap.servers": self.bootstrap}, self.prefix)

    def create_topics(self) -> None:
        Topology.load(prefix=self.prefix, partitions=self.partitions).apply(self.bootstrap)

    def start_worker(self, instance: str = "bench-0", **env: str) -> subprocess.Popen[bytes]:
        """A worker process with its own data directory; ``env`` adds REFOLD_* settings."""
        settings = {
            "REFOLD_BOOTSTRAP": self.bootstrap,
            "REFOLD_TOPIC_PREFIX": self.prefix,
            "REFOLD_WORKER__INSTANCE": instance,
            "REFOLD_WORKER__DATA_DIR": str(self.directory / self.prefix / instance),
            "REFOLD_WORKER__START_JITTER_MS_MAX": "0",
            "REFOLD_WORKER__RESTORE_JITTER_MS_MAX": "0",
            "REFOLD_LOGGING__LEVEL": "warning",
            # As installed packages have it: pip compiles what it installs. The first worker of a run does it.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(self.directory / "bytecode"),
            **env,
        }
        log = self.directory / f"{self.prefix}-{instance}.log"
        with log.open("ab") as out:
            worker = subprocess.Popen(
                [sys.executable, "-m", "refold.cli.main", "worker", "run"],
                env={**os.environ, **settings},
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=REPO,
            )
        self.workers.append(worker)
        return worker

    def committed(self) -> int:
        """Sum of the group's committed inbox offsets (never set counts as nothing)."""
        ask = [TopicPartition(f"{self.prefix}.inbox", p) for p in range(self.partitions)]
        try:
            found = self._offsets.newest(ask, ANSWER_SECONDS_MAX)
        except KafkaException:
            # A fresh broker is still loading its coordinators: nothing is committed yet.
            return 0
        return sum(max(tp.offset, 0) for tp in found)

    def inbox_end(self) -> int:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "bench-none"})
        try:
            return sum(
                consumer.get_watermark_offsets(TopicPartition(f"{self.prefix}.inbox", p), timeout=10)[1]
                for p in range(self.partitions)
            )
        finally:
            consumer.close()

    def stop(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait(10)
        self.workers.clear()


@contextlib.contextmanager
def one_worker(bootstrap: str | None, name: str, partitions: int) -> Iterator[Stack]:
    """Topics and one worker under a prefix of this run, on the given cluster or an embedded broker."""
    with broker(bootstrap) as (address, _), tempfile.TemporaryDirectory() as directory:
        stack = Stack(address, f"{name}{os.getpid()}", partitions, Path(directory))
        stack.create_topics()
        stack.start_worker(f"{stack.prefix}-w")
        try:
            yield stack
        finally:
            stack.stop()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = STEP_SECONDS_MAX) -> float:
    """Poll until true; returns the time it took in seconds. Raises TimeoutError naming ``what``."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise TimeoutError(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - start


def load(bootstrap: str, topic: str, records: Iterator[tuple[int, bytes, bytes]]) -> int:
    """Produce ``(partition, key, value)`` records as fast as the broker takes them; returns the count.

    Uncompressed: an lz4 record kills a stock Faust worker (``UnsupportedCodecError``).
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 200_000,
        }
    )
    count = 0
    for partition, key, value in records:
        while True:
            try:
                producer.produce(topic, key=key, value=value, partition=partition)
                break
            except BufferError:
                producer.poll(0.05)
        count += 1
        if count % 1000 == 0:
            producer.poll(0)
    producer.flush(60)
    return count


def report(result: dict[str, Any], as_json: bool, lines: Sequence[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)
    print(json.dumps(result) if as_json else json.dumps(result, indent=2))
