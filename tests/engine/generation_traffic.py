"""Generations in the traffic: begun in one call, fed with batches in later ones, finished, failed, stopped,
taken over.

A producer may only write batches of a generation whose begin it has seen on the topic, as the SDK does. What
must be in the rejected topic is not noted here: the pure rule over the topic says it (``check.py``).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from confluent_kafka import Producer

from engine.cluster import Cluster
from refold.core.envelope import Envelope
from refold.core.progress import Ack, Batch, Delta, Marker, TokenUsage, next_chain
from refold.core.slots import SlotMap, make_key
from refold.wire import parts
from refold.wire.batches import decode_item, encode_item
from refold.wire.envelope import encode_envelope
from refold.wire.events import event_payload

TENANT = "acme"
#: Fewer than a session may have open at once (8), so that none is refused for it.
OPEN_MAX = 5


def event(kind: str, session: str, number: int, fields: dict[str, Any]) -> Envelope:
    return Envelope(
        event_id=f"g{number}",
        tenant=TENANT,
        session=session,
        type=kind,
        event_time_ms=1_700_000_000_000 + number,
        payload=event_payload(kind, fields),
    )


def started(session: str, number: int, generation: str, lease_ms: int = 60_000) -> Envelope:
    fields = {
        "generation_id": generation,
        "message_id": f"m-{generation}",
        "reply_to": None,
        "holder": "h1",
        "lease_ms": lease_ms,
        "generator": "test",
        "params": None,
        "config_digest": None,
        "context_seq": 0,
        "durability": "strict",
        "extra": None,
    }
    return event("GenerationStarted", session, number, fields)


def message_payload(message_id: str, text: str) -> bytes:
    return event_payload(
        "MessageAppended",
        {
            "message_id": message_id,
            "parent_id": None,
            "role": "assistant",
            "content": [parts.to_wire(parts.text(text))],
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


@dataclass
class Generated:
    """One generation as its producer sees it."""

    session: str
    generation: str
    attempt: int = 1
    seq: int = 0
    text: bytes = b""
    chain: bytes = b""
    begun: bool = False
    over: bool = False

    @property
    def key(self) -> bytes:
        return make_key(TENANT, self.session)

    def next_batch(self, text: bytes) -> Batch:
        deltas = (Delta("text", 0, text),)
        self.seq += 1
        self.text += text
        self.chain = next_chain(self.chain, deltas)
        return Batch(
            self.generation, self.attempt, self.seq, deltas, usage=TokenUsage(10, self.seq), sent_ms=self.seq
        )

    def finished(self, number: int, *, last_seq: int | None = None, stopped: bool = False) -> Envelope:
        text = self.text.decode()
        fields = {
            "generation_id": self.generation,
            "attempt": self.attempt,
            "last_seq": self.seq if last_seq is None else last_seq,
            "length": len(self.text),
            "sha256": sha256(self.text).hexdigest(),
            "chain": self.chain,
            "finish_reason": "stop",
            "stopped": stopped,
            "message": message_payload(f"m-{self.generation}", text),
            "usage": None,
            "extra": None,
        }
        return event("GenerationFinished", self.session, number, fields)

    def attempted(self, number: int, mode: str) -> Envelope:
        fields = {
            "generation_id": self.generation,
            "attempt": self.attempt + 1,
            "mode": mode,
            "holder": "h1",
            "lease_ms": 60_000,
            "reason": None,
            "extra": None,
        }
        return event("GenerationAttempted", self.session, number, fields)

    def failed(self, number: int) -> Envelope:
        fields = {
            "generation_id": self.generation,
            "attempt": self.attempt,
            "code": "provider_error",
            "error": None,
            "retryable": False,
            "extra": None,
        }
        return event("GenerationFailed", self.session, number, fields)

    def stop(self, number: int) -> Envelope:
        fields = {"generation_id": self.generation, "reason": None, "extra": None}
        return event("GenerationStopped", self.session, number, fields)


@dataclass
class GenerationTraffic:
    """``send(n)``: about ``n`` batches, and generations begun and ended in between."""

    cluster: Cluster
    producer: Producer
    seed: int
    #: Told of every event that must be accepted, in the order of its session.
    accepted: Callable[[Envelope], None]
    #: Told of the place of every inbox record that must be rejected.
    rejected: Callable[[tuple[int, int]], None]
    generations: list[Generated] = field(default_factory=list)
    number: int = 0
    sent: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.slots = SlotMap(self.cluster.partitions)

    def send(self, count: int, sessions: list[str]) -> None:
        self._see_begins()
        for _ in range(max(1, count // 10)):
            self._start(self.random.choice(sessions))
        open_ones = [g for g in self.generations if g.begun and not g.over]
        for _ in range(count if open_ones else 0):
            self._batch(self.random.choice(open_ones))
        # Durable before anything that hangs on them is appended, as the SDK does it.
        self.producer.flush(30)
        for generation in open_ones:
            self._settle(generation)
        self.producer.flush(30)

    def _see_begins(self) -> None:
        begun: dict[str, int] = {}
        for message in self.cluster.read(self.cluster.topics.batches):
            try:
                item = decode_item(message.value())
            except Exception:
                continue
            if isinstance(item, Marker) and item.kind == "begin":
                begun[item.generation] = max(begun.get(item.generation, 0), item.attempt)
        for generation in self.generations:
            generation.begun = begun.get(generation.generation, 0) >= generation.attempt

    def _start(self, session: str) -> None:
        if sum(g.session == session and not g.over for g in self.generations) >= OPEN_MAX:
            return
        generation = Generated(session, f"gen-{len(self.generations)}")
        self.generations.append(generation)
        self._event(started(session, self._next(), generation.generation))

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _event(self, env: Envelope, *, refused: bool = False) -> None:
        key = make_key(TENANT, env.session)

        def noted(error: object, message: Any) -> None:
            assert error is None
            if refused:
                self.rejected((message.partition(), message.offset()))

        if not refused:
            self.accepted(env)
        self.producer.produce(
            self.cluster.topics.inbox, encode_envelope(env), key, self.slots.partition(key), on_delivery=noted
        )

    def _put(self, key: bytes, value: bytes, *, wrong: bool = False) -> None:
        where = self.slots.partition(key)
        if wrong:
            where = (where + 1) % self.cluster.partitions
        self.producer.produce(self.cluster.topics.batches, value, key, where)
        self.sent += 1

    def _batch(self, generation: Generated) -> None:
        chance, key = self.random.random(), generation.key
        if chance < 0.05 and generation.seq:
            # Again, the same bytes or not: never taken twice.
            self._put(key, encode_item(Batch(generation.generation, generation.attempt, generation.seq)))
        elif chance < 0.10:
            self._put(key, encode_item(Batch(generation.generation, generation.attempt, generation.seq + 7)))
        elif chance < 0.14:
            self._put(key, b"\x00\x00\x00\x00\x07xyz")
        elif chance < 0.16:
            self._put(key, encode_item(Batch("nobody", 1, 1)))
        elif chance < 0.26:
            client = f"c{self.random.randrange(3)}"
            ack = Ack(generation.generation, generation.attempt, client, self.random.randrange(20))
            self._put(key, encode_item(ack), wrong=chance < 0.20)
        elif chance < 0.30 and generation.attempt > 1:
            self._put(key, encode_item(Batch(generation.generation, generation.attempt - 1, 1)))
        else:
            # Cut inside a character now and then.
            text = "größer".encode() if generation.seq % 2 else f" token {generation.seq}".encode()
            self._put(key, encode_item(generation.next_batch(text)))

    def _settle(self, generation: Generated) -> None:
        chance = self.random.random()
        if chance < 0.10:
            # Names a batch that never will be, however late this is read.
            env = generation.finished(self._next(), last_seq=generation.seq + 1_000)
            self._event(env, refused=True)
        elif chance < 0.25:
            mode = self.random.choice(["restart", "continue"])
            self._event(generation.attempted(self._next(), mode))
            generation.attempt += 1
            generation.begun = False
            if mode == "restart":
                generation.seq, generation.text, generation.chain = 0, b"", b""
        elif chance < 0.35:
            self._event(generation.failed(self._next()))
            generation.over = True
        elif chance < 0.45:
            self._event(generation.stop(self._next()))
            self._event(generation.finished(self._next(), stopped=True))
            generation.over = True
        elif chance < 0.80:
            self._event(generation.finished(self._next()))
            generation.over = True
