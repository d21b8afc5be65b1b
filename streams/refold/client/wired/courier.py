"""The thread that takes records to one broker: all partitions that it leads, in one request after the other.

One request is under way at a time. What comes meanwhile is in the next one, so the busier a broker, the fewer
requests for the same records; where many sessions write it waits a little as well (:mod:`.gathering`).

A batch is numbered once and sent as the same bytes until it is in, so the broker knows a repeat. Each courier
has a producer id of its own: two never number the same batch. Where a broker has lost count of one (its
records were deleted, or a batch was given up half way) the courier takes a new id; a record that was in and
is sent under it once more is a repeat that the session's dedup absorbs, as it does every repeat.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError

from refold.client.delivery import outcome_unknown
from refold.client.wired.gathering import Gathering
from refold.client.wired.line import Line, Parcel, Report
from refold.errors import RefoldError
from refold.protocol import errors, requests
from refold.protocol.brokers import Address, Brokers
from refold.protocol.connection import Disconnected
from refold.protocol.requests import Identity, Place

log = logging.getLogger("refold.client")

#: A broker waits so long for its replicas before it answers `not enough of them`.
ACKS_MS_MAX: Final = 3_000

#: A request without an answer by then: the connection is given up and the leader looked for anew; earlier
#: where nobody waits for what it carries any more, but not at once.
ANSWER_S_MAX: Final = 10.0
ANSWER_S_MIN: Final = 1.0

#: Between two attempts after an answer that a retry cures; doubled each time.
PAUSE_S_MIN: Final = 0.002
PAUSE_S_MAX: Final = 0.25

#: Of one request, before compression: a broker takes 100 MB, its network threads and ours share what it
#: takes.
REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024

SEQUENCES: Final = 1 << 31

#: Sleeps no longer than this where nothing is to do.
IDLE_S: Final = 60.0

#: The broker has lost count: numbered anew under another id.
RENUMBER: Final = frozenset({
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
})  # fmt: skip

#: Of a whole batch, where one record may be the reason.
SEPARABLE: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.INVALID_RECORD}
)

#: Said before anything is appended. After others, also `not the leader`, the batch may be in.
NOT_WRITTEN: Final = SEPARABLE | {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NOT_ENOUGH_REPLICAS,
}


class Courier:
    """``report``: called with what became of records, on this thread. ``release``: takes lines back whose
    leader is to be looked for anew. ``doubt``: called when the broker does not answer."""

    def __init__(
        self,
        where: Address,
        brokers: Brokers,
        *,
        report: Callable[[list[Report]], None],
        release: Callable[[list[Line]], None],
        doubt: Callable[[], None],
    ) -> None:
        self._where = where
        self._brokers = brokers
        self._report = report
        self._release = release
        self._doubt = doubt
        self._who: Identity | None = None
        self._sequences: dict[Place, int] = {}
        self._lines: list[Line] = []
        self._given: deque[Line] = deque()
        self._gathering = Gathering()
        self._stopping = False
        self.wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refold-courier", daemon=True)
        self._thread.start()

    # Any thread

    def adopt(self, line: Line) -> None:
        line.courier = self
        self._given.append(line)
        self.wake.set()

    def stop(self) -> None:
        """Returns at once; a request under way is cut."""
        self._stopping = True
        self.wake.set()
        self._brokers.interrupt()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # This thread

    def _run(self) -> None:
        while not self._stopping:
            self.wake.clear()
            try:
                self._turn()
            except Exception as error:
                # Nothing of ours raises these. The next record finds the thread alive.
                log.exception("refold's producer failed")
                self._give_up(self._lines, outcome_unknown(repr(error)))
        self._brokers.close()

    def _turn(self) -> None:
        while self._given:
            self._lines.append(self._given.popleft())
        now = time.monotonic()
        for line in self._lines:
            line.drop(now)
        due = [line for line in self._lines if line.busy and line.not_before <= now]
        if not due:
            self.wake.wait(min((line.not_before - now for line in self._lines if line.busy), default=IDLE_S))
        elif (pause := self._gathering.pause_s(now, sum(len(line.waiting) for line in due))) > 0:
            # Not woken by what comes: it is what is waited for.
            time.sleep(pause)
            self._deliver([line for line in self._lines if line.busy and line.not_before <= now])
        else:
            self._deliver(due)

    def _deliver(self, lines: list[Line]) -> None:
        now = time.monotonic()
        wanted_s = max(line.newest for line in lines) - now
        deadline = now + min(max(wanted_s, ANSWER_S_MIN), ANSWER_S_MAX)
        try:
            if self._who is None and not self._introduced(lines, deadline):
                return
            sent = self._packed(lines)
            self._gathering.sent((item[0][1] for p in sent.values() for item in p.items), time.monotonic())
            body = requests.produce(None, ACKS_MS_MAX, {at: _data(p) for at, p in sent.items()})
            connection = self._brokers.connection(self._where, deadline)
            for parcel in sent.values():
                parcel.asked += 1
            landed = requests.read_written(connection.ask(requests.PRODUCE, body, deadline))
        except (Disconnected, IndexError):
            self._lost()
            return
        except RefoldError as refused:
            # Credentials or certificates: waiting does not cure it.
            self._give_up(lines, refused)
            return
        self._settle([line for line in lines if line.place in sent], landed)

    def _give_up(self, lines: list[Line], known: RefoldError) -> None:
        self._report([one for line in lines for one in line.given_up(known)])

    def _introduced(self, lines: list[Line], deadline: float) -> bool:
        """Whether we have a producer id. The broker's refusal is told to the records."""
        body = requests.init_producer_id(None, ACKS_MS_MAX, Identity())
        code, who = requests.read_identity(
            self._brokers.ask(self._where, requests.INIT_PRODUCER_ID, body, deadline)
        )
        if not code:
            self._who, self._sequences = who, {}
            return True
        if code in errors.AGAIN:
            self._later(lines)
        else:
            error = KafkaError(code)
            self._report([one for line in lines for one in line.given_up((error, line.place[0]))])
        return False

    def _packed(self, lines: list[Line]) -> dict[Place, Parcel]:
        packed: dict[Place, Parcel] = {}
        size = 0
        # What does not fit is the first of the next request.
        for line in sorted(lines, key=lambda line: line.oldest):
            if size > REQUEST_BYTES_MAX:
                break
            if (parcel := line.pack()) is None:
                continue
            if parcel.batch.data is None and self._who is not None:
                parcel.who, parcel.first = self._who, self._sequences.get(line.place, 0)
                parcel.batch.number(self._who, parcel.first)
                self._sequences[line.place] = (parcel.first + len(parcel.items)) % SEQUENCES
            size += len(_data(parcel))
            packed[line.place] = parcel
        return packed

    def _settle(self, lines: list[Line], landed: dict[Place, tuple[int, int, int]]) -> None:
        reports: list[Report] = []
        moved: list[Line] = []
        for line in lines:
            code, offset, appended_ms = landed.get(line.place, (KafkaError.NETWORK_EXCEPTION, -1, -1))
            parcel = line.parcel
            if parcel is None:
                continue
            if code in NOT_WRITTEN:
                parcel.asked -= 1
            if not code and offset >= 0:
                reports += line.landed(offset, appended_ms)
            elif code in errors.MOVED or code == KafkaError.REQUEST_TIMED_OUT:
                # Timed out: a leader without its replicas may be none any more.
                moved.append(line)
            elif code in errors.LATER:
                self._later([line])
            elif code in RENUMBER:
                if parcel.who == self._who:
                    self._who = None
                line.unpack(alone=False)
                self._later([line])
            else:
                # Without an offset: a broker that only remembers that it has the batch.
                reports += self._refused(line, parcel, code or KafkaError.DUPLICATE_SEQUENCE_NUMBER)
        if reports:
            self._report(reports)
        self._later(moved)
        self._give_back(moved)

    def _refused(self, line: Line, parcel: Parcel, code: int) -> list[Report]:
        if code in NOT_WRITTEN and not parcel.asked and parcel.who == self._who:
            # Its numbers are free again. In all other cases they may be taken, and the broker would take the
            # next batch for a repeat.
            self._sequences[line.place] = parcel.first
        if code in SEPARABLE and len(parcel.items) > 1:
            line.unpack(alone=True)
            return []
        return line.failed((KafkaError(code), line.place[0]))

    def _later(self, lines: list[Line]) -> None:
        for line in lines:
            line.pause_s = min(max(2 * line.pause_s, PAUSE_S_MIN), PAUSE_S_MAX)
            line.not_before = time.monotonic() + line.pause_s

    def _lost(self) -> None:
        """Whether the request was taken is not known; whether the broker lives neither."""
        if self._stopping:
            return
        self._brokers.lost(self._where)
        self._doubt()
        self._later(self._lines)
        self._give_back(list(self._lines))

    def _give_back(self, lines: list[Line]) -> None:
        for line in lines:
            self._lines.remove(line)
            line.courier = None
        if lines:
            self._release(lines)


def _data(parcel: Parcel) -> Any:
    return parcel.batch.data or b""
