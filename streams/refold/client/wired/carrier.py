"""From the event loop to the brokers: a line per partition, a courier per leader, and the thread that finds
who leads.

::

    carry() ── Line ── finder: who leads the partition? ── Courier ── broker
                 ^                                            |
                 └────────────── not any more ────────────────┘

A line belongs to one thread at a time. The event loop only appends to it and wakes whoever has it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError

from refold.client.delivery import Record, outcome_unknown
from refold.client.wired.courier import ANSWER_S_MAX, PAUSE_S_MIN, Courier
from refold.client.wired.line import Line, Report
from refold.errors import ConfigError, RefoldError
from refold.protocol import errors, requests
from refold.protocol.brokers import CONNECT_SECONDS_MAX, Address, Brokers
from refold.protocol.connection import Disconnected
from refold.protocol.requests import Metadata, Place
from refold.protocol.security import Security

log = logging.getLogger("refold.client")

#: Between two questions for leaders that nobody answers, or that have no answer yet; doubled each time.
AGAIN_S_MIN: Final = 0.02
AGAIN_S_MAX: Final = 0.5

#: A topic that was just created is not known to every broker at once; librdkafka waits 30 s for it.
TOPIC_UNKNOWN_S_MAX: Final = 5.0

#: A broker that hangs is asked for leaders so long, and the next one then; doubled each time, up to
#: ``ANSWER_S_MAX``.
ASK_S_MIN: Final = 1.0

#: Closing waits so long for all threads: a connection that is being made cannot be cut.
JOIN_S_MAX: Final = CONNECT_SECONDS_MAX + 0.5

#: Asked for the versions that it takes, a broker says which these are.
_SPOKEN: Final = (requests.METADATA, requests.INIT_PRODUCER_ID, requests.PRODUCE)


class Carrier:
    """``report``: called on some thread of ours with what became of records. Nothing is said of those whose
    time is over, or that are under way when it is closed: see :mod:`.promises`. ``doubt``: called with the
    error when a broker does not answer, as librdkafka's ``error_cb``."""

    def __init__(
        self,
        bootstrap: str,
        security: Security,
        *,
        client_id: str,
        report: Callable[[list[Report]], None],
        doubt: Callable[[KafkaError], None],
    ) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._client_id = client_id
        self._report = report
        self._doubt = doubt
        self._lines: dict[Place, Line] = {}
        self._homeless: deque[Line] = deque()
        self._wanted: list[Line] = []
        self._ask_at, self._pause_s, self._ask_s = 0.0, AGAIN_S_MIN, ASK_S_MIN
        self._couriers: dict[Address, Courier] = {}
        self._brokers = self._new_brokers()
        self._understood = False
        self._stopping = False
        self._wake = threading.Event()
        self._finder = threading.Thread(target=self._find, name="refold-delivery", daemon=True)
        self._finder.start()

    # Event loop

    def carry(self, record: Record, deadline: float) -> None:
        """Never blocks. ``deadline``: it is not sent after this, monotonic seconds."""
        place = record[0], record[4]
        line = self._lines.get(place)
        new = line is None
        if line is None:
            line = self._lines[place] = Line(place)
        line.waiting.append((record, deadline))
        if new:
            self._release([line])
            return
        courier = line.courier
        wake = self._wake if courier is None else courier.wake
        if not wake.is_set():
            wake.set()

    # Any thread

    def close(self, timeout_s: float) -> None:
        """Blocks until everything is delivered, at most so long."""
        end = time.monotonic() + timeout_s
        while any(line.busy for line in list(self._lines.values())) and time.monotonic() < end:
            time.sleep(0.005)
        self.stop()
        end = time.monotonic() + JOIN_S_MAX
        self._finder.join(JOIN_S_MAX)
        self.stop()  # It may have made one more courier.
        for courier in list(self._couriers.values()):
            courier.join(max(0.0, end - time.monotonic()))

    def stop(self) -> None:
        """Returns at once; requests under way are cut."""
        self._stopping = True
        self._wake.set()
        self._brokers.interrupt()
        for courier in list(self._couriers.values()):
            courier.stop()

    def _release(self, lines: list[Line]) -> None:
        self._homeless.extend(lines)
        self._wake.set()

    # The finder

    def _find(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                self._turn()
            except Exception as error:
                # Nothing of ours raises these. The next record finds the thread alive.
                log.exception("refold's producer failed")
                self._give_up(outcome_unknown(repr(error)))
        self._brokers.close()

    def _turn(self) -> None:
        while self._homeless:
            # A line that just came does not wait for those that nobody leads.
            self._ask_at = 0.0
            line = self._homeless.popleft()
            if line.pause_s > PAUSE_S_MIN:
                # Sent there before, in vain.
                self._brokers.elsewhere()
            self._wanted.append(line)
        now = time.monotonic()
        for line in self._wanted:
            line.drop(now)
        if not any(line.busy for line in self._wanted):
            self._wake.wait()
        elif now < self._ask_at:
            self._wake.wait(self._ask_at - now)
        else:
            self._wanted = self._settled(now)
            self._ask_at = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, AGAIN_S_MAX) if self._wanted else AGAIN_S_MIN

    def _settled(self, now: float) -> list[Line]:
        """Ask once; the lines that are still without a leader."""
        wanted, deadline = self._wanted, now + self._ask_s
        try:
            self._understand(deadline)
            found = self._brokers.learn(sorted({line.place[0] for line in wanted}), deadline)
        except (Disconnected, IndexError):
            self._ask_s = min(2 * self._ask_s, ANSWER_S_MAX)
            if not self._stopping:
                self._doubt(KafkaError(KafkaError._TRANSPORT))
            return wanted
        except RefoldError as refused:
            self._give_up(refused)
            return wanted
        self._ask_s = ASK_S_MIN
        return [line for line in wanted if not self._placed(line, found)]

    def _give_up(self, known: RefoldError) -> None:
        self._report([one for line in self._wanted for one in line.given_up(known)])

    def _understand(self, deadline: float) -> None:
        if self._understood:
            return
        offered = self._brokers.any(deadline).offered(deadline).versions
        for api in _SPOKEN:
            low, high = offered.get(api.key, (0, -1))
            if not low <= api.version <= high:
                raise ConfigError(
                    f"the broker takes versions {low} to {high} of Kafka's request {api.key}, and this client"
                    f" sends {api.version}; not written. With `client.producer` librdkafka"
                    " (REFOLD_CLIENT__PRODUCER=librdkafka) its producer is used instead"
                )
        self._understood = True

    def _placed(self, line: Line, found: Metadata) -> bool:
        """Whether the line has a courier now. Without a leader it waits; without a topic it is told."""
        topic = line.place[0]
        leader = found.leaders.get(line.place)
        if leader is not None and leader in found.nodes:
            line.unknown_since = 0.0
            self._courier(found.nodes[leader]).adopt(line)
            return True
        code = found.errors.get(topic, 0)
        if code and code not in errors.AGAIN:
            self._tell(line, KafkaError(code))
        elif leader is None and code in (0, KafkaError.UNKNOWN_TOPIC_OR_PART):
            now = time.monotonic()
            line.unknown_since = line.unknown_since or now
            if now - line.unknown_since >= TOPIC_UNKNOWN_S_MAX:
                self._tell(line, KafkaError(KafkaError._UNKNOWN_TOPIC))
        return False

    def _tell(self, line: Line, error: KafkaError) -> None:
        self._report(line.given_up((error, line.place[0])))

    def _courier(self, where: Address) -> Courier:
        courier = self._couriers.get(where)
        if courier is None:
            courier = self._couriers[where] = Courier(
                where,
                self._new_brokers(),
                report=self._report,
                release=self._release,
                doubt=lambda: self._doubt(KafkaError(KafkaError._TRANSPORT)),
            )
        return courier

    def _new_brokers(self) -> Brokers:
        return Brokers(self._bootstrap, self._security, self._client_id)
