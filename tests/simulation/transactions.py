"""The transaction coordinator.

Modelled as measured: ``EndTxn`` checks producer id and epoch and nothing else; a decision is durable before
its markers are written, and the markers arrive on each partition in their own time; the next transaction of
the id waits for them (CONCURRENT_TRANSACTIONS); ``InitProducerId`` raises the epoch and ends what is open; a
transaction older than its timeout is aborted with a raised epoch, noticed only when the broker looks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError

from .group import Slot
from .kafka import raised
from .kernel import Kernel
from .log import PartitionLog, Stored

#: How often the broker looks for transactions past their timeout.
SCAN_US: Final = 100_000

Place = tuple[str, int]


class State(enum.Enum):
    EMPTY = "empty"
    ONGOING = "ongoing"
    COMMITTING = "committing"
    ABORTING = "aborting"


@dataclass(slots=True)
class Transaction:
    txid: str
    pid: int
    epoch: int
    timeout_us: int
    state: State = State.EMPTY
    started_us: int = 0
    number: int = 0
    places: dict[Place, None] = field(default_factory=dict)
    with_offsets: bool = False
    #: What the last decision was, so that a repeated EndTxn gets the same answer.
    decided: str = ""
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """A committed transaction as checkers see it: its records in log order, and the offsets sent with it."""

    txid: str
    number: int
    records: tuple[tuple[str, int, Stored], ...]
    offsets: dict[Slot, tuple[int, str]]


class Transactions:
    def __init__(
        self,
        kernel: Kernel,
        log_of: Callable[[str, int], PartitionLog],
        pending: Callable[[int], dict[Slot, tuple[int, str]]],
        settle_offsets: Callable[[int, bool], None],
    ) -> None:
        self._kernel = kernel
        self._log_of = log_of
        self._pending = pending
        self._settle_offsets = settle_offsets
        self._by_id: dict[str, Transaction] = {}
        self._pids = 0
        self._numbers = 0
        #: Longest time a marker takes; a fault raises it.
        self.marker_us_max = 2_000
        self.on_decided: Callable[[Decision], None] = lambda decision: None
        self.timed_out = 0
        self.committed = 0
        self.aborted = 0
        self.fenced = 0
        kernel.after(SCAN_US, self._scan)

    def fresh_pid(self) -> int:
        self._pids += 1
        return self._pids

    def init(self, txid: str, timeout_us: int, wait_us: int) -> tuple[int, int]:
        """InitProducerId: ``(pid, epoch)``. Blocks until what was open is ended."""
        found = self._by_id.get(txid)
        if found is None:
            found = self._by_id[txid] = Transaction(txid, self.fresh_pid(), 0, timeout_us)
            return found.pid, found.epoch
        found.timeout_us = timeout_us
        if found.state is State.ONGOING:
            # The epoch is raised with the abort: the old producer is fenced from here on.
            found.epoch += 1
            self.fenced += 1
            self._decide(found, commit=False)
        if not self._kernel.wait(lambda: found.state is State.EMPTY, wait_us):
            raise raised(KafkaError._TIMED_OUT, "init_transactions timed out", retriable=True)
        found.epoch += 1
        found.decided = ""
        return found.pid, found.epoch

    def _mine(self, txid: str, pid: int, epoch: int) -> Transaction:
        found = self._by_id.get(txid)
        if found is None or found.pid != pid or found.epoch != epoch:
            raise raised(KafkaError._FENCED, "the producer was fenced by a newer instance", fatal=True)
        return found

    def open(self, txid: str, pid: int, epoch: int) -> Transaction:
        """AddPartitionsToTxn or AddOffsetsToTxn: begins the transaction. Blocks while markers are being
        written."""
        found = self._mine(txid, pid, epoch)
        if found.state not in (State.EMPTY, State.ONGOING):
            self._kernel.wait(lambda: found.state in (State.EMPTY, State.ONGOING))
            found = self._mine(txid, pid, epoch)
        if found.state is State.EMPTY:
            found.state = State.ONGOING
            found.started_us = self._kernel.now_us
            self._numbers += 1
            found.number = self._numbers
            found.decided = ""
        return found

    def append(
        self,
        txid: str,
        pid: int,
        epoch: int,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]] | None,
    ) -> int:
        found = self.open(txid, pid, epoch)
        found.places[topic, partition] = None
        return self._log_of(topic, partition).append(self._kernel.now_ms, key, value, headers, pid)

    def end(self, txid: str, pid: int, epoch: int, *, commit: bool) -> None:
        """EndTxn. Returns when the decision is durable; markers follow."""
        found = self._mine(txid, pid, epoch)
        wanted = "commit" if commit else "abort"
        if found.decided:
            if found.decided != wanted:
                raise raised(KafkaError.INVALID_TXN_STATE, "the transaction has ended otherwise", fatal=True)
            return
        if found.state is State.ONGOING:
            self._decide(found, commit=commit)

    def _decide(self, found: Transaction, *, commit: bool) -> None:
        found.state = State.COMMITTING if commit else State.ABORTING
        found.decided = "commit" if commit else "abort"
        kernel, pid = self._kernel, found.pid
        if commit:
            self.committed += 1
        else:
            self.aborted += 1
        kernel.trace(found.txid, f"{found.decided} #{found.number} of {len(found.places)} partitions")
        if commit:
            records: list[tuple[str, int, Stored]] = []
            for topic, partition in found.places:
                log = self._log_of(topic, partition)
                first = log.open.get(pid, log.end)
                records += [
                    (topic, partition, entry)
                    for entry in log.since(first)
                    if entry.pid == pid and entry.control is None
                ]
            self.on_decided(Decision(found.txid, found.number, tuple(records), self._pending(pid)))
        control = found.decided
        found.waiting = len(found.places) + 1

        def done() -> None:
            found.waiting -= 1
            if found.waiting == 0:
                found.state = State.EMPTY
                found.places = {}
                found.with_offsets = False

        def mark(place: Place) -> Callable[[], None]:
            def write() -> None:
                self._log_of(*place).mark(kernel.now_ms, pid, control)
                done()

            return write

        def settle() -> None:
            self._settle_offsets(pid, commit)
            done()

        for place in found.places:
            kernel.after(kernel.chance.randrange(self.marker_us_max), mark(place))
        kernel.after(kernel.chance.randrange(self.marker_us_max), settle)

    def _scan(self) -> None:
        now = self._kernel.now_us
        for found in self._by_id.values():
            if found.state is State.ONGOING and now - found.started_us > found.timeout_us:
                found.epoch += 1
                self.timed_out += 1
                self._decide(found, commit=False)
        self._kernel.after(SCAN_US, self._scan)
