"""Envelope -> event: the payload as the value the fold understands.

Unknown types and unknown versions of known types are :class:`Opaque`: kept, sequenced, passed on. A known
type with a payload that is broken, or written with a schema nobody knows, is refused: reading it as opaque
would give another state once the schema is known, and the same journal must always fold to the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from refold.core import events as ev
from refold.core.envelope import Envelope
from refold.core.limits import RESULT_SUMMARY_BYTES_MAX
from refold.core.policystate import PolicyChange
from refold.core.reducerevents import ReducerQuarantined, ReducerReleased
from refold.core.runstate import BlobRef
from refold.core.types import IMPLEMENTED_TYPES
from refold.core.usage import UsageAdmitted, UsageRecorded, UsageReleased
from refold.errors import InvalidRecord
from refold.wire import operationevents, run_events
from refold.wire.bodies import from_record, read_plain, result_body, summary_of
from refold.wire.codec import encode, encode_body, resolve_frame, undecodable
from refold.wire.parts import check_parts, from_wire
from refold.wire.schemas import SchemaEntry, registry

MESSAGE_SUBJECT: Final = "refold.event.MessageAppended"

_OPAQUE: Final = ev.Opaque()
_message_frame: bytes = b""


def decode_event(env: Envelope) -> ev.Event:
    """The event in an envelope. Raises InvalidRecord for a known type's payload, as ``codec.decode`` does."""
    payload = env.payload
    if env.type == "MessageAppended" and env.type_version == 1:
        if payload[:5] == (_message_frame or _load_message_frame()):
            event = read_plain(payload[5:])
            if event is not None:
                return event
        return _decode_message(payload)
    if env.type not in IMPLEMENTED_TYPES or env.type_version != 1:
        return _OPAQUE
    entry, at = _entry(env.type, payload)
    return _DECODERS[env.type](_read(entry, payload, at), env)


def event_payload(type: str, record: Mapping[str, Any]) -> bytes:  # noqa: A002 - the envelope's field
    """The framed payload of an event of ``type``. Raises UsageError naming a wrong field."""
    return encode(f"refold.event.{type}", record)


def _load_message_frame() -> bytes:
    global _message_frame
    _message_frame = registry().get(MESSAGE_SUBJECT).frame
    return _message_frame


def _entry(type_name: str, payload: bytes) -> tuple[SchemaEntry, int]:
    entry, at = resolve_frame(payload)
    subject = f"refold.event.{type_name}"
    if entry.subject != subject:
        raise InvalidRecord(
            "unknown_subject", f"the payload is of subject {entry.subject}, expected {subject}"
        )
    return entry, at


def _read(entry: SchemaEntry, payload: bytes, at: int) -> dict[str, Any]:
    try:
        record, end = entry.read(payload, at)
    except (ValueError, IndexError, RecursionError) as error:
        raise undecodable(entry.subject, error) from None
    if end != len(payload):
        raise undecodable(entry.subject, ValueError("its length is not the record's"))
    return record


def _decode_message(payload: bytes) -> ev.MessageAppended:
    entry, at = _entry("MessageAppended", payload)
    record = _read(entry, payload, at)
    # Only bytes of the newest schema, as we pin it, may be spliced into the snapshot.
    current = entry.is_newest and registry().is_pinned(entry)
    return from_record(record, payload[at:] if current else encode_body(MESSAGE_SUBJECT, record))


def _nested_message(payload: bytes) -> ev.MessageAppended:
    """The message in a GenerationFinished, read exactly as one that was appended."""
    if payload[:5] == (_message_frame or _load_message_frame()):
        event = read_plain(payload[5:])
        if event is not None:
            return event
    return _decode_message(payload)


def _settings(r: dict[str, Any]) -> ev.Settings:
    policy = r["policy"]
    change = None if policy is None else PolicyChange(**policy)
    return ev.Settings(r["window_messages"], r["window_bytes"], r["hold_for_summary"], change)


def _outcome(r: dict[str, Any], env: Envelope) -> dict[str, Any]:
    """What ToolCallCompleted and ToolCallFailed share; makes the tool message that shows the result."""
    parts = [from_wire(item) for item in r["content"]]
    check_parts(parts, 2)  # they become parts of a part
    message_id = r["message_id"] or f"@{env.event_id}"
    call_id = r["call_id"] or r["operation_id"] or ""
    shown = {"call_id": call_id, "is_error": r["is_error"], "content": r["content"]}
    body = result_body(message_id, encode("refold.part.ToolResult", shown))
    return {
        "operation_id": r["operation_id"],
        "call_id": r["call_id"],
        "message_id": message_id,
        "body": body,
        "is_error": r["is_error"],
        "summary": r["summary"] or summary_of(tuple(parts))[:RESULT_SUMMARY_BYTES_MAX] or None,
        "error_code": r["error_code"],
        "attempt": r["attempt"],
        "reconciled": r["reconciled"],
        "error": r.get("error"),
    }


Decoder = Callable[[dict[str, Any], Envelope], ev.Event]

_DECODERS: Final[dict[str, Decoder]] = {
    "SessionOpened": lambda r, _: ev.SessionOpened(r["config_json"], r["config_digest"], _settings(r)),
    "SessionConfigured": lambda r, _: ev.SessionConfigured(r["json"], r["digest"], _settings(r)),
    "SessionClosed": lambda _r, _e: ev.SessionClosed(),
    "SessionReopened": lambda _r, _e: ev.SessionReopened(),
    "SessionDeleted": lambda _r, _e: ev.SessionDeleted(),
    "SessionQuarantined": lambda _r, _e: ev.SessionQuarantined(),
    "SessionEventParked": lambda _r, _e: ev.SessionEventParked(),
    "SessionReleased": lambda _r, _e: ev.SessionReleased(),
    "SessionReleaseFinished": lambda r, _: ev.SessionReleaseFinished(r["parked"]),
    "ContextSummarized": lambda r, _: ev.ContextSummarized(r["text"], r["through_message_id"]),
    "FactSet": lambda r, _: ev.FactSet(r["name"], r["value"]),
    "FactRemoved": lambda r, _: ev.FactRemoved(r["name"]),
    "BranchSwitched": lambda r, _: ev.BranchSwitched(r["head_message_id"]),
    "ChildLinked": lambda r, _: ev.ChildLinked(r["session"], r["kind"], r["call"]),
    "ToolCallIntended": lambda r, _: ev.ToolCallIntended(
        r["operation_id"],
        r["tool"],
        r["arguments"],
        r["call_id"],
        r["message_id"],
        r["effect"],
        r["approval_required"],
        r["index"],
        None if r["arguments_ref"] is None else BlobRef(**r["arguments_ref"]),
        r["arguments_valid"],
    ),
    "ToolCallApprovalRequested": lambda r, _: ev.ToolCallApprovalRequested(r["operation_id"], r["reason"]),
    "ToolCallApproved": lambda r, _: ev.ToolCallApproved(r["operation_id"]),
    "ToolCallDenied": lambda r, _: ev.ToolCallDenied(r["operation_id"], r["reason"]),
    "ToolCallStarted": lambda r, _: ev.ToolCallStarted(
        r["operation_id"], r["attempt"], r["holder"], r["lease_ms"], r["fencing"]
    ),
    "ToolCallCompleted": lambda r, env: ev.ToolCallCompleted(**_outcome(r, env)),
    "ToolCallFailed": lambda r, env: ev.ToolCallFailed(**_outcome(r, env)),
    "ToolCallOutcomeUnknown": lambda r, _: ev.ToolCallOutcomeUnknown(
        r["operation_id"], r["attempt"], r["reason"]
    ),
    "ToolCallReconciled": lambda r, _: ev.ToolCallReconciled(
        r["operation_id"], r["attempt"], r["holder"], r["lease_ms"], r["outcome"]
    ),
    "GenerationStarted": lambda r, _: ev.GenerationStarted(
        r["generation_id"],
        r["message_id"],
        r["reply_to"],
        r["holder"],
        r["lease_ms"],
        r["generator"],
        r["params"],
        r["config_digest"],
        r["context_seq"],
        r["durability"],
    ),
    "GenerationAttempted": lambda r, _: ev.GenerationAttempted(
        r["generation_id"], r["attempt"], r["mode"], r["holder"], r["lease_ms"]
    ),
    "GenerationLeaseRenewed": lambda r, _: ev.GenerationLeaseRenewed(
        r["generation_id"], r["attempt"], r["holder"], r["lease_ms"], r["provider_response_id"]
    ),
    "GenerationStopped": lambda r, _: ev.GenerationStopped(r["generation_id"]),
    "GenerationFinished": lambda r, _: ev.GenerationFinished(
        r["generation_id"],
        r["attempt"],
        r["last_seq"],
        r["length"],
        r["sha256"],
        _nested_message(r["message"]),
        r["chain"],
        r["finish_reason"],
        r["stopped"],
    ),
    "GenerationFailed": lambda r, _: ev.GenerationFailed(r["generation_id"], r["attempt"], r["code"]),
    "UsageRecorded": lambda r, env: UsageRecorded(
        r["model"],
        r["subject"] or env.subject or "",
        env.event_time_ms if r["at_ms"] is None else r["at_ms"],
        r["requests"],
        r["input"],
        r["output"],
        r["cached"],
        r["reasoning"],
    ),
    "UsageAdmitted": lambda r, env: UsageAdmitted(
        r["lease_id"], r["model"], r["subject"] or env.subject or "", r["lease_ms"]
    ),
    "UsageReleased": lambda r, env: UsageReleased(
        r["lease_id"], r["model"], r["subject"] or env.subject or ""
    ),
    "ReducerQuarantined": lambda r, _: ReducerQuarantined(
        r["name"], r["version"], r["at_seq"], r["state"], r["error"]
    ),
    "ReducerReleased": lambda r, _: ReducerReleased(r["name"], r["version"], r["at_seq"], r["state"]),
    **run_events.DECODERS,
    **operationevents.DECODERS,
    "ContextRestored": operationevents.restored_with(_nested_message),
    "SourceRecordKept": lambda _r, _e: _OPAQUE,
}
