"""The events the fold understands: one slotted class per implemented type, made by ``refold.wire.events``.

Values only, and treated as immutable. Text that is only kept (titles, reasons, model names) is left in the
payload's bytes: the fold does not need it. Content stays encoded (``body``), so that a message is never
re-encoded on its way into the snapshot; the core never looks inside those bytes.
"""

from __future__ import annotations

from typing import TypeAlias


class CallPart:
    """A ``tool_call`` part of an assistant message."""

    __slots__ = ("arguments", "call_id", "operation_id", "tool")

    def __init__(self, call_id: str, tool: str, arguments: str, operation_id: str | None = None) -> None:
        self.call_id = call_id
        self.tool = tool
        self.arguments = arguments
        self.operation_id = operation_id


class ResultPart:
    """A ``tool_result`` part. ``summary`` is the beginning of its text."""

    __slots__ = ("call_id", "is_error", "summary")

    def __init__(self, call_id: str, is_error: bool = False, summary: str = "") -> None:
        self.call_id = call_id
        self.is_error = is_error
        self.summary = summary


class MessageAppended:
    """A message. ``body``: its payload without frame; ``parent_id``: None = after the head, "" = a new root.

    ``only_results``: the content is tool results and nothing else, so it may wait for its call.
    """

    __slots__ = ("body", "calls", "message_id", "only_results", "parent_id", "replaces", "results", "role")

    def __init__(
        self,
        message_id: str,
        parent_id: str | None,
        role: str,
        body: bytes,
        calls: tuple[CallPart, ...] = (),
        results: tuple[ResultPart, ...] = (),
        only_results: bool = False,
        replaces: str | None = None,
    ) -> None:
        self.message_id = message_id
        self.parent_id = parent_id
        self.role = role
        self.body = body
        self.calls = calls
        self.results = results
        self.only_results = only_results
        self.replaces = replaces


class Settings:
    """Window settings of SessionOpened and SessionConfigured; None keeps the present one."""

    __slots__ = ("hold_for_summary", "window_bytes", "window_messages")

    def __init__(
        self,
        window_messages: int | None = None,
        window_bytes: int | None = None,
        hold_for_summary: bool | None = None,
    ) -> None:
        self.window_messages = window_messages
        self.window_bytes = window_bytes
        self.hold_for_summary = hold_for_summary


class SessionOpened:
    """The session begins; ``config`` is the generation configuration's JSON text, pinned by its digest."""

    __slots__ = ("config", "digest", "settings")

    def __init__(
        self, config: str | None = None, digest: str | None = None, settings: Settings | None = None
    ) -> None:
        self.config = config
        self.digest = digest
        self.settings = settings or Settings()


class SessionConfigured(SessionOpened):
    """Configuration or settings change from here on."""

    __slots__ = ()


class SessionClosed:
    __slots__ = ()


class SessionReopened:
    __slots__ = ()


class SessionDeleted:
    """Everything of the session is forgotten; the next event begins a new incarnation at seq 1."""

    __slots__ = ()


class SessionQuarantined:
    """The fold raised at this session. Journalled by the worker, or sent by an operator."""

    __slots__ = ()


class SessionEventParked:
    """An event of a quarantined or releasing session went to the rejected topic. Journalled by the worker."""

    __slots__ = ()


class SessionReleased:
    """Parked events are being replayed: those marked ``origin.replay`` are folded, others still parked."""

    __slots__ = ()


class SessionReleaseFinished:
    """``parked``: how many parked events the release has replayed; None does not compare."""

    __slots__ = ("parked",)

    def __init__(self, parked: int | None = None) -> None:
        self.parked = parked


class ContextSummarized:
    __slots__ = ("text", "through_message_id")

    def __init__(self, text: str, through_message_id: str) -> None:
        self.text = text
        self.through_message_id = through_message_id


class FactSet:
    """``value`` is JSON text."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self.value = value


class FactRemoved:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class BranchSwitched:
    __slots__ = ("head_message_id",)

    def __init__(self, head_message_id: str) -> None:
        self.head_message_id = head_message_id


class ToolCallIntended:
    __slots__ = (
        "approval_required",
        "arguments",
        "call_id",
        "effect",
        "index",
        "message_id",
        "operation_id",
        "tool",
    )

    def __init__(
        self,
        operation_id: str,
        tool: str,
        arguments: str,
        call_id: str | None = None,
        message_id: str | None = None,
        effect: str = "",
        approval_required: bool = False,
        index: int = 0,
    ) -> None:
        self.operation_id = operation_id
        self.tool = tool
        self.arguments = arguments
        self.call_id = call_id
        self.message_id = message_id
        self.effect = effect
        self.approval_required = approval_required
        self.index = index


class ToolCallApprovalRequested:
    __slots__ = ("operation_id",)

    def __init__(self, operation_id: str) -> None:
        self.operation_id = operation_id


class ToolCallApproved(ToolCallApprovalRequested):
    __slots__ = ()


class ToolCallDenied(ToolCallApprovalRequested):
    __slots__ = ("reason",)

    def __init__(self, operation_id: str, reason: str | None = None) -> None:
        self.operation_id = operation_id
        self.reason = reason


class ToolCallStarted:
    __slots__ = ("attempt", "fencing", "holder", "lease_ms", "operation_id")

    def __init__(
        self, operation_id: str, attempt: int = 1, holder: str = "", lease_ms: int = 0, fencing: int = 0
    ) -> None:
        self.operation_id = operation_id
        self.attempt = attempt
        self.holder = holder
        self.lease_ms = lease_ms
        self.fencing = fencing


class ToolCallCompleted:
    """The call ran to its end. ``body`` is the encoded tool message that shows the result in the context.

    ``message_id`` is that message's id; where the producer gave none it is ``@`` and the event's id.
    """

    __slots__ = (
        "attempt",
        "body",
        "call_id",
        "error",
        "error_code",
        "is_error",
        "message_id",
        "operation_id",
        "reconciled",
        "summary",
    )

    def __init__(
        self,
        operation_id: str | None,
        call_id: str | None,
        message_id: str,
        body: bytes,
        *,
        is_error: bool = False,
        summary: str | None = None,
        error_code: str | None = None,
        attempt: int | None = None,
        reconciled: bool = False,
        error: str | None = None,
    ) -> None:
        self.operation_id = operation_id
        self.call_id = call_id
        self.body = body
        self.is_error = is_error
        self.summary = summary
        self.error_code = error_code
        self.error = error
        self.attempt = attempt
        self.message_id = message_id
        self.reconciled = reconciled


class ToolCallFailed(ToolCallCompleted):
    """The call is known not to have taken effect."""

    __slots__ = ()


class ToolCallOutcomeUnknown:
    __slots__ = ("attempt", "operation_id", "reason")

    def __init__(self, operation_id: str, attempt: int | None = None, reason: str | None = None) -> None:
        self.operation_id = operation_id
        self.attempt = attempt
        self.reason = reason


class Opaque:
    """Kept, sequenced and passed on without being understood: unknown types and versions, source records."""

    __slots__ = ()


Event: TypeAlias = (
    MessageAppended
    | SessionOpened
    | SessionConfigured
    | SessionClosed
    | SessionReopened
    | SessionDeleted
    | SessionQuarantined
    | SessionEventParked
    | SessionReleased
    | SessionReleaseFinished
    | ContextSummarized
    | FactSet
    | FactRemoved
    | BranchSwitched
    | ToolCallIntended
    | ToolCallApprovalRequested
    | ToolCallApproved
    | ToolCallDenied
    | ToolCallStarted
    | ToolCallCompleted
    | ToolCallFailed
    | ToolCallOutcomeUnknown
    | Opaque
)
