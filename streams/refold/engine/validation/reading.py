"""Validate one copy: read its changelogs, note what they say, compare. On a thread of its own, slowly.

The copy is hard links of the live DB at some commit, so commits go on and closing the DB waits for nobody.
Read is from the log's beginning to the copy's frontier, and then on to where the log ends by now: the second
part says which keys compaction may have dealt with meanwhile (:mod:`compare`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.engine import bulk, clients, rows
from refold.engine.admission import Pace
from refold.engine.config import EngineConfig
from refold.engine.store import Copy, Memory
from refold.engine.takeover import Cancelled, Cluster
from refold.engine.validation.compare import Kind, Said, differences, digest
from refold.engine.validation.scratch import Scratch
from refold.errors import StorageError, UnavailableError
from refold.topology.failures import explain

#: Records per consume call: the interpreter is another thread's after 10 ms.
CHUNK_RECORDS: Final = 200
POLL_S: Final = 0.2

#: A record costs its bytes and this many more: what Python does with it takes as long as reading a kilobyte.
#: At 8 MB/s these are 7 500 small records a second, a tenth of a core.
RECORD_COST_BYTES: Final = 1_024

#: Rows compared between two waits.
CHUNK_ROWS: Final = 100

#: No progress for so long: the log is held by an open transaction, or cannot be read. Later again.
STALL_S_MAX: Final = 60.0

#: Longer ago than this, and deletions whose sessions were read may be gone by now: half of the shortest
#: delete.retention.ms that a deployment should have.
SECONDS_MAX: Final = 12 * 3_600.0

#: Differences whose places are told; all are counted.
TOLD_MAX: Final = 10


@dataclass(slots=True)
class Report:
    """``state_next``: how far the copy was. ``places``: topic, kind and offset of the first differences."""

    state_topic: str
    state_next: int
    records: int = 0
    rows: int = 0
    kinds: Counter[Kind] = field(default_factory=Counter)
    places: list[tuple[str, Kind, int]] = field(default_factory=list)


class Reading:
    def __init__(
        self,
        config: EngineConfig,
        cluster: Cluster,
        memory: Memory,
        *,
        partition: int,
        copy: Path,
        scratch: Path,
        paces: tuple[Pace, ...],
        stopped: Callable[[], bool],
        turn: Callable[[], None] = lambda: None,
    ) -> None:
        """``turn`` is called before every piece of work and may block: restores come first."""
        self._config = config
        self._cluster = cluster
        self._memory = memory
        self._partition = partition
        self._copy = copy
        self._scratch = scratch
        self._paces = paces
        self._stopped = stopped
        self._turn = turn
        #: Told how many bytes of changelogs were read.
        self.told: Callable[[int], None] = _nobody
        topics = config.topics
        self._kinds = {
            topics.state: rows.STATE,
            topics.history: rows.BLOCK,
            topics.generations: rows.SIDE,
        }
        # By both clocks: one of them stands while the machine is suspended.
        self._until = (time.monotonic() + SECONDS_MAX, time.time() + SECONDS_MAX)

    def run(self) -> Report:
        """Raises :class:`Cancelled`; :class:`UnreadableStore` for a copy that cannot be read;
        :class:`StorageError` for lack of space; UnavailableError, TransientError, PermissionDenied."""
        with Copy(self._copy, self._memory) as copy, Scratch(self._scratch) as scratch:
            frontier = copy.frontier()
            if frontier is None:
                raise StorageError(f"the copy of partition {self._partition} has no frontier row")
            report = Report(frontier.state_topic, frontier.state_next)
            try:
                self._read(frontier, scratch, report)
            except KafkaException as raised:
                raise explain(
                    raised,
                    doing=f"validating partition {self._partition}",
                    bootstrap=self._config.bootstrap,
                ) from None
            for topic, kind in self._kinds.items():
                self._compare(topic, kind, copy, scratch, report)
        return report

    # --- what the log says ---------------------------------------------------------------------------

    def _read(self, frontier: rows.Frontier, scratch: Scratch, report: Report) -> None:
        topics, marks = self._config.topics, self._cluster.marks(self._partition)
        place = {
            topics.state: frontier.state_next,
            topics.history: frontier.history_next,
            topics.generations: frontier.generations_next,
        }
        position = {
            topics.state: marks.state_start,
            topics.history: marks.history_start,
            topics.generations: marks.generations_start,
        }
        rate = max((pace.bytes_per_s for pace in self._paces[:1]), default=0)
        # What librdkafka fetches ahead is bounded by the rate, as that of a restore.
        paced = replace(self._config, restore_bytes_per_s_max=rate, restores_max=1)
        with closing(clients.restore_reader(paced)) as reader:
            reader.assign([TopicPartition(topic, self._partition, at) for topic, at in position.items()])
            self._read_to(reader, place, position, place, scratch, report)
            marks = self._cluster.marks(self._partition)
            ends = {
                topics.state: marks.state_end,
                topics.history: marks.history_end,
                topics.generations: marks.generations_end,
            }
            self._read_to(reader, ends, position, place, scratch, report)

    def _read_to(
        self,
        reader: Consumer,
        goal: dict[str, int],
        position: dict[str, int],
        place: dict[str, int],
        scratch: Scratch,
        report: Report,
    ) -> None:
        moved = time.monotonic()
        while any(position[topic] < at for topic, at in goal.items()):
            self._may_go_on()
            first = reader.poll(POLL_S)
            messages = [] if first is None else [first, *reader.consume(CHUNK_RECORDS - 1, 0)]
            before = dict(position)
            size = self._note(messages, position, place, scratch, report)
            if position != before:
                moved = time.monotonic()
            elif time.monotonic() - moved > STALL_S_MAX:
                raise UnavailableError(
                    f"the changelogs of partition {self._partition} could not be read on for"
                    f" {STALL_S_MAX:.0f} s: a transaction is open, or the brokers do not answer"
                )
            self._spend(size)

    def _note(
        self,
        messages: list[Message],
        position: dict[str, int],
        place: dict[str, int],
        scratch: Scratch,
        report: Report,
    ) -> int:
        last: dict[bytes, Said] = {}
        later: set[bytes] = set()
        size = bytes_read = 0
        for message in messages:
            error = message.error()
            topic = message.topic()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    position[topic] = max(position[topic], message.offset())
                elif error.code() == KafkaError._AUTO_OFFSET_RESET or not error.retriable():
                    raise KafkaException(error)
                continue
            position[topic] = message.offset() + 1
            key = message.key()
            if key is None:
                continue
            report.records += 1
            bytes_read += len(message) + len(key)
            size += len(message) + len(key) + RECORD_COST_BYTES
            full_key = self._kinds[topic] + key
            if message.offset() >= place[topic]:
                later.add(full_key)
                continue
            row = bulk.row_of(full_key, message)
            seq = rows.seq_of(row) if row is not None and topic == self._config.topics.state else -1
            last[full_key] = Said(message.offset(), seq, None if row is None else digest(row))
        if last or later:
            scratch.put(last.items(), later)
        self.told(bytes_read)
        return size

    # --- what the copy holds ---------------------------------------------------------------------------

    def _compare(self, topic: str, kind: bytes, copy: Copy, scratch: Scratch, report: Report) -> None:
        found = differences(
            self._in_turn(scratch.said(kind)),
            self._counted(copy.rows(kind), report),
            seq_of=rows.seq_of if kind == rows.STATE else None,
            superseded=lambda key: scratch.superseded(kind + key),
        )
        for one in found:
            report.kinds[one.kind] += 1
            if len(report.places) < TOLD_MAX:
                report.places.append((topic, one.kind, one.offset))

    def _in_turn(self, said: Iterator[tuple[bytes, Said]]) -> Iterator[tuple[bytes, Said]]:
        for number, record in enumerate(said, 1):
            yield record
            if number % CHUNK_ROWS == 0:
                self._may_go_on()

    def _counted(self, found: Iterator[tuple[bytes, bytes]], report: Report) -> Iterator[tuple[bytes, bytes]]:
        size = 0
        for key, row in found:
            yield key, row
            report.rows += 1
            size += len(row) + RECORD_COST_BYTES
            if report.rows % CHUNK_ROWS == 0:
                self._may_go_on()
                # From this disk: only our own limit.
                self._paces[0].spend(size, self._stopped)
                size = 0

    # --- manners -------------------------------------------------------------------------------------

    def _spend(self, size: int) -> None:
        for pace in self._paces:
            pace.wait(size, self._stopped)

    def _may_go_on(self) -> None:
        self._turn()
        if self._stopped():
            raise Cancelled
        if time.monotonic() > self._until[0] or time.time() > self._until[1]:
            raise UnavailableError(
                f"validating partition {self._partition} took longer than {SECONDS_MAX / 3600:.0f} h"
            )


def _nobody(_size: int) -> None:
    return None
