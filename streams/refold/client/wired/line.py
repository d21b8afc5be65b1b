"""The records of one partition on their way: waiting, or in the one batch that is sent until it is in."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

from refold.client.delivery import Delivery, Known, Record, Tell
from refold.errors import RefoldError
from refold.protocol.batches import Batch
from refold.protocol.requests import Identity, Place

if TYPE_CHECKING:
    from refold.client.wired.courier import Courier

Report = tuple[Tell, Known]

#: Of one partition in one request, before compression. A topic takes 1 MB and more; one record may be larger.
BATCH_BYTES: Final = 512 * 1024


class Parcel:
    """A batch that is numbered and not answered. ``first``: its first sequence number."""

    __slots__ = ("batch", "deadline", "first", "made_ms", "records", "who")

    def __init__(self, records: list[Record], batch: Batch, deadline: float, made_ms: int) -> None:
        self.records = records
        self.batch = batch
        self.deadline = deadline
        self.made_ms = made_ms
        self.who = Identity()
        self.first = 0


class Line:
    """``waiting`` is appended to by the event loop; the rest belongs to the thread that has the line: the
    courier of its leader, or the finder while that is not known."""

    __slots__ = ("alone", "courier", "not_before", "parcel", "pause_s", "place", "unknown_since", "waiting")

    def __init__(self, place: Place) -> None:
        self.place = place
        #: Each with the time by which it has to be in, monotonic.
        self.waiting: deque[tuple[Record, float]] = deque()
        self.parcel: Parcel | None = None
        self.courier: Courier | None = None
        #: Of the records waiting so many are sent one by one: the broker has refused their batch.
        self.alone = 0
        self.not_before = 0.0
        self.pause_s = 0.0
        #: Since when the brokers have said that there is no such topic; 0: they have not.
        self.unknown_since = 0.0

    @property
    def busy(self) -> bool:
        return self.parcel is not None or bool(self.waiting)

    @property
    def deadline(self) -> float:
        """Of its oldest record."""
        if self.parcel is not None:
            return self.parcel.deadline
        return self.waiting[0][1] if self.waiting else float("inf")

    def pack(self) -> Parcel | None:
        """What waits, as far as it fits into a batch; the parcel that is under way, where there is one."""
        if self.parcel is not None or not self.waiting:
            return self.parcel
        made_ms = time.time_ns() // 1_000_000
        batch = Batch(BATCH_BYTES, transactional=False)
        records: list[Record] = []
        deadline = self.waiting[0][1]
        while self.waiting:
            record = self.waiting[0][0]
            if not batch.add(record[1], record[2], list(record[3]), made_ms):
                break
            records.append(record)
            self.waiting.popleft()
            if self.alone:
                self.alone -= 1
                break
        self.parcel = Parcel(records, batch, deadline, made_ms)
        return self.parcel

    def unpack(self, *, alone: bool) -> None:
        """What was packed waits again, before everything else. ``alone``: each record by itself from now
        on."""
        parcel, self.parcel = self.parcel, None
        if parcel is not None:
            self.waiting.extendleft((record, parcel.deadline) for record in reversed(parcel.records))
            if alone:
                self.alone = len(parcel.records)

    def landed(self, offset: int, appended_ms: int) -> list[Report]:
        parcel, self.parcel = self.parcel, None
        self.pause_s = 0.0
        if parcel is None:
            return []
        partition, at_ms = self.place[1], appended_ms if appended_ms >= 0 else parcel.made_ms
        return [
            (record[-1], Delivery(partition, offset + at, at_ms)) for at, record in enumerate(parcel.records)
        ]

    def failed(self, known: Known) -> list[Report]:
        """The parcel's records."""
        parcel, self.parcel = self.parcel, None
        return [] if parcel is None else [(record[-1], known) for record in parcel.records]

    def given_up(self, known: Known) -> list[Report]:
        """Everything that waits, and the parcel's records: of those nobody knows, where they were sent
        once."""
        sent = self.parcel is not None and self.parcel.batch.data is not None
        unknown = KafkaError(KafkaError._AUTHENTICATION), self.place[0]
        reports = self.failed(unknown if sent and isinstance(known, RefoldError) else known)
        while self.waiting:
            reports.append((self.waiting.popleft()[0][-1], known))
        self.alone = 0
        return reports

    def late(self, now: float) -> list[Report]:
        """What is not in although its time is over."""
        over = KafkaError(KafkaError._MSG_TIMED_OUT), self.place[0]
        reports: list[Report] = []
        if self.parcel is not None and self.parcel.deadline <= now:
            reports += self.failed(over)
        while self.parcel is None and self.waiting and self.waiting[0][1] <= now:
            reports.append((self.waiting.popleft()[0][-1], over))
            self.alone = max(0, self.alone - 1)
        return reports
