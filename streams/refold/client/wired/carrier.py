"""From the event loop to the brokers: a line per partition, a courier per leader, and the thread that finds
who leads.

::

    carry() ── Line ── finder: who leads the partition? ── Courier ── broker
                 ^                                            |
                 └────────────── not any more ────────────────┘

A line belongs to one thread at a time. The event loop only appends to it and wakes whoever has it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError

from refold.client.delivery import Record
from refold.client.wired.courier import ANSWER_S_MAX, Courier
from refold.client.wired.line import Line, Report
from refold.errors import ConfigError, RefoldError
from refold.protocol import requests
from refold.protocol.brokers import Address, Brokers
from refold.protocol.connection import Disconnected
from refold.protocol.requests import Metadata, Place
from refold.protocol.security import Security

#: Between two questions for leaders that nobody answers, or that have no answer yet; doubled each time.
AGAIN_S_MIN: Final = 0.02
AGAIN_S_MAX: Final = 0.5

#: A topic that was just created is not known to every broker at once; librdkafka waits 30 s for it.
TOPIC_UNKNOWN_S_MAX: Final = 5.0

#: Closing waits so long for a thread whose request was cut.
JOIN_S_MAX: Final = 3.0

#: Asked for the versions that it takes, a broker says which these are.
_SPOKEN: Final = (requests.METADATA, requests.INIT_PRODUCER_ID, requests.PRODUCE)


class Carrier:
    """``report``: called on some thread of ours with what became of records, each once. ``doubt``: with the
    error when a broker does not answer, as librdkafka's ``error_cb``."""

    def __init__(
        self,
        bootstrap: str,
        security: Security,
        *,
        client_id: str,
        delivery_timeout_s: float,
        report: Callable[[list[Report]], None],
        doubt: Callable[[KafkaError], None],
    ) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._client_id = client_id
        self._timeout_s = delivery_timeout_s
        self._report = report
        self._doubt = doubt
        self._lines: dict[Place, Line] = {}
        self._homeless: deque[Line] = deque()
        self._couriers: dict[Address, Courier] = {}
        self._brokers = self._new_brokers()
        self._understood = False
        self._stopping = False
        self._wake = threading.Event()
        self._finder = threading.Thread(target=self._find, name="refold-delivery", daemon=True)
        self._finder.start()

    # Event loop

    def carry(self, record: Record) -> None:
        """Never blocks."""
        place = record[0], record[4]
        line = self._lines.get(place)
        new = line is None
        if line is None:
            line = self._lines[place] = Line(place)
        line.waiting.append((record, time.monotonic() + self._timeout_s))
        if new:
            self._release([line])
            return
        courier = line.courier
        wake = self._wake if courier is None else courier.wake
        if not wake.is_set():
            wake.set()

    # Any thread

    def close(self, timeout_s: float) -> None:
        """Blocks until everything is delivered, at most so long. What is not by then is told so."""
        end = time.monotonic() + timeout_s
        while any(line.busy for line in list(self._lines.values())) and time.monotonic() < end:
            time.sleep(0.005)
        self._stopping = True
        self._wake.set()
        self._brokers.interrupt()
        self._finder.join(JOIN_S_MAX)
        couriers = list(self._couriers.values())
        for courier in couriers:
            courier.stop()
        for courier in couriers:
            courier.join(JOIN_S_MAX)
        left = KafkaError(KafkaError._PURGE_QUEUE)
        for line in self._lines.values():
            self._report(line.given_up((left, line.place[0])))

    def _release(self, lines: list[Line]) -> None:
        self._homeless.extend(lines)
        self._wake.set()

    # The finder

    def _find(self) -> None:
        wanted: list[Line] = []
        pause_s, ask_at = AGAIN_S_MIN, 0.0
        while not self._stopping:
            self._wake.clear()
            while self._homeless:
                wanted.append(self._homeless.popleft())
            now = time.monotonic()
            if late := [one for line in wanted for one in line.late(now)]:
                self._report(late)
            busy = [line for line in wanted if line.busy]
            if not busy:
                self._wake.wait()
                continue
            if now < ask_at:
                self._wake.wait(min(ask_at, *(line.deadline for line in busy)) - now)
                continue
            wanted = self._settled(wanted, busy, now)
            if wanted:
                ask_at, pause_s = time.monotonic() + pause_s, min(2 * pause_s, AGAIN_S_MAX)
            else:
                ask_at, pause_s = 0.0, AGAIN_S_MIN
        self._brokers.close()

    def _settled(self, wanted: list[Line], busy: list[Line], now: float) -> list[Line]:
        """Ask once; the lines that are still without a leader."""
        deadline = min(now + ANSWER_S_MAX, *(line.deadline for line in busy))
        try:
            self._understand(deadline)
            found = self._brokers.learn(sorted({line.place[0] for line in wanted}), deadline)
        except (Disconnected, IndexError):
            if not self._stopping:
                self._doubt(KafkaError(KafkaError._TRANSPORT))
            return wanted
        except RefoldError as refused:
            self._report([one for line in busy for one in line.given_up(refused)])
            return wanted
        return [line for line in wanted if not self._placed(line, found)]

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
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
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
