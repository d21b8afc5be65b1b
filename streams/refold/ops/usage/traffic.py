"""Usage from several producers that retry, rewind and have wrong clocks; and what it should sum up to.

Producers: *stamped* ones, as the SDK's, and a *plain* one that is known by its event ids alone. All send some
events again at once; twice a stamped producer begins anew a twentieth of the events back, as one does whose
own source was rewound. Times: mostly now; some late by seconds to days, some ahead by minutes, some by years.

What is sent is summed up here, each event once, without a look at what the worker makes of it.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Producer

from refold.core.envelope import Envelope
from refold.core.slots import SlotMap, make_key
from refold.errors import TransientError
from refold.ops.usage.plan import MODELS, UsagePlan
from refold.ops.usage.recount import COUNTS
from refold.wire.codec import encode
from refold.wire.envelope import encode_envelope

TENANT: Final = "verify"
VOICES: Final = 4
#: Of all events: from the plain producer; sent again at once.
PLAIN_SHARE: Final = 0.1
AGAIN_SHARE: Final = 0.03
#: Admissions and releases besides, for each recorded event.
LEASE_SHARE: Final = 0.01
#: Records that producers may be ahead of the workers, and as a share of all events.
AHEAD_MIN: Final = 2_000
AHEAD_SHARE: Final = 0.025
#: A plain producer repeats only what is inside every window of event ids (128 of a session).
PLAIN_DEPTH: Final = 20
#: Where stamped producers rewind, and how far: shares of all events.
REWINDS_AT: Final = (0.45, 0.9)
REWIND_SHARE: Final = 0.05
#: Delivery of the last record.
FLUSH_S_MAX: Final = 120.0

SECOND_MS: Final = 1_000
DAY_MS: Final = 86_400 * SECOND_MS
#: (weight, shortest, longest shift of ``at_ms`` against now): on time; late; ahead by a clock; by a mistake.
SHIFTS: Final = (
    (70, 0, 0),
    (6, -90 * SECOND_MS, -SECOND_MS),
    (5, -5_400 * SECOND_MS, -90 * SECOND_MS),
    (4, -3 * DAY_MS, -20 * 3_600 * SECOND_MS),
    (5, SECOND_MS, 280 * SECOND_MS),
    (5, 320 * SECOND_MS, 2 * DAY_MS),
    (5, 365 * DAY_MS, 3_650 * DAY_MS),
)

Name = tuple[str, str]


@dataclass(slots=True)
class Sums:
    """Of one subject and model, over all partitions: records and the five counts."""

    records: int = 0
    counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0, 0])


@dataclass(slots=True)
class _Voice:
    name: str
    stamped: bool
    counter: int = 0
    #: What it may send again: (session, key, value), the newest last.
    sent: deque[tuple[bytes, bytes]] = field(default_factory=deque)


class UsageTraffic:
    """A thread that sends all of it, as far as it is allowed. ``sums``: what is to be counted."""

    def __init__(self, plan: UsagePlan, topic: str, kafka: Mapping[str, Any]) -> None:
        self._plan = plan
        self._topic = topic
        self._chance = plan.random("traffic")
        self.sums: dict[Name, Sums] = defaultdict(Sums)
        #: Records handed over, repeats included; how many of them were repeats; how many failed.
        self.sent = 0
        self.repeats = 0
        self.failed = 0
        self.events = 0
        self.error: BaseException | None = None
        self._slots = SlotMap(plan.partitions)
        self._keys = [make_key(TENANT, f"u{n:04d}") for n in range(plan.sessions)]
        config = {
            **kafka,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 200_000,
        }
        self._producer = Producer(config)
        self._voices = [_Voice(f"sdk-{n}", stamped=True) for n in range(VOICES)]
        self._plain = _Voice("plain", stamped=False)
        depth = max(1, int(plan.events * REWIND_SHARE / VOICES))
        for voice in self._voices:
            voice.sent = deque(maxlen=depth)
        self._plain.sent = deque(maxlen=PLAIN_DEPTH)
        self._number = 0
        #: Records that it may be in front of the workers.
        self.ahead = max(AHEAD_MIN, int(plan.events * AHEAD_SHARE))
        self._allowed = 0
        self._more = threading.Event()
        self._leases: dict[int, tuple[str, Name]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verify-usage", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def allow(self, records: int) -> None:
        """Go on until so many are sent."""
        self._allowed = records
        self._more.set()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Wait until everything is sent and durable. Raises what the thread died of."""
        self._thread.join()
        if self.error is not None:
            raise self.error

    def abandon(self) -> None:
        """Stop, wait for nothing that is on the way."""
        self._stopping.set()
        self._more.set()
        if self._thread.is_alive():
            self._thread.join()

    def rewind(self) -> int:
        """Every stamped producer sends what it sent last once more, in its order; how many records. Waits
        until they are durable."""
        before = self.sent
        for voice in self._voices:
            for key, value in list(voice.sent):
                self._send(key, value)
                self.repeats += 1
        self._flush()
        return self.sent - before

    def _run(self) -> None:
        try:
            rewinds = deque(int(share * self._plan.events) for share in REWINDS_AT)
            while self.events < self._plan.events and not self._stopping.is_set():
                if self.sent >= self._allowed:
                    self._producer.poll(0)
                    self._more.wait(1.0)
                    self._more.clear()
                    continue
                self._one()
                if rewinds and self.events >= rewinds[0]:
                    rewinds.popleft()
                    self.rewind()
            self._flush()
        except BaseException as error:  # shown by finish(): a thread must not die unseen
            self.error = error

    def _flush(self) -> None:
        left = self._producer.flush(FLUSH_S_MAX)
        if left or self.failed:
            raise TransientError(
                f"{left + self.failed} records of the harness were not acknowledged: run it again"
            )

    # -- one event ----------------------------------------------------------------------------------

    def _one(self) -> None:
        chance = self._chance
        voice = self._plain if chance.random() < PLAIN_SHARE else chance.choice(self._voices)
        session = chance.randrange(self._plan.sessions)
        name = (f"subject-{chance.randrange(self._plan.subjects)}", chance.choice(MODELS))
        given, output = chance.randrange(2_000), chance.randrange(300)
        cached = given // 2 if given % 3 == 0 else 0
        counts = (chance.choice((1, 1, 1, 0, 2)), given, output, cached, output // 4)
        now = time.time_ns() // 1_000_000
        payload: dict[str, Any] = dict(zip(COUNTS, counts, strict=True))
        weights = [weight for weight, _, _ in SHIFTS]
        _, low, high = chance.choices(SHIFTS, weights)[0]
        if high or low:
            payload["at_ms"] = now + chance.randint(low, high)
        self._event(voice, session, "UsageRecorded", name, payload, now)
        sums = self.sums[name]
        sums.records += 1
        for place, count in enumerate(counts):
            sums.counts[place] += count
        self.events += 1
        if chance.random() < AGAIN_SHARE:
            # The newest of all: whoever repeats it repeats what Kafka has after everything before it.
            self._send(*voice.sent[-1])
            self.repeats += 1
        if chance.random() < LEASE_SHARE:
            self._lease(voice, session, name, now)

    def _lease(self, voice: _Voice, session: int, name: Name, now: int) -> None:
        """Admit; or release what was admitted last in the session. A third is never released."""
        held = self._leases.pop(session, None)
        if held is not None and self._chance.random() < 0.7:
            self._event(voice, session, "UsageReleased", held[1], {"lease_id": held[0]}, now)
            return
        lease_id = f"lease-{self._number}"
        self._leases[session] = (lease_id, name)
        lease_ms = self._chance.choice((5 * SECOND_MS, DAY_MS))
        self._event(voice, session, "UsageAdmitted", name, {"lease_id": lease_id, "lease_ms": lease_ms}, now)

    def _event(
        self, voice: _Voice, session: int, kind: str, name: Name, fields: dict[str, Any], now: int
    ) -> None:
        self._number += 1
        envelope = Envelope(
            event_id=f"u{self._plan.seed}-{self._number}",
            tenant=TENANT,
            session=f"u{session:04d}",
            type=kind,
            event_time_ms=now,
            subject=name[0],
            payload=encode(f"refold.event.{kind}", {"model": name[1], **fields}),
        )
        if voice.stamped:
            voice.counter += 1
            envelope.producer_id = f"{voice.name}-{self._plan.seed}"
            envelope.producer_epoch, envelope.producer_counter = 1, voice.counter
        value = encode_envelope(envelope)
        voice.sent.append((self._keys[session], value))
        self._send(self._keys[session], value)

    def _send(self, key: bytes, value: bytes) -> None:
        partition = self._slots.partition(key)
        while True:
            try:
                self._producer.produce(self._topic, value, key, partition, on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.1)
        self.sent += 1
        if self.sent % 1_000 == 0:
            self._producer.poll(0)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failed += 1
