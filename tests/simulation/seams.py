"""Which names of the engine's modules are replaced while a simulation runs, and by what: the whole list.

Everything else of the engine is the product's own code. A name that no longer exists fails the run (and a
test), so a refactoring of the engine cannot silently take the simulator's place.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from refold.engine import (
    assignment,
    batchfold,
    batchsource,
    bulk,
    changelogs,
    commit,
    engine,
    group,
    history,
    ownership,
    plan,
    poll,
    restore,
    seal,
    takeover,
    ticks,
)
from refold.engine.standby import copy, service, tail
from refold.engine.warming import fold, gate, interval, keyset, opening, parking, reader, scan, warmer
from refold.topology import groupoffsets

from . import disk, versions
from .broker import Broker
from .consumer import Reader
from .kernel import Kernel
from .loop import Asyncio, Executor, Threading
from .producer import Producer, Trouble

#: Rule Z's margin, scaled to a run that lasts seconds (``broker.DELETE_RETENTION_MS`` is scaled the same
#: way).
TOMBSTONE_MARGIN_MS: Final = 1_500

#: A restore in a simulation is dozens of keys: several runs, files as well as batches. A row is 600 to 900
#: bytes with what is counted beside it.
RUN_RECORDS_MAX: Final = 8
FILE_BYTES_MIN: Final = 4_096

#: Standbys look at group and logs as often as a run of seconds needs it.
LOOK_S: Final = 0.2
MEMBERS_S: Final = 0.6
AGAIN_S: Final = 1.0
KEEP_EVERY_S: Final = 1.0
#: The same of a restore that is hot first: several ranges, some of them too long, and few records that wait.
FIRST_OFFSETS: Final = 6
HOT_OFFSETS_MIN: Final = 10
RANGE_RECORDS_MAX: Final = 2
RANGE_OFFSETS_MAX: Final = 6
#: Ranges of two records are files. Keys are looked at in pieces, and a set holds many that were not put in.
RANGE_FILE_BYTES_MIN: Final = 1_000
SCAN_OFFSETS_MIN: Final = 16
SCAN_TURN_OFFSETS: Final = 9
KEYS_BYTES: Final = 8
PARKED_MAX: Final = 5
BLOCK_EVENTS: Final = 3

#: The slice clock jumps by up to this, so that folds are cut at every possible place.
SLICE_US_MAX: Final = 9_000


class Clock:
    """``time`` as the engine uses it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def monotonic(self) -> float:
        return self._kernel.monotonic()

    def perf_counter(self) -> float:
        jump_us = self._kernel.chance.randrange(SLICE_US_MAX) if self._kernel.slices else 0
        return self._kernel.monotonic() + jump_us / 1_000_000

    def sleep(self, seconds: float) -> None:
        self._kernel.sleep(seconds)


def replacements(
    kernel: Kernel, broker: Broker, trouble: Trouble, happened: Counter[str]
) -> list[tuple[ModuleType, str, Any]]:
    clock = Clock(kernel)

    def restore_reader(config: Any) -> Reader:
        return Reader(kernel, broker)

    def transactional(config: Any, transactional_id: str, *, message_bytes_max: int) -> Producer:
        return Producer(kernel, broker, transactional_id, config.transaction_timeout_ms, trouble=trouble)

    def pool(workers: int, name: str = "pool") -> Executor:
        return Executor(kernel, workers, name)

    def connect(producer: Producer, topic: str) -> None:
        """A simulated client has no connection to wait for."""

    clients = SimpleNamespace(
        restore_reader=restore_reader,
        standby_reader=restore_reader,
        transactional=transactional,
        connect=connect,
    )
    return [
        (assignment, "time", clock),
        (assignment, "threading", Threading(kernel)),
        (commit, "time", clock),
        (batchfold, "time", clock),
        (batchfold, "asyncio", Asyncio(kernel)),
        (batchsource, "threading", Threading(kernel)),
        (changelogs, "clients", clients),
        (bulk, "RUN_RECORDS_MAX", RUN_RECORDS_MAX),
        (bulk, "FILE_BYTES_MIN", FILE_BYTES_MIN),
        (engine, "time", clock),
        (engine, "asyncio", Asyncio(kernel)),
        (engine, "ThreadPoolExecutor", pool),
        (group, "time", clock),
        (ownership, "time", clock),
        (ownership, "asyncio", Asyncio(kernel)),
        (ownership, "ThreadPoolExecutor", pool),
        (poll, "threading", Threading(kernel)),
        (poll, "time", clock),
        (restore, "time", clock),
        (restore, "TOMBSTONE_MARGIN_MS", TOMBSTONE_MARGIN_MS),
        (restore, "READING_MS_MIN", 0),
        (seal, "time", clock),
        (seal, "encode_snapshot", versions.Builds(kernel, happened).encode_snapshot),
        (takeover, "time", clock),
        (takeover, "clients", clients),
        (groupoffsets, "time", clock),
        (groupoffsets, "threading", Threading(kernel)),
        (ticks, "time", clock),
        (copy, "time", clock),
        (service, "time", clock),
        (service, "LOOK_S", LOOK_S),
        (service, "MEMBERS_S", MEMBERS_S),
        (service, "AGAIN_S", AGAIN_S),
        (tail, "time", clock),
        (tail, "threading", Threading(kernel)),
        (tail, "clients", clients),
        (tail, "KEEP_EVERY_S", KEEP_EVERY_S),
        (fold, "time", clock),
        (fold, "asyncio", Asyncio(kernel)),
        (gate, "threading", Threading(kernel)),
        (interval, "FIRST_OFFSETS", FIRST_OFFSETS),
        (interval, "RUN_RECORDS_MAX", RANGE_RECORDS_MAX),
        (interval, "RANGE_OFFSETS_MAX", RANGE_OFFSETS_MAX),
        (interval, "FILE_BYTES_MIN", RANGE_FILE_BYTES_MIN),
        (scan, "OFFSETS_MIN", SCAN_OFFSETS_MIN),
        (scan, "TURN_OFFSETS", SCAN_TURN_OFFSETS),
        (keyset, "BYTES_MIN", KEYS_BYTES),
        (keyset, "BYTES_MAX", KEYS_BYTES),
        (opening, "HOT_OFFSETS_MIN", HOT_OFFSETS_MIN),
        (parking, "PARKED_MAX", PARKED_MAX),
        (reader, "clients", clients),
    ]


def disks() -> list[tuple[ModuleType, str, Any]]:
    """RocksDB's place. Left out by tests/plug, which runs on the real one."""
    return [
        (bulk, "Batch", disk.Batch),
        (copy, "Batch", disk.Batch),
        (tail, "set_aside", disk.set_aside),
        (plan, "Batch", disk.Batch),
        (opening, "Batch", disk.Batch),
        (warmer, "Batch", disk.Batch),
        (restore, "Store", disk.Store),
        (restore, "Batch", disk.Batch),
        (restore, "set_aside", disk.set_aside),
        (restore, "foreign", lambda path: False),
        (restore, "sorted_files", lambda path: 0),
        (restore, "stored_frontier", disk.stored_frontier),
    ]


@contextlib.contextmanager
def small_blocks(on: bool) -> Iterator[None]:
    """History blocks that fill up within a run, where it matters: they are read last, beside commits."""
    before = history.BLOCK_EVENTS
    history.BLOCK_EVENTS = BLOCK_EVENTS if on else before  # type: ignore[misc]
    try:
        yield
    finally:
        history.BLOCK_EVENTS = before  # type: ignore[misc]


@contextlib.contextmanager
def installed(
    kernel: Kernel, broker: Broker, trouble: Trouble, happened: Counter[str], *, real_disks: bool = False
) -> Iterator[None]:
    before: list[tuple[ModuleType, str, Any]] = []
    try:
        names = replacements(kernel, broker, trouble, happened) + ([] if real_disks else disks())
        for module, name, value in names:
            before.append((module, name, getattr(module, name)))
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in reversed(before):
            setattr(module, name, value)
