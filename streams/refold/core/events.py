"""The events the fold understands: one slotted class per implemented type, made by ``refold.wire.events``.

Values only, and treated as immutable. Text that is only kept (titles, reasons, model names) is left in the
payload's bytes: the fold does not need it. Content stays encoded (``body``), so that a message is never
re-encoded on its way into the snapshot; the core never looks inside those bytes.
"""

from __future__ import annotations

from typing import TypeAlias

from refold.core.operationevents import OperationEvent
from refold.core.progress import Progress
from refold.core.reducerevents import ReducerQuarantined, ReducerReleased
from refold.core.run_events import RunEvent, TimerFired
from refold.core.runstate import BlobRef
from refold.core.sessionevents import ChildLinked as ChildLinked
from refold.core.sessionevents import Settings as Settings
from refold.core.usage import UsageAdmitted, UsageRecorded, UsageReleased


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
    """``arguments_ref``: they are kept outside, and ``arguments`` is empty; ``arguments_valid`` is what the
    producer says of those."""

    __slots__ = (
        "approval_required",
        "arguments",
        "arguments_ref",
        "arguments_valid",
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
        arguments_ref: BlobRef | None = None,
        arguments_valid: bool = True,
    ) -> None:
        self.operation_id = operation_id
        self.tool = tool
        self.arguments = arguments
        self.arguments_ref = arguments_ref
        self.arguments_valid = arguments_valid
        self.call_id = call_id
        self.message_id = message_id
        self.effect = effect
        self.approval_required = approval_required
        self.index = index


class ToolCallApprovalRequested:
    """``reason`` is for whoever approves."""

    __slots__ = ("operation_id", "reason")

    def __init__(self, operation_id: str, reason: str | None = None) -> None:
        self.operation_id = operation_id
        self.reason = reason


class ToolCallApproved(ToolCallApprovalRequested):
    __slots__ = ()


class ToolCallDenied(ToolCallApprovalRequested):
    __slots__ = ()


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
    """``reason`` is for the row and for whoever reviews the call."""

    __slots__ = ("attempt", "operation_id", "reason")

    def __init__(self, operation_id: str, attempt: int | None = None, reason: str | None = None) -> None:
        self.operation_id = operation_id
        self.attempt = attempt
        self.reason = reason


class ToolCallReconciled:
    """``outcome``: ``claimed`` (the lease is taken over) or ``not_done`` (known to have had no effect)."""

    __slots__ = ("attempt", "holder", "lease_ms", "operation_id", "outcome")

    def __init__(self, operation_id: str, attempt: int, holder: str, lease_ms: int, outcome: str) -> None:
        self.operation_id = operation_id
        self.attempt = attempt
        self.holder = holder
        self.lease_ms = lease_ms
        self.outcome = outcome


class GenerationEvent:
    """What the events of a generation share."""

    __slots__ = ("generation_id",)

    generation_id: str


class GenerationStarted(GenerationEvent):
    """``params`` is JSON text; ``reply_to``: None = the head when it finishes, "" = a new root."""

    __slots__ = (
        "config_digest",
        "context_seq",
        "durability",
        "generator",
        "holder",
        "lease_ms",
        "message_id",
        "params",
        "reply_to",
    )

    def __init__(
        self,
        generation_id: str,
        message_id: str,
        reply_to: str | None,
        holder: str,
        lease_ms: int,
        generator: str,
        params: str | None = None,
        config_digest: str | None = None,
        context_seq: int = 0,
        durability: str = "strict",
    ) -> None:
        self.generation_id = generation_id
        self.message_id = message_id
        self.reply_to = reply_to
        self.holder = holder
        self.lease_ms = lease_ms
        self.generator = generator
        self.params = params
        self.config_digest = config_digest
        self.context_seq = context_seq
        self.durability = durability


class GenerationAttempted(GenerationEvent):
    """``mode``: restart or continue."""

    __slots__ = ("attempt", "holder", "lease_ms", "mode")

    def __init__(self, generation_id: str, attempt: int, mode: str, holder: str, lease_ms: int) -> None:
        self.generation_id = generation_id
        self.attempt = attempt
        self.mode = mode
        self.holder = holder
        self.lease_ms = lease_ms


class GenerationLeaseRenewed(GenerationEvent):
    __slots__ = ("attempt", "holder", "lease_ms", "provider_response_id")

    def __init__(
        self,
        generation_id: str,
        attempt: int,
        holder: str,
        lease_ms: int,
        provider_response_id: str | None = None,
    ) -> None:
        self.generation_id = generation_id
        self.attempt = attempt
        self.holder = holder
        self.lease_ms = lease_ms
        self.provider_response_id = provider_response_id


class GenerationStopped(GenerationEvent):
    __slots__ = ()

    def __init__(self, generation_id: str) -> None:
        self.generation_id = generation_id


class GenerationFinished(GenerationEvent):
    """``message`` enters as if it had been appended. ``sha256``: hex; ``chain``: as in ``core.progress``.

    ``progress`` is no part of the event: the worker's step puts there what the batches topic says, for
    ``decide`` to compare; ``evolve`` never looks at it.
    """

    __slots__ = (
        "attempt",
        "chain",
        "finish_reason",
        "last_seq",
        "length",
        "message",
        "progress",
        "sha256",
        "stopped",
    )

    def __init__(
        self,
        generation_id: str,
        attempt: int,
        last_seq: int,
        length: int,
        sha256: str,
        message: MessageAppended,
        chain: bytes | None = None,
        finish_reason: str | None = None,
        stopped: bool = False,
    ) -> None:
        self.generation_id = generation_id
        self.attempt = attempt
        self.last_seq = last_seq
        self.length = length
        self.sha256 = sha256
        self.message = message
        self.chain = chain
        self.finish_reason = finish_reason
        self.stopped = stopped
        self.progress: Progress | None = None

    @property
    def body(self) -> bytes:
        """The message's payload, as of every event that puts a message into the session."""
        return self.message.body


class GenerationFailed(GenerationEvent):
    __slots__ = ("attempt", "code")

    def __init__(self, generation_id: str, attempt: int, code: str) -> None:
        self.generation_id = generation_id
        self.attempt = attempt
        self.code = code


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
    | ChildLinked
    | OperationEvent
    | ToolCallIntended
    | ToolCallApprovalRequested
    | ToolCallApproved
    | ToolCallDenied
    | ToolCallStarted
    | ToolCallCompleted
    | ToolCallFailed
    | ToolCallOutcomeUnknown
    | ToolCallReconciled
    | GenerationEvent
    | UsageRecorded
    | UsageAdmitted
    | UsageReleased
    | ReducerQuarantined
    | ReducerReleased
    | RunEvent
    | TimerFired
    | Opaque
)
