"""What the sessions said before the restart, and how it lies in the changelog.

Sessions come and go in cohorts: each says all it has to say, in turns with the others of its cohort, and then
falls silent. So the newest records of the changelog are those of whoever spoke last, as in any system with
users. A turn is sent when the one before it is folded: then every event is a state record of its own, on a
fast machine as on a slow one. Sent with stamps as of the SDK, by a plain producer, which is quicker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Producer

from refold.core.envelope import Actor, Envelope
from refold.core.slots import SlotMap
from refold.errors import UnavailableError
from refold.ops.storm.plan import StormPlan
from refold.wire.codec import encode
from refold.wire.envelope import encode_envelope

#: Characters of a message: log-normal, half of them below the first, as people and models chat.
MEDIAN_CHARS: Final = 160
SPREAD: Final = 0.8
CHARS_MAX: Final = 8_000
#: Sessions that take turns: one commit of a worker does not hold two turns, nor is a turn a wait for nothing.
COHORT: Final = 3_000
FLUSH_S_MAX: Final = 60.0
TIME_MS: Final = 1_700_000_000_000
WORDS: Final = (
    "account order invoice please could address delivery refund number yesterday confirm the a of to and we"
    " will check whether it has been shipped thank you for waiting transfer balance booking flight change"
)


class Texts:
    """Messages of realistic lengths, from a seeded source."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        words = WORDS.split()
        self._prose = " ".join(chance.choice(words) for _ in range(CHARS_MAX))  # about 5 x CHARS_MAX

    def next(self) -> str:
        length = int(self._chance.lognormvariate(0.0, SPREAD) * MEDIAN_CHARS)
        at = self._chance.randrange(len(self._prose) - CHARS_MAX)
        return self._prose[at : at + max(20, min(length, CHARS_MAX))]


class Filler:
    """``folded`` returns when the workers have folded everything; ``sent`` counts events."""

    def __init__(
        self,
        plan: StormPlan,
        tenant: str,
        inbox: str,
        kafka: Mapping[str, Any],
        folded: Callable[[], Awaitable[None]],
    ) -> None:
        self._plan = plan
        self._tenant = tenant
        self._inbox = inbox
        self._folded = folded
        self._slots = SlotMap(plan.partitions)
        self._texts = Texts(plan.random("texts"))
        self._failed = 0
        self.sent = 0
        self._producer = Producer({**kafka, "enable.idempotence": True, "acks": "all", "linger.ms": 5})

    async def all(self, sessions: Sequence[str]) -> None:
        """Every session's events. Raises UnavailableError when the cluster does not take them."""
        for at in range(0, len(sessions), COHORT):
            for turn in range(self._plan.events):
                await self.turn(sessions[at : at + COHORT], "user" if turn % 2 == 0 else "assistant")

    async def turn(self, sessions: Sequence[str], role: str) -> None:
        """One event for each of them; returns when these are folded."""
        for name in sessions:
            self._send(name, role)
        left = await asyncio.to_thread(self._producer.flush, FLUSH_S_MAX)
        if left or self._failed:
            raise UnavailableError(f"{self._inbox} did not take {left + self._failed} events of the fill")
        await self._folded()

    def _send(self, name: str, role: str) -> None:
        self.sent += 1
        text = {"type": "text", "text": self._texts.next()}
        body = {"message_id": f"m{self.sent}", "role": role, "content": [text]}
        envelope = Envelope(
            event_id=f"fill-{self._plan.seed}-{self.sent}",
            tenant=self._tenant,
            session=name,
            type="MessageAppended",
            event_time_ms=TIME_MS + self.sent,
            actor=Actor(role, "storm"),
            producer_id=f"storm-{self._plan.seed}",
            producer_epoch=1,
            producer_counter=self.sent,
            payload=encode("refold.event.MessageAppended", body),
        )
        key = f"{self._tenant}/{name}".encode()
        value = encode_envelope(envelope)
        while True:
            try:
                self._producer.produce(
                    self._inbox, value, key, self._slots.partition(key), on_delivery=self._delivered
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                break
        self._producer.poll(0)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failed += 1
