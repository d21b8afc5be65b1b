"""Building events and journals for tests: an inbox in memory that rules, folds and keeps what was accepted.

Every event goes through the bytes (encode, decode) as on the real path, so the tests cover wire and core.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

from refold.core import Accepted, Duplicate, Envelope, Rejected, Session, decide, evolve, initial, well_formed
from refold.core.envelope import InboxOrigin
from refold.core.events import (
    Event,
    GenerationAttempted,
    GenerationFailed,
    GenerationFinished,
    GenerationStarted,
    GenerationStopped,
    SessionDeleted,
)
from refold.core.generations import open_generations
from refold.core.progress import Item, Marker, Progress, Verdict, advance
from refold.core.rulings import Ruling
from refold.wire import parts
from refold.wire.batches import decode_item, decode_progress, encode_item, encode_progress
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import decode_event, event_payload
from refold.wire.journal import JournalEntry, decode_journal, journal_value
from refold.wire.snapshot import decode_session, encode_snapshot

TENANT, SESSION = "acme", "s1"


def text(body: str) -> parts.Part:
    return parts.text(body)


def call(
    call_id: str, name: str = "look", arguments: str = "{}", operation_id: str | None = None
) -> parts.Part:
    return parts.tool_call(call_id, name, arguments, operation_id=operation_id)


def result(call_id: str, body: str = "ok", is_error: bool = False) -> parts.Part:
    return parts.tool_result(call_id, [parts.text(body)], is_error=is_error)


def message(
    message_id: str, role: str = "user", content: str | Sequence[parts.Part] = "hello", **fields: Any
) -> tuple[str, dict[str, Any]]:
    items = [parts.text(content)] if isinstance(content, str) else list(content)
    return "MessageAppended", {
        "message_id": message_id,
        "role": role,
        "content": [parts.to_wire(p) for p in items],
        **fields,
    }


def intended(
    operation_id: str, call_id: str | None = None, tool: str = "look", **fields: Any
) -> tuple[str, dict[str, Any]]:
    return "ToolCallIntended", {
        "operation_id": operation_id,
        "call_id": call_id,
        "tool": tool,
        "arguments": fields.pop("arguments", "{}"),
        **fields,
    }


def step(type_name: str, operation_id: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    if type_name == "ToolCallStarted":
        fields = {"holder": "w1", "lease_ms": 60_000, **fields}
    return type_name, {"operation_id": operation_id, **fields}


def started(generation_id: str, message_id: str | None = None, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "GenerationStarted", {
        "generation_id": generation_id,
        "message_id": message_id or f"m-{generation_id}",
        "holder": "h1",
        "lease_ms": 5_000,
        "generator": "answer",
        **fields,
    }


def attempted(generation_id: str, attempt: int, **fields: Any) -> tuple[str, dict[str, Any]]:
    fields = {"mode": "continue", "holder": "h2", "lease_ms": 5_000, **fields}
    return "GenerationAttempted", {"generation_id": generation_id, "attempt": attempt, **fields}


def finished(generation_id: str, shown: str, last_seq: int, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The generation's message has the text ``shown``; ``parent_id`` and ``message_id`` are the message's."""
    data = shown.encode()
    content = fields.pop("content", None) or shown
    name, record = message(
        fields.pop("message_id", f"m-{generation_id}"),
        fields.pop("role", "assistant"),
        content,
        parent_id=fields.pop("parent_id", None),
    )
    return "GenerationFinished", {
        "generation_id": generation_id,
        "attempt": 1,
        "last_seq": last_seq,
        "length": len(data),
        "sha256": sha256(data).hexdigest(),
        "message": event_payload(name, record),
        **fields,
    }


def outcome(
    operation_id: str | None,
    call_id: str | None = None,
    body: str = "ok",
    *,
    failed: bool = False,
    **fields: Any,
) -> tuple[str, dict[str, Any]]:
    return "ToolCallFailed" if failed else "ToolCallCompleted", {
        "operation_id": operation_id,
        "call_id": call_id,
        "content": [parts.to_wire(parts.text(body))],
        **fields,
    }


def event(type_name: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return type_name, fields


class Inbox:
    """Rules and folds as the worker does, one record after the other."""

    def __init__(self, session: Session | None = None) -> None:
        self.session = session or initial(TENANT, SESSION)
        self.offset = 0
        self.clock = 1_760_000_000_000
        self.journal: list[bytes] = []
        self.records: list[tuple[bytes, int]] = []
        self.check = True
        #: The batches topic: what was appended, and the progress by generation.
        self.batches: list[tuple[bytes, int]] = []
        self.progress: dict[str, Progress] = {}

    def envelope(self, type_name: str, record: dict[str, Any], **fields: Any) -> Envelope:
        payload = fields.pop("payload", None)
        return Envelope(
            fields.pop("event_id", f"e{self.offset}"),
            TENANT,
            self.session.session,
            type_name,
            event_time_ms=fields.pop("event_time_ms", self.clock),
            payload=event_payload(type_name, record) if payload is None else payload,
            **fields,
        )

    def send(self, what: tuple[str, dict[str, Any]], **fields: Any) -> Ruling:
        """One record through the door. Returns its ruling."""
        return self.put(encode_envelope(self.envelope(what[0], what[1], **fields)))

    def put(self, value: bytes, at_ms: int | None = None) -> Ruling:
        time_ms = self.clock if at_ms is None else at_ms
        self.records.append((value, time_ms))
        env = decode_envelope(value)
        decoded = decode_event(env)
        if isinstance(decoded, GenerationFinished):
            decoded.progress = self.progress.get(decoded.generation_id)
        before = encode_snapshot(self.session) if self.session.exists and self.check else b""
        ruling = decide(self.session, env, decoded, time_ms)
        if isinstance(ruling, Accepted):
            self.accept(ruling, env, decoded)
        elif before:
            assert encode_snapshot(self.session) == before, "a refusal or repeat changed the state"
        self.offset += 1
        self.clock += 1000
        return ruling

    def accept(self, ruling: Accepted, env: Envelope, decoded: Event) -> None:
        rows = list(self.session.generations)
        open_ids = [row.generation_id for row in open_generations(self.session)]
        evolve(self.session, ruling.seq, ruling.time_ms, 3, self.offset, env, decoded)
        made = markers(self.session, decoded, ruling, open_ids)
        made += [Marker(gone, "forget", 0) for gone in rows if gone not in self.session.generations]
        for marker in made:
            assert type(self.batch(marker)).__name__ == "Applied", marker
        self.journal.append(journal_value(ruling.seq, ruling.time_ms, 3, self.offset, env))
        if self.check:
            check_state(self.session)

    def batch(self, item: Item) -> Verdict:
        """One record on the batches topic, through its bytes."""
        value = encode_item(item)
        offset = len(self.batches)
        self.batches.append((value, self.clock))
        before = self.progress.get(item.generation)
        after, verdict = advance(before, decode_item(value), offset, self.clock)
        if after is None:
            self.progress.pop(item.generation, None)
        else:
            assert decode_progress(encode_progress(item.generation, after)) == after
            self.progress[item.generation] = after
        return verdict

    def ok(self, *events: tuple[str, dict[str, Any]]) -> Inbox:
        for item in events:
            ruling = self.send(item)
            assert isinstance(ruling, Accepted), (item[0], ruling)
        return self

    def entries(self) -> list[tuple[JournalEntry, Event]]:
        decoded = [decode_journal(value) for value in self.journal]
        return [(entry, decode_event(entry.env)) for entry in decoded]

    def replay(self) -> InboxOrigin:
        return InboxOrigin("refold.rejected", 3, self.offset, self.clock, 0, True)

    # --- looking at the state --------------------------------------------------------------------------

    @property
    def recent(self) -> list[str]:
        return [m.id for m in self.session.recent]

    def states(self) -> dict[str, str]:
        return {c.operation_id: c.state for c in self.session.calls.values()}


def markers(session: Session, event: Event, ruling: Accepted, open_ids: Sequence[str]) -> list[Marker]:
    """What the worker writes to the batches topic with an accepted event."""
    seq, time_ms = ruling.seq, ruling.time_ms
    made: list[Marker] = []
    if isinstance(event, (GenerationStarted, GenerationAttempted)):
        row = session.generations[event.generation_id]
        made.append(
            Marker(
                event.generation_id,
                "begin",
                row.attempt,
                row.mode,
                event.holder,
                event.lease_ms,
                journal_seq=seq,
                message_id=row.message_id,
                generator=row.generator,
                time_ms=time_ms,
            )
        )
    elif isinstance(event, GenerationStopped):
        made.append(Marker(event.generation_id, "stop", 0, journal_seq=seq, time_ms=time_ms))
    elif isinstance(event, (GenerationFinished, GenerationFailed)):
        state = "failed"
        if isinstance(event, GenerationFinished):
            state = "stopped" if event.stopped else "finished"
        made.append(
            Marker(event.generation_id, "end", event.attempt, state=state, journal_seq=seq, time_ms=time_ms)
        )
    elif isinstance(event, SessionDeleted):
        made += [
            Marker(generation_id, "end", 0, state="failed", journal_seq=seq, time_ms=time_ms)
            for generation_id in open_ids
        ]
    return made


def clear_caches(session: Session) -> None:
    """Drop every encoded piece, so that the next encoding is made from the values."""
    session.enc_head = session.enc_mid = session.enc_settings = session.enc_context = None
    session.enc_branches = session.enc_rest = session.enc_memory = session.enc_generations = None
    session.enc_runs = session.enc_tail = None
    for run in session.runs.values():
        run.enc = None
        for part in run.steps.values():
            part.enc = None
    for held in session.held.values():
        held.altered()
    for row in session.calls.values():
        row.enc = None
    for producer in session.producers.values():
        producer.enc = None


def check_state(session: Session) -> None:
    """Invariants, and the codec's: cached or not, read back or not, the bytes are the same."""
    well_formed(session)
    if not session.exists:
        return
    value = encode_snapshot(session)
    again = decode_session(value)
    well_formed(again)
    clear_caches(again)
    assert encode_snapshot(again) == value


def fold_bytes(entries: Iterable[tuple[JournalEntry, Event]], session: Session | None = None) -> bytes:
    state = session or initial(TENANT, SESSION)
    for entry, decoded in entries:
        evolve(state, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, decoded)
    return encode_snapshot(state)


def rejected(ruling: Ruling, code: str) -> bool:
    return isinstance(ruling, Rejected) and ruling.code == code


def duplicate(ruling: Ruling, of_seq: int | None = None) -> bool:
    return isinstance(ruling, Duplicate) and (of_seq is None or ruling.of_seq == of_seq)
