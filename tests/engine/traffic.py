"""Deterministic traffic: new events, duplicates, records on the wrong partition, records that cannot be
taken, generations with their batches, and runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from confluent_kafka import Producer

from engine.cluster import Cluster
from engine.generation_traffic import GenerationTraffic
from engine.run_traffic import RunTraffic
from refold.core.envelope import Envelope
from refold.core.slots import SlotMap, make_key
from refold.wire import parts
from refold.wire.envelope import encode_envelope
from refold.wire.events import event_payload

TENANT = "acme"
SESSIONS = 40


@dataclass
class Sent:
    """What was produced and what must come of it."""

    #: Event ids that must be in the journal exactly once.
    accepted: set[str] = field(default_factory=set)
    #: Event ids per session in the order of sending, for sessions that were never misrouted.
    order: dict[str, list[str]] = field(default_factory=dict)
    #: (partition, offset) of records that must be in the rejected topic exactly once.
    rejected: set[tuple[int, int]] = field(default_factory=set)
    misrouted: int = 0
    duplicates: int = 0


def message_event(number: int, session: str, *, text: str = "hello", **changes: object) -> Envelope:
    payload = event_payload(
        "MessageAppended",
        {
            "message_id": f"m{number}",
            "parent_id": None,
            "role": "user" if number % 2 else "assistant",
            "content": [parts.to_wire(parts.text(f"{text} {number}"))],
            "name": None,
            "replaces": None,
            "group_id": None,
            "model": None,
            "provider": None,
            "finish_reason": None,
            "usage": None,
            "extra_format": None,
            "extra": None,
        },
    )
    values: dict[str, object] = {
        "event_id": f"e{number}",
        "tenant": TENANT,
        "session": session,
        "type": "MessageAppended",
        "event_time_ms": 1_700_000_000_000 + number,
        "payload": payload,
    }
    return Envelope(**{**values, **changes})  # type: ignore[arg-type]


class Traffic:
    """``send(n)`` may be called several times; numbering goes on."""

    def __init__(self, cluster: Cluster, seed: int = 1) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._slots = SlotMap(cluster.partitions)
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "linger.ms": 2, "enable.idempotence": True}
        )
        self._number = 0
        self._recent: list[tuple[bytes, bytes, int]] = []
        self.sent = Sent()
        self.generations = GenerationTraffic(
            cluster, self._producer, seed, self._accepted, self.sent.rejected.add
        )
        self.runs = RunTraffic(cluster, self._producer, self._accepted)

    def _accepted(self, env: Envelope) -> None:
        self.sent.accepted.add(env.event_id)
        self.sent.order.setdefault(env.session, []).append(env.event_id)

    def send(self, count: int, *, odd: bool = True, runs: bool = False) -> None:
        """``count`` new events; with ``odd``, about a tenth again that are duplicates, misrouted or bad, and
        with ``runs`` some whose deadlines come soon: topics then change also when nothing is sent."""
        inbox = self._cluster.topics.inbox
        for _ in range(count):
            self._number += 1
            chance = self._random.random() if odd else 1.0
            # The first ten sessions are fed on wrong partitions too: no order is promised for them.
            misrouted = chance < 0.03
            session = f"s{self._random.randrange(10 if misrouted else SESSIONS)}"
            if not misrouted and self._random.random() < 0.75:
                session = f"s{10 + self._random.randrange(SESSIONS - 10)}"
            env = message_event(self._number, session)
            key, value = make_key(TENANT, session), encode_envelope(env)
            right = self._slots.partition(key)
            where = (right + 1) % self._cluster.partitions if misrouted else right
            self.sent.misrouted += misrouted
            self._producer.produce(inbox, value, key, where)
            self.sent.accepted.add(env.event_id)
            if int(session[1:]) >= 10:
                self.sent.order.setdefault(session, []).append(env.event_id)
            self._recent.append((key, value, right))
            del self._recent[:-20]
            if 0.03 <= chance < 0.08:
                self._producer.produce(inbox, *self._again())
            elif 0.08 <= chance < 0.11:
                self._bad(key, right)
        self._producer.flush(30)
        if odd:
            # Of sessions whose order is promised: a Finished must not overtake its Started.
            self.generations.send(count // 2, [f"s{number}" for number in range(10, SESSIONS)])
            if runs:
                self.runs.send()

    def _again(self) -> tuple[bytes, bytes, int]:
        key, value, right = self._random.choice(self._recent)
        self.sent.duplicates += 1
        return value, key, right

    def _bad(self, key: bytes, where: int) -> None:
        def noted(error: object, message: object) -> None:
            assert error is None
            self.sent.rejected.add((message.partition(), message.offset()))  # type: ignore[attr-defined]

        value, bad_key = self._random.choice(
            [(b"", key), (b"abc", key), (b"\x00\x00\x00\x00\x07xyz", key), (b"\x00", None)]
        )
        self._producer.produce(self._cluster.topics.inbox, value, bad_key, where, on_delivery=noted)
