"""What producers send: few sessions, so that everything collides; all the kinds of input the contract names.

Retries repeat the original bytes (a rebuilt event would get a new id and defeat the de-duplication).
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from refold.core.envelope import Actor, Envelope
from refold.core.slots import SlotMap
from refold.wire.codec import encode
from refold.wire.envelope import decode_envelope, encode_envelope

TENANT: Final = "acme"

#: Kind -> weight. Kinds are append-only: an insertion would move every recorded seed.
MIX: Final[dict[str, int]] = {
    "message": 38,
    "tool": 22,
    "fact": 8,
    "repeat": 10,
    "conflict": 3,
    "expected_seq": 3,
    "unknown_type": 2,
    "undecodable": 3,
    "bad_key": 2,
    "key_mismatch": 1,
    "null": 1,
    "close": 2,
    "reopen": 2,
    "quarantine": 1,
    "release": 2,
    "big": 2,
    "newer_type": 2,
    "newer_schema": 1,
}

#: Share of records put on a partition that is not their session's.
MISROUTED: Final = 0.08
#: Share of events stamped with producer id, epoch and counter, as the SDK does.
STAMPED: Final = 0.6
HISTORY: Final = 24


class Sent(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None


@dataclass(slots=True)
class _Session:
    messages: int = 0
    role: str = "user"
    calls: list[tuple[str, int]] = field(default_factory=list)
    sent: deque[Sent] = field(default_factory=lambda: deque(maxlen=HISTORY))
    counters: dict[str, int] = field(default_factory=dict)


class Workload:
    def __init__(
        self, chance: random.Random, partitions: int, sessions: int, *, misrouted: float = MISROUTED
    ) -> None:
        self._chance = chance
        self._misrouted = misrouted
        self._slots = SlotMap(partitions)
        self._partitions = partitions
        self._sessions = {f"s{number}": _Session() for number in range(sessions)}
        self._names = list(self._sessions)
        self._number = 0
        self.kinds: dict[str, int] = {}

    def next(self) -> Sent:
        chance = self._chance
        name = self._names[chance.randrange(len(self._names))]
        session = self._sessions[name]
        kind = chance.choices(list(MIX), list(MIX.values()))[0]
        self._number += 1
        key: bytes | None = f"{TENANT}/{name}".encode()
        value: bytes | None
        headers: list[tuple[str, bytes]] | None = None
        remember = True
        match kind:
            case "repeat" if session.sent:
                self._count("repeat")
                # Verbatim and on the same partition, as an idempotence-less producer retries; now and then on
                # another.
                return self._scatter(session.sent[chance.randrange(len(session.sent))])
            case "conflict" if session.sent:
                earlier = session.sent[-1]
                value = self._other_content(earlier.value)
                remember = False
            case "undecodable":
                value, remember = self._garbage(), False
            case "bad_key":
                key = chance.choice((None, b"", b"no-slash", b"/x", b"\xff/\xfe"))
                value, remember = self._event(session, name, "message"), False
            case "key_mismatch":
                value, remember = self._event(_Session(), "elsewhere", "message"), False
            case "null":
                value = None
            case _:
                value = self._event(session, name, kind)
        self._count(kind)
        if chance.random() < 0.3:
            headers = [("traceparent", b"00-%032x-%016x-01" % (self._number, self._number))]
        partition = self._slots.partition(key) if key else chance.randrange(self._partitions)
        record = Sent(partition, key, value, headers)
        if remember:
            session.sent.append(record)
        return self._scatter(record)

    def _count(self, kind: str) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def _scatter(self, record: Sent) -> Sent:
        if self._chance.random() >= self._misrouted:
            return record
        partition = self._chance.randrange(self._partitions)
        if partition != record.partition:
            self._count("misrouted")
        return record._replace(partition=partition)

    def _garbage(self) -> bytes:
        chance = self._chance
        tail = b"%d" % self._number
        return chance.choice(
            (b"", b"\x00", b"\x07magic" + tail, b"\x00\x7f\xff\xff\xfe" + tail, chance.randbytes(24))
        )

    def _other_content(self, value: bytes | None) -> bytes:
        try:
            earlier = decode_envelope(value)
        except Exception:
            return self._garbage()
        return encode_envelope(earlier.replace(type="FactSet", payload=self._fact(f"other {self._number}")))

    def _fact(self, value: str) -> bytes:
        name = f"f{self._chance.randrange(4)}"
        return encode("refold.event.FactSet", {"name": name, "value": f'"{value}"'})

    def _event(self, session: _Session, name: str, kind: str) -> bytes:
        chance = self._chance
        type_, payload = self._payload(session, name, kind)
        stamp: dict[str, Any] = {}
        if chance.random() < STAMPED:
            producer = f"p{chance.randrange(3)}"
            counter = session.counters.get(producer, 0) + 1
            session.counters[producer] = counter
            stamp = {"producer_id": producer, "producer_epoch": 1, "producer_counter": counter}
        env = Envelope(
            event_id=f"e{self._number}",
            tenant=TENANT,
            session=name,
            type=type_,
            event_time_ms=chance.choice((0, 1_700_000_000_000 + self._number, 4_102_444_800_000)),
            actor=Actor("user", "sim"),
            expected_seq=chance.choice((0, session.messages, 10_000)) if kind == "expected_seq" else None,
            payload=payload,
            **stamp,
        )
        if kind == "newer_type":
            # A known type in a version of the next release: kept, and not understood.
            env = env.replace(type_version=2)
        return encode_envelope(env)

    def _payload(self, session: _Session, name: str, kind: str) -> tuple[str, bytes]:
        match kind:
            case "tool":
                return self._tool(session, name)
            case "fact":
                return "FactSet", self._fact(str(self._number))
            case "unknown_type":
                return "SimUnknown", b"\x00opaque"
            case "newer_type":
                return "MessageAppended", b"\x00opaque"
            case "newer_schema":
                # Written by the next release with a schema this one does not know: refused, never guessed at.
                return "FactSet", b"\x00\x7f\xff\xff\xfd" + self._fact("newer")[5:]
            case "close":
                return "SessionClosed", encode("refold.event.SessionClosed", {})
            case "reopen":
                return "SessionReopened", encode("refold.event.SessionReopened", {})
            case "quarantine":
                return "SessionQuarantined", encode(
                    "refold.event.SessionQuarantined",
                    {"code": "operator", "reason": "asked for", "partition": -1, "offset": -1},
                )
            case "release":
                if self._chance.random() < 0.5:
                    return "SessionReleased", encode("refold.event.SessionReleased", {})
                return "SessionReleaseFinished", encode("refold.event.SessionReleaseFinished", {})
            case _:
                return self._message(session, "x" * 3_000 if kind == "big" else f"text {self._number}")

    def _message(self, session: _Session, text: str) -> tuple[str, bytes]:
        session.messages += 1
        session.role = "assistant" if session.role == "user" else "user"
        record = {
            "message_id": f"m{self._number}",
            "role": session.role,
            "content": [{"type": "text", "text": text}],
        }
        return "MessageAppended", encode("refold.event.MessageAppended", record)

    def _tool(self, session: _Session, name: str) -> tuple[str, bytes]:
        chance = self._chance
        if not session.calls or chance.random() < 0.3:
            operation = f"op-{name}-{self._number}"
            session.calls.append((operation, 0))
            del session.calls[:-6]
            row: dict[str, Any] = {"operation_id": operation, "tool": "look", "arguments": '{"q":1}'}
            return "ToolCallIntended", encode("refold.event.ToolCallIntended", row)
        at = chance.randrange(len(session.calls))
        operation, step = session.calls[at]
        session.calls[at] = (operation, step + 1)
        if step == 0 and chance.random() < 0.8:
            row = {"operation_id": operation, "holder": "sim", "lease_ms": 60_000}
            return "ToolCallStarted", encode("refold.event.ToolCallStarted", row)
        row = {"operation_id": operation, "summary": f"result {self._number}"}
        kind = "ToolCallFailed" if chance.random() < 0.2 else "ToolCallCompleted"
        return kind, encode(f"refold.event.{kind}", row)
