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
    "ChildLinked",
    "SessionForked",
    "ContextRestored",
    "SessionPruned",
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
    "ToolCallReconciled",
)
GENERATION_TYPES: Final = (
    "GenerationStarted",
    "GenerationAttempted",
    "GenerationLeaseRenewed",
    "GenerationStopped",
    "GenerationFinished",
    "GenerationFailed",
)
IMPORT_TYPES: Final = ("SourceRecordKept",)
USAGE_TYPES: Final = ("UsageRecorded", "UsageAdmitted", "UsageReleased")
REDUCER_TYPES: Final = ("ReducerQuarantined", "ReducerReleased")

RUN_TYPES: Final = (
    "RunStarted",
    "RunLeased",
    "RunReleased",
    "RunSuspended",
    "RunCompleted",
    "RunFailed",
    "RunStopped",
    "RunResolved",
    "RunPinMoved",
    "PlanSet",
    "StepStarted",
    "StepCompleted",
    "StepFailed",
    "StepHeartbeat",
    "StepInvalidated",
)
TIMER_TYPES: Final = ("TimerFired",)

#: Implemented by this version of the fold.
IMPLEMENTED_TYPES: Final = frozenset(
    SESSION_TYPES
    + MESSAGE_TYPES
    + TOOL_TYPES
    + GENERATION_TYPES
    + IMPORT_TYPES
    + USAGE_TYPES
    + REDUCER_TYPES
    + RUN_TYPES
    + TIMER_TYPES
)

#: Named now so that nobody uses the names for something else; opaque to the fold until implemented.
#: Acks are records of the batches topic (docs/internals/generations.md), notices of runs records of the work
#: topic, the armed deadline a field of the state: the names stay taken.
ACK_TYPES: Final = ("GenerationBatchAcked",)
RUN_NOTICE_TYPES: Final = ("RunReady",)
EVAL_TYPES: Final = ("EvalSampleRecorded", "EvalCursorMoved")
TIMER_ARMED_TYPES: Final = ("TimerArmed",)
ERASURE_TYPES: Final = ("SubjectErased",)

RESERVED_TYPES: Final = frozenset(
    ACK_TYPES + RUN_NOTICE_TYPES + EVAL_TYPES + TIMER_ARMED_TYPES + ERASURE_TYPES
)

#: Only the worker writes these; from the inbox they are refused with ``reserved_type``.
WORKER_TYPES: Final = frozenset({"SessionEventParked", "ReducerQuarantined"})

ALL_TYPES: Final = IMPLEMENTED_TYPES | RESERVED_TYPES
