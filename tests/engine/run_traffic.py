"""Runs beside the messages: started, left alone, finished, and leased by somebody who falls silent, so that
work is announced and withdrawn and deadlines come while workers die.

Sessions of their own, one of each kind per call: everything sent here is accepted, whatever happens in
between; what the worker proposes itself comes on top.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from engine.cluster import Cluster
from refold.core.envelope import Envelope
from refold.core.slots import SlotMap, make_key
from refold.wire.codec import encode
from refold.wire.envelope import encode_envelope

TENANT = "acme"

#: Of those who fall silent: over before the commit that takes it, or soon after.
LEASE_MS = 100

#: Of those who go on.
LEASE_LONG_MS = 3_600_000


@dataclass
class RunTraffic:
    cluster: Cluster
    producer: Producer
    #: Told of every event that must be accepted, in the order of its session.
    accepted: Callable[[Envelope], None]
    number: int = 0
    rounds: int = 0

    def __post_init__(self) -> None:
        self.slots = SlotMap(self.cluster.partitions)

    def send(self) -> None:
        """A run that nobody takes, one that is finished, one that times out, and one whose session goes."""
        self.rounds += 1
        for kind in ("waits", "ends", "silent", "gone"):
            session = f"{kind}-{self.rounds}"
            self._event(session, "RunStarted", agent="a")
            if kind == "waits":
                continue
            lease_ms = LEASE_LONG_MS if kind == "ends" else LEASE_MS
            held = {"holder": "h", "epoch": 1}
            self._event(session, "RunLeased", **held, lease_ms=lease_ms, version="1")
            if kind == "ends":
                step = {**held, "step_id": "s", "attempt": 1}
                self._event(session, "StepStarted", **step, name="look")
                self._event(session, "StepCompleted", **step, output=b"seen")
                self._event(session, "RunCompleted", **held, output=b"done")
            elif kind == "gone":
                self._event(session, "SessionDeleted", run=False)
        self.producer.flush(30)

    def _event(self, session: str, kind: str, *, run: bool = True, **fields: Any) -> None:
        self.number += 1
        payload = {"run_id": "r", **fields} if run else fields
        env = Envelope(
            event_id=f"run-{self.number}",
            tenant=TENANT,
            session=session,
            type=kind,
            event_time_ms=1_700_000_000_000 + self.number,
            payload=encode(f"refold.event.{kind}", payload),
        )
        key = make_key(TENANT, session)
        self.accepted(env)
        self.producer.produce(self.cluster.topics.inbox, encode_envelope(env), key, self.slots.partition(key))
