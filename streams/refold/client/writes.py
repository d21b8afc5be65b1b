"""The writing half of a session: one method per event type, each a thin payload over ``publish``.

Every method takes the options of :meth:`SessionWrites.publish` beside its own arguments (``event_id``,
``actor``, ``expected_seq``, ``run``, ``step``, ``wait`` …) and returns a :class:`Receipt`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import orjson

from refold.client.messages import MessageFormat, MessageInput, default_actor, message_body
from refold.client.publishing import Publisher
from refold.client.receipts import Receipt
from refold.core.envelope import Actor
from refold.core.reducers import Unfit, canonical
from refold.core.types import ALL_TYPES
from refold.errors import UsageError
from refold.formats.jsonio import dumps_text
from refold.formats.parts import valid_json
from refold.wire.parts import Part
from refold.wire.parts import text as text_part

#: How long a started call is its holder's before others may reconcile it.
LEASE_MS_DEFAULT: Final = 60_000

ResultContent = str | Part | Sequence[Part]


class SessionWrites:
    """Mixed into :class:`refold.client.session.Session`."""

    _publisher: Publisher

    async def publish(self, event_type: str, payload: Mapping[str, Any] | bytes, **options: Any) -> Receipt:
        """Append an event of any type: the typed methods below are thin wrappers over this one.

        ``payload`` is the dict of the type's schema (``content`` holds :class:`refold.wire.parts.Part`), or
        the framed bytes of a type of your own, which the fold keeps, sequences and passes on.

        Options: ``event_id`` (yours: a retry from anywhere is absorbed; without a stamp, see
        ``refold.client.publishing``), ``event_time_ms``, ``actor``, ``expected_seq`` (refused unless the
        session is at it), ``subject``, ``run``, ``step``, ``attempt``, ``causation_id``,
        ``correlation_id``, ``link``, ``headers``, ``wait`` ("durable", the default, or "accepted") and
        ``timeout`` (seconds, for "accepted").

        Returns when the event is durable (acks=all). Raises UsageError and InvalidRecord before anything is
        sent, StorageError when a large payload could not be stored (not sent either), TransientError when the
        outcome is unknown, EarlierEventFailed while an earlier event of this session is undecided, and, with
        ``wait="accepted"``, Refused.
        """
        return await self._publisher.publish(event_type, payload, **options)

    async def publish_json(self, event_type: str, payload: Mapping[str, Any], **options: Any) -> Receipt:
        """Append an event of a type of your own with a JSON object for a payload: what a reducer
        (``refold.reducer``) gets back as ``event.payload``. Options as :meth:`publish`.

        Raises UsageError for a type that is refold's and for what is no JSON object, and as :meth:`publish`.
        """
        if event_type in ALL_TYPES:
            raise UsageError(f"{event_type} is a type of refold's: use publish, or another name")
        try:
            encoded = canonical(dict(payload))
        except Unfit as unfit:
            raise UsageError(f"the payload of {event_type} is no JSON object: {unfit.error}") from None
        return await self.publish(event_type, encoded, **options)

    async def retry(self) -> list[Receipt]:
        """Send the events that failed (and those queued behind them) again, in order, byte for byte."""
        return await self._publisher.retry()

    def abandon(self) -> tuple[str, ...]:
        """Give failed events up, so that new ones may follow; returns their event ids. One of them may have
        been written all the same: its outcome was unknown."""
        return self._publisher.memory.lane.abandon()

    # Messages

    async def append(
        self,
        message: MessageInput,
        *,
        role: str | None = None,
        message_id: str | None = None,
        parent: str | None = None,
        format: MessageFormat = "openai",  # noqa: A002 - the word of the whole SDK
        actor: Actor | None = None,
        name: str | None = None,
        replaces: str | None = None,
        group_id: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        finish_reason: str | None = None,
        usage: Mapping[str, int] | None = None,
        event_id: str | None = None,
        **options: Any,
    ) -> Receipt:
        """Append a message: text, parts, a provider's message (``format``), or a message body.

        ``message_id``: yours makes the append idempotent from any process (same id and content: duplicate;
        other content: conflict). ``parent``: ``None`` continues the active path, ``""`` begins a new root, an
        id branches off there. An id that the session does not have is taken too, because the message may come
        later: until it does, nothing before this one is in the context (``Context.missing_parent``).
        ``replaces``: the message this one is another version of.
        """
        if message_id is None and event_id is not None:
            # The content must be the same bytes when the caller tries the same event id again.
            message_id = event_id
        body = message_body(
            message,
            role=role,
            message_id=message_id,
            parent=parent,
            source=format,
            name=name,
            replaces=replaces,
            group_id=group_id,
            model=model,
            provider=provider,
            finish_reason=finish_reason,
            usage=usage,
        )
        return await self.publish(
            "MessageAppended",
            body,
            actor=actor or default_actor(body["role"]),
            message_id=body["message_id"],
            event_id=event_id,
            **options,
        )

    async def summarize(self, text: str, through_message_id: str, **options: Any) -> Receipt:
        """Replace the active path up to and including ``through_message_id`` by ``text`` in the context."""
        model = options.pop("model", None)
        usage = options.pop("usage", None)
        payload = {"text": text, "through_message_id": through_message_id, "model": model, "usage": usage}
        return await self.publish("ContextSummarized", payload, **options)

    async def switch_branch(self, head_message_id: str, **options: Any) -> Receipt:
        """Make the path that ends in this message the active one."""
        return await self.publish("BranchSwitched", {"head_message_id": head_message_id}, **options)

    async def set_fact(self, name: str, value: Any, **options: Any) -> Receipt:
        """Set a named fact to any JSON value."""
        return await self.publish("FactSet", {"name": name, "value": dumps_text(value)}, **options)

    async def remove_fact(self, name: str, **options: Any) -> Receipt:
        return await self.publish("FactRemoved", {"name": name}, **options)

    # Session life

    async def open(
        self,
        *,
        agent: str | None = None,
        title: str | None = None,
        config: Mapping[str, Any] | None = None,
        window_messages: int | None = None,
        window_bytes: int | None = None,
        hold_for_summary: bool | None = None,
        policy: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Receipt:
        """Begin the session explicitly; any first event begins it implicitly. ``policy``: as to configure."""
        pinned = {} if config is None else _pin(config, "config_json", "config_digest")
        payload = {
            "agent": agent,
            "title": title,
            "window_messages": window_messages,
            "window_bytes": window_bytes,
            "hold_for_summary": hold_for_summary,
            "policy": policy,
            **pinned,
        }
        return await self.publish("SessionOpened", payload, **options)

    async def configure(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        window_messages: int | None = None,
        window_bytes: int | None = None,
        hold_for_summary: bool | None = None,
        policy: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Receipt:
        """Pin a generation configuration (any JSON object), change the window settings, the policy, or all.

        ``policy``: what the session does when it is busy, idle or long; those of ``on_busy``, ``ttl_ms``,
        ``ttl_action``, ``summary_messages`` and ``summary_bytes`` that are to be others.
        """
        pinned = {} if config is None else _pin(config, "json", "digest")
        payload = {
            "window_messages": window_messages,
            "window_bytes": window_bytes,
            "hold_for_summary": hold_for_summary,
            "policy": policy,
            **pinned,
        }
        return await self.publish("SessionConfigured", payload, **options)

    async def close(self, reason: str | None = None, **options: Any) -> Receipt:
        """End the session: later events are rejected (``session_closed``) until it is reopened."""
        return await self.publish("SessionClosed", {"reason": reason}, **options)

    async def reopen(self, reason: str | None = None, **options: Any) -> Receipt:
        return await self.publish("SessionReopened", {"reason": reason}, **options)

    async def delete(self, reason: str | None = None, **options: Any) -> Receipt:
        """Forget the session's state. The journal keeps its events; the next event begins anew at seq 1."""
        return await self.publish("SessionDeleted", {"reason": reason}, **options)

    # Tool calls: intended -> (awaiting approval) -> started -> done | failed | unknown

    async def tool_intended(
        self,
        operation_id: str,
        tool: str,
        arguments: str | Mapping[str, Any],
        *,
        call_id: str | None = None,
        asked_by: str | None = None,
        effect: str = "",
        approval_required: bool = False,
        lookup_supported: bool = False,
        timeout_ms: int | None = None,
        index: int = 0,
        **options: Any,
    ) -> Receipt:
        """Say that a call is going to be made. ``asked_by``: the assistant message that asked for it.

        Waits for *durable* by default; :meth:`tool_started` waits for *accepted*, the effect comes after it.
        """
        raw = arguments if isinstance(arguments, str) else dumps_text(dict(arguments))
        payload = {
            "operation_id": operation_id,
            "call_id": call_id,
            "message_id": asked_by,
            "tool": tool,
            "arguments": raw,
            "arguments_valid": valid_json(raw),
            "effect": effect,
            "approval_required": approval_required,
            "lookup_supported": lookup_supported,
            "timeout_ms": timeout_ms,
            "index": index,
        }
        return await self.publish("ToolCallIntended", payload, **options)

    async def request_approval(
        self,
        operation_id: str,
        *,
        by: str | None = None,
        reason: str | None = None,
        expires_ms: int | None = None,
        **options: Any,
    ) -> Receipt:
        payload = {"operation_id": operation_id, "by": by, "reason": reason, "expires_ms": expires_ms}
        return await self.publish("ToolCallApprovalRequested", payload, **options)

    async def approve(
        self, operation_id: str, *, by: str | None = None, reason: str | None = None, **options: Any
    ) -> Receipt:
        """Let a call that waits for approval run. Waits for *accepted* (else Refused), so that whoever runs
        the call next finds it approved."""
        payload = {"operation_id": operation_id, "by": by, "reason": reason}
        return await self.publish("ToolCallApproved", payload, **{"wait": "accepted", **options})

    async def deny(
        self, operation_id: str, *, by: str | None = None, reason: str | None = None, **options: Any
    ) -> Receipt:
        """Settle a call that waits for approval: it does not run. Waits for *accepted*, else Refused."""
        payload = {"operation_id": operation_id, "by": by, "reason": reason}
        return await self.publish("ToolCallDenied", payload, **{"wait": "accepted", **options})

    async def tool_started(
        self,
        operation_id: str,
        *,
        holder: str,
        call_attempt: int = 1,
        lease_ms: int = LEASE_MS_DEFAULT,
        fencing: int = 0,
        **options: Any,
    ) -> Receipt:
        """Say that the effect begins now. Waits for *accepted* (else Refused): run the tool only after it.

        ``holder`` names who runs it; ``call_attempt`` rises only when the previous one is known not to have
        taken effect.
        """
        payload = {
            "operation_id": operation_id,
            "attempt": call_attempt,
            "holder": holder,
            "lease_ms": lease_ms,
            "fencing": fencing,
        }
        return await self.publish("ToolCallStarted", payload, **{"wait": "accepted", **options})

    async def tool_completed(
        self,
        operation_id: str | None,
        content: ResultContent = (),
        *,
        call_id: str | None = None,
        call_attempt: int | None = None,
        summary: str | None = None,
        is_error: bool = False,
        error_code: str | None = None,
        duration_ms: int | None = None,
        result_message_id: str | None = None,
        reconciled: bool = False,
        extra: bytes | None = None,
        **options: Any,
    ) -> Receipt:
        """Record that the call ran to its end. ``is_error``: it ran, and its answer is an error."""
        payload = {
            "operation_id": operation_id,
            "call_id": call_id,
            "attempt": call_attempt,
            "content": _parts(content),
            "summary": summary,
            "is_error": is_error,
            "error_code": error_code,
            "duration_ms": duration_ms,
            "message_id": result_message_id,
            "reconciled": reconciled,
            "extra": extra,
        }
        return await self.publish("ToolCallCompleted", payload, **options)

    async def tool_failed(
        self,
        operation_id: str | None,
        error: str,
        *,
        content: ResultContent = (),
        call_id: str | None = None,
        call_attempt: int | None = None,
        summary: str | None = None,
        error_code: str | None = None,
        retryable: bool = False,
        result_message_id: str | None = None,
        reconciled: bool = False,
        extra: bytes | None = None,
        **options: Any,
    ) -> Receipt:
        """Record that the call is *known* not to have taken effect; else use :meth:`tool_unknown`."""
        payload = {
            "operation_id": operation_id,
            "call_id": call_id,
            "attempt": call_attempt,
            "content": _parts(content),
            "summary": summary,
            "is_error": True,
            "error_code": error_code,
            "error": error,
            "retryable": retryable,
            "message_id": result_message_id,
            "reconciled": reconciled,
            "extra": extra,
        }
        return await self.publish("ToolCallFailed", payload, **options)

    async def tool_unknown(
        self,
        operation_id: str,
        reason: str | None = None,
        *,
        call_attempt: int | None = None,
        **options: Any,
    ) -> Receipt:
        """Record that nobody can tell whether the call took effect. It is never re-run by itself."""
        payload = {"operation_id": operation_id, "attempt": call_attempt, "reason": reason}
        return await self.publish("ToolCallOutcomeUnknown", payload, **options)

    async def tool_reconciled(
        self,
        operation_id: str,
        outcome: Literal["claimed", "not_done"],
        *,
        holder: str,
        call_attempt: int,
        lease_ms: int = 0,
        detail: str | None = None,
        **options: Any,
    ) -> Receipt:
        """Look after a started call: ``claimed`` takes it over when its lease is over, or renews one's own;
        ``not_done`` says that its attempt is *known* not to have taken effect, by its holder or as the ruling
        on an unknown one. Only then may the next attempt start. ``session.reconcile`` does all of this.
        """
        payload = {
            "operation_id": operation_id,
            "attempt": call_attempt,
            "holder": holder,
            "lease_ms": lease_ms,
            "outcome": outcome,
            "detail": detail,
        }
        return await self.publish("ToolCallReconciled", payload, **options)


def _parts(content: ResultContent) -> list[Part]:
    if isinstance(content, str):
        return [text_part(content)]
    parts = [content] if isinstance(content, Part) else list(content)
    if not all(isinstance(part, Part) for part in parts):
        raise UsageError("a tool result is text or a list of refold parts (refold.wire.parts)")
    return parts


def _pin(config: Mapping[str, Any], json_field: str, digest_field: str) -> dict[str, str]:
    """The configuration as canonical JSON (sorted keys) and its digest: equal ones have equal digests."""
    try:
        raw = orjson.dumps(dict(config), option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise UsageError(f"the configuration is not JSON: {error}") from None
    return {json_field: raw.decode(), digest_field: hashlib.sha256(raw).hexdigest()}
