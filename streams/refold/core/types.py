"""The names of all event types, by the kind of state they belong to (docs/concepts/session.md).

A type's name is wire contract: the payload's schema subject is ``refold.event.<type>``. Types that the fold
does not implement yet are kept, sequenced and passed on like unknown ones.
"""

from __future__ import annotations

from typing import Final

SESSION_TYPES: Final = (
    "SessionOpened",
    "SessionConfigured",
    "SessionClosed",
    "SessionReopened",
    "SessionDeleted",
    "SessionQuarantined",
    "SessionEventParked",
    "SessionReleased",
    "SessionReleaseFinished",
    "ContextSummarized",
    "FactSet",
    "FactRemoved",
    "BranchSwitched",
)
MESSAGE_TYPES: Final = ("MessageAppended",)
TOOL_TYPES: Final = (
    "ToolCallIntended",
    "ToolCallApprovalRequested",
    "ToolCallApproved",
    "ToolCallDenied",
    "ToolCallStarted",
    "ToolCallCompleted",
    "ToolCallFailed",
    "ToolCallOutcomeUnknown",
)
IMPORT_TYPES: Final = ("SourceRecordKept",)

#: Implemented by this version of the fold.
IMPLEMENTED_TYPES: Final = frozenset(SESSION_TYPES + MESSAGE_TYPES + TOOL_TYPES + IMPORT_TYPES)

#: Named now so that nobody uses the names for something else; opaque to the fold until implemented.
GENERATION_TYPES: Final = (
    "GenerationStarted",
    "GenerationAttempted",
    "GenerationStopped",
    "GenerationFinished",
    "GenerationFailed",
    "GenerationBatchAcked",
)
USAGE_TYPES: Final = ("UsageRecorded", "UsageAdmitted", "UsageReleased")
RECONCILE_TYPES: Final = ("ToolCallReconciled",)
RUN_TYPES: Final = (
    "RunStarted",
    "RunReady",
    "RunLeased",
    "RunCompleted",
    "RunFailed",
    "RunPinMoved",
    "StepStarted",
    "StepCompleted",
    "StepFailed",
    "StepInvalidated",
    "StepHeartbeat",
)
EVAL_TYPES: Final = ("EvalSampleRecorded", "EvalCursorMoved")
REDUCER_TYPES: Final = ("ReducerQuarantined",)
TIMER_TYPES: Final = ("TimerArmed", "TimerFired")
ERASURE_TYPES: Final = ("SubjectErased",)

RESERVED_TYPES: Final = frozenset(
    GENERATION_TYPES
    + USAGE_TYPES
    + RECONCILE_TYPES
    + RUN_TYPES
    + EVAL_TYPES
    + REDUCER_TYPES
    + TIMER_TYPES
    + ERASURE_TYPES
)

#: Only the worker writes these; from the inbox they are refused with ``reserved_type``.
WORKER_TYPES: Final = frozenset({"SessionEventParked"})

ALL_TYPES: Final = IMPLEMENTED_TYPES | RESERVED_TYPES
