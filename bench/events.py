"""Events as SDK producers send them, encoded ahead of time so that producing is not what is measured."""

from __future__ import annotations

import random
from collections.abc import Iterator

from refold.core.envelope import Envelope
from refold.core.slots import SlotMap, make_key
from refold.wire import codec
from refold.wire.envelope import encode_envelope

#: About 190 characters: the median message of the recorded sets is 60 to 250.
WORDS_PER_MESSAGE = 30
_WORDS = [
    "the",
    "order",
    "refund",
    "please",
    "cancel",
    "my",
    "flight",
    "I",
    "would",
    "like",
    "to",
    "know",
    "status",
    "of",
    "shipment",
    "number",
    "address",
]


def messages(
    count: int, sessions: int, partitions: int, *, seed: int = 7
) -> Iterator[tuple[int, bytes, bytes]]:
    """``(partition, key, value)`` of ``count`` messages spread at random over ``sessions`` sessions."""
    chance = random.Random(seed)
    slots = SlotMap(partitions)
    counters: dict[int, int] = {}
    for number in range(count):
        which = chance.randrange(sessions)
        yield message(slots, "bench", f"s-{which:06d}", number, counters.setdefault(which, 0) + 1, chance)
        counters[which] += 1


def message(
    slots: SlotMap, tenant: str, session: str, number: int, counter: int, chance: random.Random
) -> tuple[int, bytes, bytes]:
    key = make_key(tenant, session)
    body = {
        "message_id": f"m{number}",
        "role": "user" if counter % 2 else "assistant",
        "content": [{"type": "text", "text": " ".join(chance.choices(_WORDS, k=WORDS_PER_MESSAGE))}],
    }
    envelope = Envelope(
        event_id=f"e{number}",
        tenant=tenant,
        session=session,
        type="MessageAppended",
        event_time_ms=1_764_400_000_000 + number,
        producer_id="bench",
        producer_epoch=1,
        producer_counter=counter,
        payload=codec.encode("refold.event.MessageAppended", body),
    )
    return slots.partition(key), key, encode_envelope(envelope)
