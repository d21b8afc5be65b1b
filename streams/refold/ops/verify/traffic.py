"""The traffic: many sessions, several kinds of producers, every awkward record a user's cluster sees.

Producers: *stamped* ones (producer id, epoch, counter: what the SDK sends), *plain* ones with Java's
partitioner, with librdkafka's default (CRC32: three of four records land on the wrong partition) and with
a random one. All are idempotent, so what each sent is in the log once and in its order; everything else is
on purpose.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Producer

from refold.core.envelope import Actor, Envelope
from refold.ops.verify.parts import SHARE, encode_sample, sampler
from refold.ops.verify.plan import ChaosPlan
from refold.wire.codec import encode
from refold.wire.envelope import decode_envelope, encode_envelope

#: Tenant of all sessions of a run.
TENANT: Final = "verify"
#: Records go out in slices of this length.
SLICE_S: Final = 0.02
#: A plain producer repeats only what it sent this recently to the same session (inside every dedup window).
REPEAT_DEPTH: Final = 12
#: Delivery of the last record; longer than the producers' own delivery time-out.
FLUSH_S_MAX: Final = 60.0

#: kind of record -> weight. What the oracle makes of each is its own business.
MIX: Final[tuple[tuple[str, int], ...]] = (
    ("message", 46),
    ("fact", 10),
    ("tool", 14),
    ("repeat", 12),
    ("expected_seq", 5),
    ("other_content", 3),
    ("unknown_type", 2),
    ("undecodable", 4),
    ("key_mismatch", 2),
    ("bad_key", 2),
)


@dataclass(slots=True)
class Sent:
    """What a producer sent and may send again."""

    key: bytes
    value: bytes


@dataclass(slots=True)
class Voice:
    """One producer. ``stamped`` producers count per session and always use the session's own partition."""

    name: str
    producer: Producer
    stamped: bool
    scatter: bool = False
    counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    history: dict[str, deque[Sent]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=REPEAT_DEPTH))
    )
    tools: dict[str, tuple[str, int]] = field(default_factory=dict)


class Traffic:
    """A thread that sends at ``plan.rate`` until told to stop. ``sent`` and ``failed`` count records."""

    def __init__(self, plan: ChaosPlan, topic: str, kafka: Mapping[str, Any]) -> None:
        self._plan = plan
        self._topic = topic
        self._chance = plan.random("traffic")
        self.sent = 0
        self.failed = 0
        self._number = 0
        self._turn: dict[str, str] = {}
        self._voices = self._make_voices(dict(kafka))
        # A source of its own: without reducers a seed gives what it always gave.
        self._own = plan.random("reducers")
        self._sample = None if plan.reducers is None else sampler(plan.reducers_then or plan.reducers)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verify-traffic", daemon=True)
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop sending and wait until everything sent is durable. Blocks up to a minute."""
        self._stopping.set()
        self._thread.join()
        for voice in self._voices:
            self.failed += voice.producer.flush(FLUSH_S_MAX)
        if self.error is not None:
            raise self.error

    def abandon(self) -> None:
        """Stop sending, wait for nothing; nothing to do after :meth:`stop`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _make_voices(self, kafka: dict[str, Any]) -> list[Voice]:
        base = {**kafka, "enable.idempotence": True, "acks": "all", "linger.ms": 5}
        java = {**base, "partitioner": "murmur2_random"}
        voices = [Voice(f"sdk-{n}", Producer(java), stamped=True) for n in range(4)]
        voices.append(Voice("java", Producer(java), stamped=False))
        voices.append(Voice("crc32", Producer({**base, "partitioner": "consistent_random"}), stamped=False))
        voices.append(Voice("scatter", Producer(base), stamped=False, scatter=True))
        return voices

    def _run(self) -> None:
        try:
            start = time.monotonic()
            while not self._stopping.wait(SLICE_S):
                due = int((time.monotonic() - start) * self._plan.rate) - self.sent
                for _ in range(max(due, 0)):
                    self._one()
                for voice in self._voices:
                    voice.producer.poll(0)
        except BaseException as err:  # shown by stop(): a thread must not die unseen
            self.error = err

    # -- one record ---------------------------------------------------------------------------------

    def _one(self) -> None:
        chance = self._chance
        # Three of four records come from stamped producers, as with the SDK; the rest from plain ones.
        voice = chance.choice(self._voices[:4] if chance.random() < 0.75 else self._voices[4:])
        session = f"s{chance.randrange(self._plan.sessions):04d}"
        if self._sample is not None and self._own.random() < SHARE:
            self._number += 1
            self._send_own(voice, session, encode_sample(self._sample(self._own)))
            return
        kind = chance.choices([name for name, _ in MIX], [weight for _, weight in MIX])[0]
        key = f"{TENANT}/{session}".encode()
        self._number += 1
        match kind:
            case "repeat" if voice.history[session]:
                again = chance.choice(voice.history[session])
                self._send(voice, again.key, again.value)
            case "undecodable":
                self._send(voice, key, _garbage(chance, self._number))
            case "bad_key":
                value = encode_envelope(self._envelope(voice, session, "message", stamped=False))
                self._send(voice, chance.choice((None, b"", b"no-slash", b"\xff/\xfe")), value)
            case "key_mismatch":
                value = encode_envelope(self._envelope(voice, "elsewhere", "message", stamped=False))
                self._send(voice, key, value)
            case "other_content" if not voice.stamped and voice.history[session]:
                self._send_other_content(voice, session, key)
            case _:
                usable = kind if kind in {"fact", "tool", "expected_seq", "unknown_type"} else "message"
                if usable == "tool" and not voice.stamped:
                    usable = "message"  # steps of one call must stay in order, which wrong partitions undo
                value = encode_envelope(self._envelope(voice, session, usable))
                if usable != "expected_seq":
                    voice.history[session].append(Sent(key, value))
                self._send(voice, key, value)

    def _send(self, voice: Voice, key: bytes | None, value: bytes) -> None:
        options = {"partition": self._chance.randrange(self._plan.partitions)} if voice.scatter else {}
        while True:
            try:
                voice.producer.produce(self._topic, value, key, on_delivery=self._delivered, **options)
            except BufferError:
                voice.producer.poll(0.1)
            else:
                break
        self.sent += 1

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failed += 1

    def _send_own(self, voice: Voice, session: str, made: tuple[str, bytes]) -> None:
        key = f"{TENANT}/{session}".encode()
        value = encode_envelope(self._envelope(voice, session, "own", made=made))
        voice.history[session].append(Sent(key, value))
        self._send(voice, key, value)

    def _envelope(
        self,
        voice: Voice,
        session: str,
        kind: str,
        *,
        stamped: bool = True,
        made: tuple[str, bytes] | None = None,
    ) -> Envelope:
        type_, payload = made or self._payload(voice, session, kind)
        envelope = Envelope(
            event_id=f"e{self._plan.seed}-{self._number}",
            tenant=TENANT,
            session=session,
            type=type_,
            event_time_ms=1_700_000_000_000 + self._number,
            actor=Actor("user", "verify"),
            # Never right: no session of a run gets this far. The fold must refuse it and change nothing.
            expected_seq=1_000_000 + self._number if kind == "expected_seq" else None,
            payload=payload,
        )
        if voice.stamped and stamped:
            voice.counters[session] += 1
            return envelope.replace(
                producer_id=f"{voice.name}-{self._plan.seed}",
                producer_epoch=1,
                producer_counter=voice.counters[session],
            )
        return envelope

    def _payload(self, voice: Voice, session: str, kind: str) -> tuple[str, bytes]:
        match kind:
            case "fact":
                name = f"fact-{self._chance.randrange(5)}"
                return "FactSet", encode("refold.event.FactSet", {"name": name, "value": str(self._number)})
            case "tool":
                return self._tool_step(voice, session)
            case "unknown_type":
                return "VerifyUnknown", b"\x00opaque to everyone"
            case _:
                role = "assistant" if self._turn.get(session) == "user" else "user"
                self._turn[session] = role
                return "MessageAppended", _message(
                    f"m{self._plan.seed}-{self._number}", role, f"text {self._number}"
                )

    def _tool_step(self, voice: Voice, session: str) -> tuple[str, bytes]:
        """The next step of this voice's call in the session: intended, started, completed, then a new
        call.
        """
        operation, step = voice.tools.get(session, ("", 3))
        if step >= 3:
            operation, step = f"op-{voice.name}-{self._number}", 0
        voice.tools[session] = (operation, step + 1)
        if step == 0:
            row: dict[str, Any] = {"operation_id": operation, "tool": "lookup", "arguments": '{"q": 1}'}
            return "ToolCallIntended", encode("refold.event.ToolCallIntended", row)
        if step == 1:
            row = {"operation_id": operation, "holder": voice.name, "lease_ms": 60_000}
            return "ToolCallStarted", encode("refold.event.ToolCallStarted", row)
        row = {"operation_id": operation, "summary": f"result {self._number}"}
        return "ToolCallCompleted", encode("refold.event.ToolCallCompleted", row)

    def _send_other_content(self, voice: Voice, session: str, key: bytes) -> None:
        """The same event id again with other content: a conflict, never applied."""
        earlier = decode_envelope(voice.history[session][-1].value)
        other = _message(f"x{self._plan.seed}-{self._number}", "user", f"other content {self._number}")
        changed = earlier.replace(type="MessageAppended", payload=other)
        self._send(voice, key, encode_envelope(changed))


def _message(message_id: str, role: str, text: str) -> bytes:
    return encode(
        "refold.event.MessageAppended",
        {"message_id": message_id, "role": role, "content": [{"type": "text", "text": text}]},
    )


def _garbage(chance: random.Random, number: int) -> bytes:
    """Values no registry can decode; unique, so that each can be found again on the rejected topic."""
    tail = b"%d" % number
    return chance.choice((
        b"\x07wrong magic " + tail,
        b"\x00\x7f\xff\xff\xfeunknown schema id " + tail,
        b"\x00" + tail[:3],
        b"",
        chance.randbytes(40),
    ))  # fmt: skip
