"""The records of one partition on their way: waiting, or in the one batch that is sent until it is in."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from refold.client.delivery import Delivery, Known, Record, Tell, outcome_unknown
from refold.errors import RefoldError
from refold.protocol.batches import Batch
from refold.protocol.requests import Identity, Place

if TYPE_CHECKING:
    from refold.client.wired.courier import Courier

Report = tuple[Tell, Known]

#: A record, and the time by which it has to be in, monotonic.
Item = tuple[Record, float]

#: Of one partition in one request, before compression. A topic takes 1 MB and more; one record may be larger.
BATCH_BYTES: Final = 512 * 1024


class Parcel:
    """A batch that is numbered and not answered. ``items``: its records with their times, as they waited.
    ``first``: its first sequence number."""

    __slots__ = ("asked", "batch", "first", "items", "made_ms", "who")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.batch = Batch(BATCH_BYTES, transactional=False)
        self.made_ms = time.time_ns() // 1_000_000
        self.who = Identity()
        self.first = 0
        #: Requests with it of which it is not known that they changed nothing.
        self.asked = 0


class Line:
    """``waiting`` is appended to by the event loop; the rest belongs to the thread that has the line: the
    courier of its leader, or the finder while that is not known."""

    __slots__ = ("alone", "courier", "not_before", "parcel", "pause_s", "place", "unknown_since", "waiting")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.waiting: deque[Item] = deque()
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
    def oldest(self) -> float:
        """The time of the record that is sent next. Of a line that is busy."""
        return self.waiting[0][1] if self.parcel is None else self.parcel.items[0][1]

    @property
    def newest(self) -> float:
        """By then nobody waits for the line's records any more. Of a line that is busy."""
        try:
            return self.waiting[-1][1]
        except IndexError:
            return 0.0 if self.parcel is None else self.parcel.items[-1][1]

    def pack(self) -> Parcel | None:
        """What waits, as far as it fits into a batch; the parcel that is under way, where there is one."""
        if self.parcel is not None or not self.waiting:
            return self.parcel
        # Where a record cannot be encoded, those before it are not lost.
        parcel = self.parcel = Parcel()
        while self.waiting:
            record = self.waiting[0][0]
            if not parcel.batch.add(record[1], record[2], list(record[3]), parcel.made_ms):
                break
            parcel.items.append(self.waiting.popleft())
            if self.alone:
                self.alone -= 1
                break
        return parcel

    def unpack(self, *, alone: bool) -> None:
        """What was packed waits again, before everything else. ``alone``: each record by itself from now
        on."""
        parcel, self.parcel = self.parcel, None
        if parcel is not None:
            self.waiting.extendleft(reversed(parcel.items))
            if alone:
                self.alone = len(parcel.items)

    def landed(self, offset: int, appended_ms: int) -> list[Report]:
        parcel, self.parcel = self.parcel, None
        self.pause_s = 0.0
        if parcel is None:
            return []
        partition, at_ms = self.place[1], appended_ms if appended_ms >= 0 else parcel.made_ms
        return [
            (item[0][-1], Delivery(partition, offset + at, at_ms)) for at, item in enumerate(parcel.items)
        ]

    def failed(self, known: Known) -> list[Report]:
        """The parcel's records. That they are not written is not known where an earlier request had no
        answer."""
        parcel, self.parcel = self.parcel, None
        if parcel is None:
            return []
        if parcel.asked and not isinstance(known, Delivery):
            known = outcome_unknown(str(known if isinstance(known, RefoldError) else known[0].str()))
        return [(item[0][-1], known) for item in parcel.items]

    def given_up(self, known: Known) -> list[Report]:
        """Everything that waits, and the parcel's records."""
        reports = self.failed(known)
        while self.waiting:
            reports.append((self.waiting.popleft()[0][-1], known))
        self.alone = 0
        return reports

    def drop(self, now: float) -> None:
        """What nobody waits for any more is not sent: it was told that its time is over
        (:mod:`.promises`)."""
        if self.parcel is not None and self.parcel.items[-1][1] <= now:
            self.parcel = None
        while self.parcel is None and self.waiting and self.waiting[0][1] <= now:
            self.waiting.popleft()
            self.alone = max(0, self.alone - 1)
